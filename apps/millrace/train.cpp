// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <memory>
#include <optional>

#include <sys/ioctl.h>
#include <unistd.h>

#include <fmt/format.h>

#include <millrace/runtime/autodiff/memory_policy_text.h>
#include <millrace/runtime/executor/kept_memory.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/runtime/training/errors.h>
#include <millrace/runtime/training/train_job.h>

#include <support/standard_streams.h>

#include "commands.h"
#include "train_ranks.h"

namespace millrace::app {
namespace {

namespace training = millrace::training;

struct TrainFlags {
  std::string config;
  std::string data;
  std::string output;
  bool resume = false;
  bool quiet = false;
  bool stats = false;
  std::string memory;
  std::optional<std::uint64_t> seed;
  std::optional<std::int64_t> epochs;
  int threads = 1;
  int ranks = 1;
  char** arguments = nullptr;
};

std::atomic<bool> stop_asked{false};
static_assert(std::atomic<bool>::is_always_lock_free);

/// The first signal asks for an end, the second one ends.
void ask_to_stop(int number) {
  stop_asked = true;
  std::signal(number, SIG_DFL);
}

std::string score_text(const std::string& prefix, const training::Score& score) {
  std::string text = fmt::format("{}loss {:.4f}", prefix, score.loss);
  if (score.accuracy) text += fmt::format(" accuracy {:.4f}", *score.accuracy);
  return text;
}

std::string duration_text(double seconds) {
  const std::int64_t whole = std::llround(std::max(0.0, seconds));
  return whole >= 3600 ? fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60)
                       : fmt::format("{}:{:02}", whole / 60, whole % 60);
}

/// Of the terminal that stdout is; 80 where it does not say.
std::size_t columns_of_terminal() {
  winsize size{};
  return ::ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : 80;
}

/// The text behind a bar of the share that is done, in so many columns: first the bar becomes shorter, then it is left out, then the text is cut. A line that
/// wraps would stay where it is, and be drawn again below.
std::string with_bar(const std::string& text, double done, std::size_t columns) {
  constexpr std::size_t most = 24, least = 4, around = 3;
  if (columns < text.size() + around + least) return text.substr(0, columns);
  const std::size_t cells = std::min(most, columns - text.size() - around);
  const std::size_t full = std::min(cells, static_cast<std::size_t>(done * static_cast<double>(cells)));
  return fmt::format("[{}{}] {}", std::string(full, '#'), std::string(cells - full, '.'), text);
}

/// A bar in a terminal; a line for each epoch elsewhere.
class Show final : public training::TrainObserver {
 public:
  explicit Show(bool quiet) : quiet_(quiet), terminal_(!quiet && draws_in_terminal()) {}
  /// The line ends, so that an error stands on one of its own.
  ~Show() override {
    if (open_) std::puts("");
  }

  void begins(const std::string& description) override { line("millrace: " + description); }
  void note(const std::string& text) override { line("millrace: " + text); }
  void after_batch(const Progress& progress) override {
    const auto now = std::chrono::steady_clock::now();
    if (!terminal_ || now - drawn_ < std::chrono::milliseconds(50)) return;
    drawn_ = now;
    const double done = (static_cast<double>(progress.epoch - 1) +
                         static_cast<double>(progress.batch) / static_cast<double>(std::max<std::int64_t>(1, progress.batches))) /
                        static_cast<double>(progress.epochs);
    fmt::print("\r{}\x1b[K",
               with_bar(fmt::format("epoch {}/{} {} {:.0f} seq/s {} left", progress.epoch, progress.epochs, score_text("", progress.train),
                                    progress.sequences_per_second, duration_text(progress.seconds_left)),
                        done, columns_of_terminal() - 1));
    std::fflush(stdout);
    open_ = true;
  }
  void after_epoch(const training::EpochMetrics& metrics, const Progress& progress) override {
    if (quiet_) return;
    if (terminal_ && metrics.epoch < progress.epochs && metrics.epoch % std::max<std::int64_t>(1, progress.epochs / 10) != 0) {
      after_batch(progress);
      return;
    }
    std::string text = fmt::format("epoch {}/{} {}", metrics.epoch, progress.epochs, score_text("", metrics.train));
    if (metrics.validation) text += " " + score_text("validation ", *metrics.validation);
    line(text + fmt::format(" {:.0f} seq/s {} left", progress.sequences_per_second, duration_text(progress.seconds_left)));
  }

 private:
  void line(const std::string& text) {
    if (quiet_) return;
    if (open_) fmt::print("\r\x1b[K");
    open_ = false;
    fmt::print("{}\n", text);
    std::fflush(stdout);
  }

