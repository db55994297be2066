// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <optional>

#include <fmt/format.h>

#include <support/child.h>
#include <support/scratch_folder.h>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/files/npy.h>
#include <millrace/streaming/audio/wav.h>
#include <millrace/streaming/client/file_plan.h>
#include <millrace/streaming/config/stream_config.h>

#include "demos.h"
#include "screen.h"
#include "serving.h"

namespace millrace::demo {
namespace {

namespace fs = std::filesystem;
using app::Child;
constexpr std::size_t sessions = 64;

struct Prompt {
  fs::path path;
  std::string name;
  double seconds = 0;
};

/// The longest English prompts, ties by name.
std::vector<Prompt> longest_prompts(const std::string& sounds) {
  std::vector<Prompt> all;
  std::error_code error;
  for (const fs::directory_entry& folder : fs::directory_iterator(sounds, error)) {
    if (!folder.is_directory() || !folder.path().filename().string().starts_with("en")) continue;
    for (const fs::directory_entry& file : fs::recursive_directory_iterator(folder.path()))
      if (file.path().extension() == ".wav")
        all.push_back({file.path(), file.path().lexically_relative(folder.path()).string(), read_wav(file.path().string()).seconds()});
  }
  if (all.size() < sessions)
    throw IoError(
        fmt::format("{}: expected at least {} .wav files below en*/, found {}: install the Debian package asterisk-core-sounds-en-wav",
                    sounds, sessions, all.size()));
  std::sort(all.begin(), all.end(),
            [](const Prompt& a, const Prompt& b) { return a.seconds != b.seconds ? a.seconds > b.seconds : a.name < b.name; });
  all.resize(sessions);
  return all;
}

struct Counts {
  unsigned long long ticks = 0, rows = 0, largest = 0;
};

struct Pass {
  std::vector<ClientRecord> records;
  Counts counts;
};

std::vector<std::string> names_of(const std::vector<Prompt>& prompts) {
  std::vector<std::string> names;
  for (const Prompt& prompt : prompts) names.push_back(fs::path(prompt.name).stem().string());
  return names;
}

/// All prompts at once, to a server that lives for this pass alone. `audio`: where what is heard is drawn.
Pass stream_prompts(const Speech& given, const std::vector<Prompt>& prompts, const app::ScratchFolder& scratch, double speed,
                    const AudioConfig* audio = nullptr) {
  const fs::path stats = scratch / "stats.json";
  Child server(
      {given.bin + "/millrace", "serve", given.model, "--config", given.config, "--port", "0", "--quiet", "--stats-json", stats.string()});
  const StreamUrl url = url_of(server);
  const StartedMessage described = describe_server(url);
  std::vector<ClientPlan> plans;
  for (const Prompt& prompt : prompts) plans.push_back(plan_file(prompt.path, described));
  ClientOptions options;
  options.speed = speed;
  options.paced_piece = std::chrono::milliseconds(10);
  Pass pass;
  std::optional<Screen> screen;
  if (audio != nullptr) {
    const double rate = audio->rate;
    screen.emplace(names_of(prompts), url.port, audio->window / rate, audio->hop / rate);
    options.on_result = [&screen](std::size_t voice, const ResultMessage& result, double seconds) {
      screen->heard(voice, result, seconds);
    };
  }
  pass.records = stream_plans(url, std::move(plans), std::move(options));
  screen.reset();
  server.terminate();
  server.finish();
  const std::string text = read_file(stats);
  Counts& counts = pass.counts;
  if (std::sscanf(text.c_str(), R"({"ticks": %llu, "rows": %llu, "largest": %llu})", &counts.ticks, &counts.rows, &counts.largest) != 3)
    throw ParseError(stats.string() + ": expected ticks, rows and largest, found '" + text + "'");
  for (std::size_t i = 0; i < prompts.size(); ++i)
    if (!pass.records[i].error.empty()) throw IoError(prompts[i].path.string() + ": " + pass.records[i].error);
  return pass;
}

double seconds_of(const Pass& pass) {
  auto last = pass.records.front().begun;
  for (const ClientRecord& record : pass.records)
    if (!record.received.empty()) last = std::max(last, record.received.back());
  return std::chrono::duration<double>(last - pass.records.front().begun).count();
}

/// For each reply, in milliseconds: from the instant when the last sample of its window was due, to its receipt. The sinc converter's
/// look-ahead counts as lag.
std::vector<double> lags(const Pass& pass, const std::vector<Prompt>& prompts, const AudioConfig& audio) {
  std::vector<double> all;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const ClientRecord& record = pass.records[i];
    for (std::size_t k = 0; k < record.received.size(); ++k) {
      const double window_end =
          static_cast<double>(k * static_cast<std::size_t>(audio.hop) + static_cast<std::size_t>(audio.window)) / audio.rate;
      const double due = std::min(window_end, prompts[i].seconds);
      all.push_back(1000 * (std::chrono::duration<double>(record.received[k] - record.begun).count() - due));
    }
  }
  std::sort(all.begin(), all.end());
  return all;
}

double percentile(const std::vector<double>& sorted, double p) {
  return sorted.at(static_cast<std::size_t>(p * static_cast<double>(sorted.size() - 1)));
}

/// The output of the whole file, computed in another process on two threads.
std::string offline_bytes(const Speech& given, const Prompt& prompt, const AudioConfig& audio, const std::string& output,
                          const app::ScratchFolder& scratch) {
  const fs::path folder = scratch / "offline";
  Child run({given.bin + "/millrace", "run", given.model, "--config", given.config, "--input", audio.input + "=" + prompt.path.string(),
             "--threads", "2", "--output-dir", folder.string()});
  run.finish();
  const Tensor made = read_npy(folder / (output + ".npy"));
  return std::string(static_cast<const char*>(made.raw()), made.bytes());
}

void print_segments(const Prompt& prompt, const ClientRecord& record) {
  std::string text;
  for (const SegmentMessage& segment : record.segments) text += fmt::format(" {:.2f}-{:.2f}", segment.start, segment.end);
  fmt::print("{} ({:.1f} s): speech at{}\n", prompt.name, prompt.seconds, text.empty() ? " no time" : text);
}

}  // namespace

