// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <set>

#include <fmt/format.h>
#include <unistd.h>

#include <millrace/streaming/client/file_plan.h>
#include <millrace/streaming/client/stream_client.h>

#include "commands.h"
#include "model_flags.h"
#include "output_files.h"

namespace millrace::app {
namespace {

struct StreamFlags {
  std::string url;
  std::vector<std::string> files;
  double speed = 1;
  double piece_ms = 20;
  std::string folder;
};

/// A bar on stderr, redrawn when it has moved.
class Bar {
 public:
  explicit Bar(bool shown) : shown_(shown) {}
  ~Bar() {
    if (drawn_ >= 0) std::fputs("\r\033[K", stderr);
  }
  void show(const ClientProgress& progress) {
    constexpr int width = 40;
    const int cells =
        progress.bytes == 0 ? width : static_cast<int>(width * static_cast<double>(progress.sent) / static_cast<double>(progress.bytes));
    if (!shown_ || (cells == drawn_ && progress.over == over_)) return;
    drawn_ = cells;
    over_ = progress.over;
    std::string bar(static_cast<std::size_t>(cells), '#');
    bar.resize(width, '.');
    fmt::print(stderr, "\r[{}] {}/{} sessions over", bar, progress.over, progress.sessions);
    std::fflush(stderr);
  }

 private:
  const bool shown_;
  int drawn_ = -1;
  std::size_t over_ = 0;
};

NamedOutputs outputs_of(const ClientRecord& record) {
  NamedOutputs outputs;
  for (std::size_t i = 0; i < record.outputs.size(); ++i) {
    const PortSpec& port = record.started->outputs[i];
    Tensor made(port.dtype, port.shape.inserted(0, static_cast<std::int64_t>(record.received.size())));
    made.storage()->mark_written();
    if (made.bytes() != record.outputs[i].size())
      throw ParseError(fmt::format("output '{}': expected {} bytes, found {}", port.name, made.bytes(), record.outputs[i].size()));
    std::copy(record.outputs[i].begin(), record.outputs[i].end(), static_cast<char*>(made.raw_mutable()));
    outputs.emplace_back(port.name, std::move(made));
  }
  return outputs;
}

/// A folder's name for each file: its stem, numbered where another file has it.
std::vector<std::string> folders_of(const std::vector<std::string>& files) {
  std::set<std::string> taken;
  std::vector<std::string> names;
  for (const std::string& file : files) {
    const std::string stem = file_name_of(std::filesystem::path(file).stem().string());
    std::string name = stem;
    for (int number = 2; !taken.insert(name).second; ++number) name = fmt::format("{}-{}", stem, number);
    names.push_back(name);
  }
  return names;
}

int stream(const StreamFlags& flags) {
  StreamUrl url;
  try {
    url = parse_stream_url(flags.url);
  } catch (const ParseError& error) {
    throw UsageError(error.what());
  }
  const StartedMessage server = describe_server(url);
  std::vector<ClientPlan> plans;
  for (const std::string& file : flags.files) plans.push_back(plan_file(file, server));
  ClientOptions options;
  options.speed = flags.speed;
  options.paced_piece = std::chrono::milliseconds(std::max<std::int64_t>(1, static_cast<std::int64_t>(flags.piece_ms)));
  std::vector<ClientRecord> records;
  const auto begin = std::chrono::steady_clock::now();
  {
    Bar bar(::isatty(STDERR_FILENO) != 0);
    options.on_progress = [&bar](const ClientProgress& progress) { bar.show(progress); };
    records = stream_plans(url, std::move(plans), std::move(options));
  }
  const double seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();

  const std::vector<std::string> folders = folders_of(flags.files);
  std::size_t good = 0, steps = 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const ClientRecord& record = records[i];
    steps += record.received.size();
    for (const SegmentMessage& segment : record.segments)
      fmt::print("{}: {} {:.3f} {:.3f}\n", flags.files[i], segment.label, segment.start, segment.end);
    if (!record.error.empty()) {
      fmt::print(stderr, "millrace: {}: {}\n", flags.files[i], record.error);
      continue;
    }
    ++good;
    if (!flags.folder.empty()) write_outputs(std::filesystem::path(flags.folder) / folders[i], outputs_of(record));
  }
  fmt::print("millrace: sessions={} ended={} steps={} seconds={:.3f}\n", records.size(), good, steps, seconds);
  return good == records.size() ? 0 : 1;
}

}  // namespace

void add_stream(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<StreamFlags>();
  CLI::App* command = app.add_subcommand("stream", "Sends files to a server as concurrent live sessions");
  command->add_option("URL", flags->url, "tcp://HOST:PORT or ws://HOST:PORT/stream")->required();
  command->add_option("FILE", flags->files, "FILE.wav for a server that takes audio, else FILE.npy with time as axis 0")->required();
  command->add_option("--speed", flags->speed, "Times real time, for sound; 0: as fast as the server takes it")
      ->check(within(0, 1e6))
      ->capture_default_str();
  command->add_option("--piece-ms", flags->piece_ms, "How much sound a piece holds")->check(within(1, 10000))->capture_default_str();
  command->add_option("--output-dir", flags->folder, "Writes DIR/FILE/NAME.npy for each file and output NAME");
  command->callback([flags, &action] { action = [flags] { return stream(*flags); }; });
}

}  // namespace millrace::app
