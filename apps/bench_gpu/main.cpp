// SPDX-License-Identifier: Apache-2.0
// `millrace bench gpu` ends here.
#include <csignal>
#include <cstdlib>
#include <memory>
#include <sstream>
#include <string>
#include <vector>

#include <bench/library/command.h>
#include <bench_gpu/cudnn_peer.h>
#include <bench_gpu/gpu_families.h>
#include <bench_gpu/gpu_machine.h>
#include <millrace/tensor/cuda_device.h>
#include <support/main_frame.h>

namespace millrace::bench {
namespace {

constexpr int skipped = 77;

constexpr const char* usage =
    "Measures speed on a CUDA device, beside peers, by turns in one run: docs/performance_gpu.md says what a row means.\n"
    "usage: millrace bench gpu [--only ID,...] [--shapes HxB,...] [--device N] [--json FILE] [--plot FILE.svg] [--quick] [--python "
    "PROGRAM]\n"
    "  --only     the rows of these ids alone:\n";
constexpr const char* usage_end =
    "  --shapes   of G1 to G8 and torch those with these widths and rows alone, such as 512x16,1024x64; G7 has 64 rows\n"
    "  --device   of the machine's; default 0\n"
    "  --json     the rows as data\n"
    "  --plot     ours and peers over H, as an SVG\n"
    "  --quick    a few small shapes, a moment each: shows that everything runs, and no more\n"
    "  --python   the interpreter that has PyTorch with CUDA; default build/venv/bin/python, else python3\n"
    "cuDNN is loaded when it is found; where it is not, its rows are not measured, and say so.\n"
    "Exit codes: 0, 1 (failed), 2 (bad usage), 77 (no CUDA device here; 1 with MILLRACE_REQUIRE_CUDA=1).\n";

class NoDevice : public Error {
 public:
  using Error::Error;
};

int gpu_command(const std::vector<std::string>& words) {
  std::unique_ptr<GpuMachine> machine;
  const auto begin = [&machine](Context& context) {
    if (cuda_devices().empty()) throw NoDevice("bench gpu: expected a CUDA device, found none (" + cuda_status() + ")");
    machine = std::make_unique<GpuMachine>(context.device);
    context.gpu = machine.get();
    if (!context.quick) context.effort = {21, 5, 0.03, 3, 0};
  };
  Bench bench{usage, usage_end, gpu_families(), begin, [&machine] { return machine->name() + ", " + cudnn_name(); }};
  bench.flags["--device"] = [](Context& context, const std::string& text) { context.device = number_of("--device", text, 0, 1023); };
  bench.flags["--shapes"] = [](Context& context, const std::string& text) {
    std::istringstream all(text);
    for (std::string one; std::getline(all, one, ',');) {
      const auto cross = one.find('x');
      if (cross == one.npos) throw UsageError("--shapes: expected HxB, such as 512x16, found '" + one + "'");
      context.shapes.emplace(number_of("--shapes", one.substr(0, cross), 1, 65536), number_of("--shapes", one.substr(cross + 1), 1, 65536));
    }
  };
  return bench_command(bench, words);
}

}  // namespace
}  // namespace millrace::bench

int main(int count, char** arguments) {
  using namespace millrace::bench;
  millrace::app::hold_standard_streams();
  std::signal(SIGPIPE, SIG_IGN);  // a peer that ended is an error of write
  const auto command = [&] {
    try {
      return gpu_command({arguments + 1, arguments + count});
    } catch (const NoDevice& error) {
      millrace::app::complain("millrace", error.what());
      const char* required = std::getenv("MILLRACE_REQUIRE_CUDA");
      return required != nullptr && std::string(required) == "1" ? millrace::app::failed : skipped;
    }
  };
  return millrace::app::framed<UsageError>("millrace", command, "bench gpu: ", " (millrace bench gpu --help explains)");
}
