// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <optional>

#include <fmt/format.h>

#include <bench/families.h>
#include <bench/library/lstm_problem.h>
#include <bench/live_trials.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/linear.h>
#include <millrace/runtime/program/storage.h>
#include <millrace/tensor/error.h>
#include <support/scratch_folder.h>

namespace millrace::bench {
namespace {

constexpr std::int64_t features = 80, units = 128, values = 64;
constexpr double frame_seconds = 0.04, most_p99_ms = 40, most_p999_ms = 100;

/// f32 rows of 80 features, a GRU of 128 units, a dense layer of 64; random weights.
Program small_model() {
  const auto weight = [](std::int64_t from, std::int64_t to, std::uint64_t seed) {
    return random_tensor(DDim{from, to}, seed, 1 / std::sqrt(static_cast<float>(from)));
  };
  Program program;
  const build::Guard guard(program);
  const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, features}, 1));
  layers::GruWeights gru;
  gru.input = weight(features, 3 * units, 1);
  gru.recurrent = weight(units, 3 * units, 2);
  gru.bias = random_tensor(DDim{3 * units}, 3, 0.1f);
  gru.recurrent_bias = random_tensor(DDim{3 * units}, 4, 0.1f);
  const build::Var h = layers::gru({x}, {gru}).y;
  build::output("y", layers::linear(h, {weight(units, values, 5), random_tensor(DDim{values}, 6, 0.1f)}));
  return program;
}

const char* words_of(ReplyFormat reply) { return reply == ReplyFormat::json ? "JSON" : "binary"; }

class LoadRows {
 public:
  explicit LoadRows(Context& context) : context_(context) { save_program(small_model(), model_); }

  /// The lags of a load that is given, and whether each row was answered.
  void held(ReplyFormat reply) const {
    const std::int64_t sessions = context_.quick ? 16 : 1000;
    const std::string shape = fmt::format("GRU 128, {} x 25 Hz, {} replies", sessions, words_of(reply));
    LiveLoad load = load_of(reply);
    load.crowd.seconds = 10;
    std::optional<Trial> trial;
    const std::string why = why_not([&] { trial = Trials(context_, load).run(sessions); });
    const auto emit = [&](const char* what, Unit unit, double goal, auto figure) {
      Row row = row_of(shape + ": " + what, unit, goal);
      row.note = why;
      if (trial) {
        const double ours = figure(trial->saw);
        if (std::isfinite(ours)) row.ours = ours;
        row.note = std::isfinite(ours) ? notes_of(*trial) : "some replies did not come; " + notes_of(*trial);
      }
      context_.emit(std::move(row));
    };
    emit("p99 lag", Unit::seconds, most_p99_ms / 1000, [](const CrowdSaw& saw) { return saw.p99_ms / 1000; });
    emit("p99.9 lag", Unit::seconds, most_p999_ms / 1000, [](const CrowdSaw& saw) { return saw.p999_ms / 1000; });
    const double sent = trial ? static_cast<double>(trial->saw.expected) : 0;
    emit("rows answered", Unit::streams, sent,
         [](const CrowdSaw& saw) { return static_cast<double>(std::max<std::int64_t>(saw.received - saw.errors, 0)); });
  }

  /// The most sessions whose lags stay below the same limits.
  void most(ReplyFormat reply) const {
    const std::string shape = fmt::format("GRU 128 at 25 Hz, {} replies", words_of(reply));
    Row row = row_of(shape + ": sessions a core", Unit::streams, 2000);
    std::optional<Trial> trial;
    row.note = why_not([&] {
      const auto [sessions, seen] = Trials(context_, load_of(reply)).bisect();
      row.ours = static_cast<double>(sessions);
      trial = seen;
    });
    if (trial) row.note = lags_of(trial->saw) + ", " + notes_of(*trial);
    context_.emit(std::move(row));
    if (trial) emit_costs(context_, "R1", shape, *trial);
  }

  /// The server's memory for sessions each of which sends a row now and then.
  void idle() const {
    const std::int64_t sessions = context_.quick ? 64 : 8000;
    LiveLoad load = load_of(ReplyFormat::binary);
    load.crowd.step_seconds = 0.8;
    Row row = row_of(fmt::format("GRU 128, {} sessions of a row each 0.8 s: memory", sessions), Unit::bytes, 256 << 20);
    std::string note;
    const std::string why = why_not([&] {
      const Trial trial = Trials(context_, load).run(sessions);
      if (trial.saw.errors > 0) throw IoError(trial.saw.why);
      row.ours = trial.peak_bytes;
      note = "the most that was resident; " + lags_of(trial.saw) + ", " + notes_of(trial);
    });
    row.note = why.empty() ? note : why;
    context_.emit(std::move(row));
  }

 private:
  LiveLoad load_of(ReplyFormat reply) const {
    LiveLoad load;
    load.served = {model_};
    load.crowd.noise = Noise::f32;
    load.crowd.step_elements = features;
    load.crowd.step_seconds = frame_seconds;
    load.crowd.reply = reply;
    load.most_p99_ms = most_p99_ms;
    load.most_p999_ms = most_p999_ms;
    return load;
  }
  static Row row_of(std::string shape, Unit unit, double limit) {
    Row row;
    row.id = "R1";
    row.shape = std::move(shape);
    row.unit = unit;
    row.peer_name = "goal";
    row.peer = limit;
    row.goal = 1;
    return row;
  }
  static std::string notes_of(const Trial& trial) {
    return fmt::format("{} errors{}; the server's core {:.0f} % busy, the clients' {:.0f} %", trial.saw.errors,
                       trial.saw.errors > 0 ? " (" + trial.saw.why + ")" : "", 100 * trial.server_busy, 100 * trial.saw.busy);
  }
  /// The note where the call fails; else empty.
  template <class Call>
  static std::string why_not(Call call) {
    try {
      call();
      return {};
    } catch (const Error& error) {
      return std::string("not measured: ") + error.what();
    }
  }

  Context& context_;
  app::ScratchFolder scratch_{"millrace-bench"};
  std::string model_ = scratch_ / "gru.mr";
};

}  // namespace

void measure_load(Context& context) {
  const LoadRows rows(context);
  for (const ReplyFormat reply : {ReplyFormat::binary, ReplyFormat::json}) rows.held(reply);
  for (const ReplyFormat reply : {ReplyFormat::binary, ReplyFormat::json}) rows.most(reply);
  rows.idle();
}

}  // namespace millrace::bench