int speech(const Speech& given) {
  const StreamConfig config = read_stream_config(given.config);
  if (!config.audio) throw ArgumentError(given.config + ": expected [audio], found none");
  const std::vector<Prompt> prompts = longest_prompts(given.sounds);
  const app::ScratchFolder scratch("millrace-demo");
  double audio_seconds = 0;
  for (const Prompt& prompt : prompts) audio_seconds += prompt.seconds;

  fmt::print(stderr, "demo: {} prompts, {:.0f} s of speech, as fast as the server takes them\n", prompts.size(), audio_seconds);
  const Pass fast = stream_prompts(given, prompts, scratch, 0);
  fmt::print(stderr, "demo: the same in real time: {:.0f} s\n", prompts.front().seconds);
  const Pass paced = stream_prompts(given, prompts, scratch, 1, given.draws ? &*config.audio : nullptr);

  fmt::print(stderr, "demo: the same with millrace run\n");
  int equal = 0;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const ClientRecord& record = fast.records[i];
    const std::string whole = offline_bytes(given, prompts[i], *config.audio, record.started->outputs.at(0).name, scratch);
    const bool same = !whole.empty() && record.outputs[0] == whole && paced.records[i].outputs[0] == whole;
    equal += same ? 1 : 0;
    if (!given.draws) print_segments(prompts[i], paced.records[i]);
  }
  const std::vector<double> lag = lags(paced, prompts, *config.audio);
  fmt::print("demo: sessions={} audio_seconds={:.1f} x_realtime={:.1f} lag_p50_ms={:.2f} lag_p99_ms={:.2f}\n", prompts.size(),
             audio_seconds, audio_seconds / seconds_of(fast), percentile(lag, 0.5), percentile(lag, 0.99));
  fmt::print("demo: ticks={} rows_per_tick_mean={:.2f} rows_per_tick_max={}\n", fast.counts.ticks,
             static_cast<double>(fast.counts.rows) / static_cast<double>(std::max(1ull, fast.counts.ticks)), fast.counts.largest);
  fmt::print("demo: streamed == offline, bit for bit: {}/{}\n", equal, prompts.size());
  return equal == static_cast<int>(prompts.size()) ? 0 : 1;
}

}  // namespace millrace::demo
