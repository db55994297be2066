// SPDX-License-Identifier: Apache-2.0
// `millrace bench` ends here.
#include <csignal>
#include <string>
#include <vector>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <bench/families.h>
#include <bench/library/command.h>
#include <bench/live_client.h>
#include <bench/machine.h>
#include <bench/memory_rows.h>
#include <support/become.h>
#include <support/main_frame.h>

namespace millrace::bench {
namespace {

constexpr const char* usage =
    "Measures speed beside peers, by turns in one run: docs/performance.md says what a row means.\n"
    "usage: millrace bench cpu [--only ID,...] [--threads N,...] [--json FILE] [--plot FILE.svg] [--quick]\n"
    "                          [--networks NAME,...] [--clock wall|processor] [--python PROGRAM] [--models FOLDER]\n"
    "       millrace bench gpu --help\n"
    "  --only     the rows of these ids alone:\n";
constexpr const char* usage_end =
    "  --threads  of a kernel; default 1,2\n"
    "  --networks those of the models that are measured: silero, resemblyzer, beatnet, g2pm, sleepecg, crnn_image, crnn_sound, decoder,\n"
    "             layer_norm_lstm, lstm_12; default all\n"
    "  --clock    of ours and of peers: wall, or processor, the processor time of all threads of each, beside other load; default wall\n"
    "  --json     the rows as data\n"
    "  --plot     ours and peers over H and B, as an SVG\n"
    "  --quick    a few small shapes, a moment each: shows that everything runs, and no more\n"
    "  --python   the interpreter that has onnxruntime, onnx and torch; default build/venv/bin/python, else python3\n"
    "  --models   the folder of silero_vad_v6.onnx; default build/models\n"
    "Exit codes: 0, 1 (failed), 2 (bad usage).\n";

int cpu_command(const std::vector<std::string>& words) {
  Machine machine;
  const auto begin = [&machine](Context& context) {
    context.machine = &machine;
    if (context.models.empty()) context.models = in_build(context.programs, "models");
  };
  Bench bench{usage, usage_end, cpu_families(), begin, Machine::name};
  bench.flags["--threads"] = [](Context& context, const std::string& text) {
    context.threads.clear();
    for (const std::string& part : parts_of(text)) context.threads.push_back(number_of("--threads", part, 1, 256));
  };
  bench.flags["--networks"] = [](Context& context, const std::string& text) {
    const std::set<std::string> known = network_names();
    for (const std::string& part : parts_of(text))
      if (!known.contains(part))
        throw UsageError(fmt::format("--networks: expected some of {}, found '{}'", fmt::join(known, ", "), part));
      else
        context.networks.insert(part);
  };
  bench.flags["--clock"] = [](Context&, const std::string& text) {
    if (text != "wall" && text != "processor") throw UsageError("--clock: expected wall or processor, found '" + text + "'");
    timer_clock() = text == "wall" ? TimerClock::wall : TimerClock::processor;
  };
  bench.flags["--models"] = [](Context& context, const std::string& text) { context.models = text; };
  return bench_command(bench, words);
}

}  // namespace
}  // namespace millrace::bench

int main(int count, char** arguments) {
  using namespace millrace::bench;
  millrace::app::hold_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);  // a peer that ended is an error of write
  const std::vector<std::string> words(arguments + 1, arguments + count);
  const auto chosen = [&] {
    if (!words.empty() && words[0] == "cpu") return cpu_command({words.begin() + 1, words.end()});
    if (words.size() == 10 && words[0] == "live-client") return live_client_command({words.begin() + 1, words.end()});  // of C5, R1
    if (words.size() == 2 && words[0] == "sessions") return sessions_command(std::stoll(words[1]));                     // of C9
    if (words.size() == 1 && (words[0] == "--help" || words[0] == "-h")) return cpu_command({"--help"});
    // A program of its own, linked with no peer, so that it can be carried to a machine that has a GPU.
    if (!words.empty() && words[0] == "gpu") millrace::app::become("millrace-bench-gpu", {words.begin() + 1, words.end()});
    throw UsageError("expected cpu or gpu, found " + (words.empty() ? "nothing" : "'" + words[0] + "'"));
  };
  return millrace::app::framed<UsageError>("millrace", chosen, "bench: ", " (millrace bench cpu --help explains)");
}