  bool quiet_;
  bool terminal_;
  bool open_ = false;
  std::chrono::steady_clock::time_point drawn_;
};

int train_as(const RankWorld* ranks, const TrainFlags& flags) {
  const training::TrainConfig config = training::read_train_config(flags.config);
  if (flags.ranks > 1 && ranks == nullptr) return start_ranks(flags.ranks, flags.arguments);
  training::TrainJobOptions options;
  options.resume = flags.resume;
  options.seed = flags.seed;
  options.epochs = flags.epochs;
  if (!flags.data.empty()) options.data = flags.data;
  if (!flags.output.empty()) options.folder = flags.output;
  options.threads = flags.threads;
  options.build = "millrace " MILLRACE_VERSION;
  options.stop = &stop_asked;
  if (!flags.memory.empty()) options.memory = parse_memory_policy(flags.memory);
  const auto kept = std::make_shared<KeptMemory>();
  Tracer tracer(KeptMemory::counting(kept));
  if (flags.stats) options.tracer = &tracer;
  if (ranks != nullptr) options.ranks = &ranks->communicator();
  std::signal(SIGINT, ask_to_stop);
  std::signal(SIGTERM, ask_to_stop);
  if (std::signal(SIGHUP, ask_to_stop) == SIG_IGN) std::signal(SIGHUP, SIG_IGN);  // of a terminal that closes, unless nohup started the job
  std::signal(SIGUSR1, ask_to_stop);  // mpirun hands it on, and waits; behind a SIGTERM it kills the ranks in a second
  Show show(flags.quiet);
  training::TrainResult result;
  try {
    result = naming(flags.config, [&] { return training::run_train_job(config, options, show); });
  } catch (const training::StoppedError&) {
    if (ranks == nullptr || ranks->communicator().rank() == 0) throw;
    // Rank 0 says it for all. mpirun kills the other ranks once one has failed, and rank 0 may not have said it yet.
    return started_by_mpirun() ? 0 : failed;
  }
  if (ranks != nullptr && ranks->communicator().rank() > 0) return 0;
  if (!flags.quiet) {
    fmt::print("{}", training::curve_as_text(result.epochs));
    std::string files;
    for (const std::string& file : result.files) files += " " + file;
    fmt::print("millrace: in {}:{}\n", result.folder.string(), files);
  }
  if (flags.stats) fmt::print("millrace: {}\n", kept->to_string());
  fmt::print("{}\n", training::final_line(result.final));
  return 0;
}

int train(const TrainFlags& flags) {
  const std::unique_ptr<RankWorld> ranks = join_ranks();
  try {
    return train_as(ranks.get(), flags);
  } catch (const CommunicationError&) {  // mpirun ends the others as soon as a rank dies: whoever noticed it says so at once
    throw;
  } catch (const std::exception&) {
    if (ranks != nullptr && started_by_mpirun() && said_by_another(ranks->communicator().rank(), stop_asked)) return failed;
    throw;
  }
}

}  // namespace

void add_train(CLI::App& app, Action& action, char** argv) {
  const auto flags = std::make_shared<TrainFlags>();
  flags->arguments = argv;
  CLI::App* command = app.add_subcommand("train", "Trains a model on sequences of any lengths, as a TOML file says (docs/training.md)");
  command->add_option("CONFIG", flags->config, "FILE.toml: data, layers, training")->required();
  command->add_option("--data", flags->data, "The folder in which relative names of data begin; default: that of CONFIG");
  command->add_option("--output", flags->output, "The folder of the results and checkpoints, in the place of CONFIG's");
  command->add_flag("--resume", flags->resume,
                    "Goes on from the newest whole checkpoint, to the same bits as if the job had never stopped");
  command->add_option("--seed", flags->seed, "In the place of CONFIG's")->check(CLI::Range(std::int64_t{0}, std::int64_t{2147483647}));
  command->add_option("--epochs", flags->epochs, "In the place of CONFIG's")->check(CLI::Range(std::int64_t{1}, std::int64_t{1000000000}));
  command->add_option("--threads", flags->threads, "Threads that a kernel may split over; the results do not depend on it")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      ->add_option("--ranks", flags->ranks,
                   "Processes on this machine that share each batch, by mpirun. Where mpirun, or RANK and WORLD_SIZE, have started several "
                   "processes, "
                   "they share it without this flag")
      ->check(CLI::Range(1, 1024))
      ->capture_default_str();
  command
      ->add_option("--memory", flags->memory, "keep, spill, recompute, recompute(ITERATIONS) or truncate(K1, K2), in the place of CONFIG's")
      ->check([](const std::string& text) {
        try {
          static_cast<void>(parse_memory_policy(text));
          return std::string();
        } catch (const ArgumentError& error) {
          return std::string(error.what());
        }
      });
  command->add_flag("--stats", flags->stats, "Prints a line with the bytes that loops kept for their backward loops");
  command->add_flag("--quiet", flags->quiet, "Prints the final line alone");
  command->callback([flags, &action] { action = [flags] { return train(*flags); }; });
}

}  // namespace millrace::app
