// SPDX-License-Identifier: Apache-2.0
// A loop over an LSTM cell on a device, some iterations at a time.
#include <algorithm>
#include <cmath>

#include <millrace/runtime/loops/cuda_recurrent/device_lstm.h>
#include <millrace/runtime/loops/cuda_recurrent/internal/device_rows.h>

namespace millrace {
namespace {

/// The cost of a run of iterations besides its iterations: 45 µs of the host's time for its launches, and on the device a wait, a product and the start
/// of a kernel (measured on an H100); and R comes on chip again.
constexpr double pass_ns = 80'000, bytes_a_ns = 1000;

}  // namespace

/// A run of the loop in runs of iterations: for each, the ops before the cell and x·W for its rows, behind the work that made them, and the
/// kernel. All that is there is enqueued without waiting for it, so the host runs ahead of the device: each run of iterations begins on the
/// device as soon as its inputs are made, while the kernel that makes them goes on.
class DeviceLstm::PassingRun final : public LoopRun {
 public:
  PassingRun(const DeviceLstm& of, LoopOperands given, StreamRef where);

  const LoopForm& form() const noexcept override { return loop_.form(); }
  std::int64_t iterations() const noexcept override { return operands_.iterations; }
  std::int64_t iterations_done() const noexcept override { return done_; }
  bool passes_slots() const noexcept override { return true; }
  std::int64_t stride() const override { return stride_; }
  std::vector<std::pair<TensorArray, std::int64_t>> next_slots() const override;
  bool advance(std::int64_t end) override;
  std::vector<SlotValue> finish() override;
  std::vector<std::pair<TensorArray, LoopOperands::Slots>> marked_slots() const override { return written_slots(operands_); }
  std::string reason() const override { return why_; }

 private:
  std::size_t at(std::int64_t iteration) const { return static_cast<std::size_t>(iteration); }
  std::int64_t best_stride() const;
  std::int64_t issued(std::int64_t end) const;
  LstmSequenceRows rows_of(Values& values, std::int64_t end);
  bool enqueue(std::int64_t end);
  void write(std::int64_t end);

  const DeviceLstm& loop_;
  LoopOperands operands_;
  StreamRef stream_;
  DeviceRows rows_;
  Values shared_;
  std::optional<PackedLstmSequence> weights_;  // of all runs of iterations
  LstmSequenceRows whole_;                     // all rows
  bool filled_ = false;                        // every input is filled, or is being filled
  std::shared_ptr<Watermark> marked_;          // of all iterations; where slots come one by one, of the last run of iterations
  std::int64_t stride_ = 1;
  std::int64_t done_ = 0;
  std::int64_t written_ = 0;
  bool failed_ = false;
  std::string why_;
};

bool DeviceLstm::may_pass() const {
  const std::vector<VarId>& outputs = loop_.outputs();
  return !behind_ && std::all_of(outputs.begin(), outputs.end(), [this](VarId var) { return of_cell(var); });
}

/// Where the device has fewer streams than the group has loops, a loop that comes behind another on a stream begins when that one is enqueued as a
/// whole: by turns, each run of iterations would wait for the end of one that is to come after it.
bool DeviceLstm::begins_early(const TensorArray& array, const LoopOperands::Slots& slots, std::int64_t iterations) const {
  if (!may_pass() || device_->stream_count() < 2 || iterations <= 0) return false;
  if (slots.stride != 1 || slots.first < 0 || array.is_window() || slots.first + iterations > array.size()) return false;
  const auto filling = array.filling();
  return filling != nullptr && filling->watermark != nullptr && (has_stream_ || array.filled() != nullptr);
}

std::unique_ptr<LoopRun> DeviceLstm::begin_passing(LoopOperands operands, StreamRef stream) const {
  return std::make_unique<PassingRun>(*this, std::move(operands), stream);
}

DeviceLstm::PassingRun::PassingRun(const DeviceLstm& of, LoopOperands given, StreamRef where)
    : loop_(of), operands_(std::move(given)), stream_(where), rows_{operands_, of.form(), where, {}, {}, {}, {}, {}, {}, {}, {}} {
  rows_.read(true);
  const std::vector<Program::Port>& ports = loop_.loop_.step().inputs();
  const std::size_t before = operands_.inputs.size() + operands_.states.size();
  for (std::size_t i = 0; i < operands_.shared.size(); ++i) shared_[ports[before + i].var] = brought(operands_.shared[i], stream_);
  whole_ = loop_.sequence(rows_, stream_);
  filled_ =
      std::all_of(operands_.inputs.begin(), operands_.inputs.end(), [](const TensorArray& array) { return array.filling() != nullptr; }) ||
      issued(operands_.iterations) == operands_.iterations;
  if (filled_) marked_ = loop_.watermark(rows_, stream_);
  stride_ = best_stride();
}

std::int64_t DeviceLstm::PassingRun::best_stride() const {
  const LstmSequencePlan& plan = *loop_.plan_;
  const LstmDesc& desc = plan.desc();
  const double step = std::max(1.0, loop_.schedule(rows_.counts[0]).step_ns);
  const auto fetched = static_cast<double>(desc.hidden) * 4 * static_cast<double>(desc.hidden) * static_cast<double>(size_of(desc.dtype));
  const double cost = pass_ns + fetched / bytes_a_ns;
  // As if the loops of the group were one chain, in which each begins a run of iterations later than the one before it.
  const double begins = std::max(1, loop_.beside_ - 1);
  const double best = std::ceil(std::sqrt(static_cast<double>(iterations()) * cost / (step * begins)));
  return static_cast<std::int64_t>(std::clamp(best, 1.0, static_cast<double>(std::min(iterations(), iterations_a_launch))));
}

/// The iteration, up to `end`, before which all slots that are read are issued.
std::int64_t DeviceLstm::PassingRun::issued(std::int64_t end) const {
  for (std::size_t i = 0; i < operands_.inputs.size(); ++i) {
    const TensorArray& array = operands_.inputs[i];
    std::int64_t iteration = done_;
    if (array.filling()) iteration = std::max(iteration, array.issued() - operands_.read[i].first);
    while (iteration < end && array.peek(operands_.read[i].first + iteration)) ++iteration;
    end = std::min(end, iteration);
  }
  return end;
}

std::vector<std::pair<TensorArray, std::int64_t>> DeviceLstm::PassingRun::next_slots() const {
  std::vector<std::pair<TensorArray, std::int64_t>> made;
  if (done_ == iterations()) return made;
  for (std::size_t i = 0; i < operands_.inputs.size(); ++i) {
    // A run of iterations that another loop's begins in the middle of would be two.
    const std::int64_t last = operands_.inputs[i].filling() ? std::min(done_ + stride_, iterations()) - 1 : done_;
    made.emplace_back(operands_.inputs[i], operands_.read[i].first + done_);
    if (last > done_) made.emplace_back(operands_.inputs[i], operands_.read[i].first + last);
  }
  return made;
}

/// The kernel's operands for the iterations from `done` on that have rows, as if there were no others.
LstmSequenceRows DeviceLstm::PassingRun::rows_of(Values& values, std::int64_t end) {
  const std::int64_t from = rows_.offsets[at(done_)], until = rows_.offsets[at(end)];
  LstmSequenceRows made = whole_;
  loop_.run_piece(loop_.loop_.before(), loop_.before_, values);
  if (!weights_) weights_ = loop_.packed_ ? *loop_.packed_ : loop_.packed(values, stream_);
  loop_.take_steps(made, values, stream_);
  made.y = whole_.y.rows(from, until);
  if (whole_.c_steps) made.c_steps = whole_.c_steps->rows(from, until);
  made.offsets.assign(1, 0);
  for (std::int64_t iteration = done_; iteration < end; ++iteration) made.offsets.push_back(rows_.offsets[at(iteration) + 1] - from);
  if (!whole_.places.empty()) made.places.assign(whole_.places.begin() + from, whole_.places.begin() + until);
  if (!whole_.slots.empty()) made.slots.resize(at(rows_.counts[at(done_)]));
  if (done_ > 0) {
    made.h = made.h_out;
    made.c = made.c_out;
  }
  made.watermark = marked_;
  made.steps_before = filled_ ? done_ : 0;
  return made;
}

/// False: a slot does not fit.
bool DeviceLstm::PassingRun::enqueue(std::int64_t end) {
  Values values = shared_;
  const std::vector<Program::Port>& ports = loop_.loop_.step().inputs();
  for (std::size_t i = 0; i < operands_.inputs.size(); ++i) {
    std::optional<Tensor> part = rows_.part(i, done_, end);
    if (!part) return false;
    values[ports[i].var] = *std::move(part);
  }
  std::int64_t live = end;
  while (live > done_ && rows_.counts[at(live) - 1] == 0) --live;
  const bool seen = std::any_of(loop_.loop_.outputs().begin(), loop_.loop_.outputs().end(), [&](VarId var) { return loop_.of_cell(var); });
  if (!filled_) marked_ = seen && live > done_ ? stream_.watermark(static_cast<std::uint64_t>(live - done_)) : nullptr;
  if (live > done_) {
    const LstmSequenceRows piece = rows_of(values, end);
    const LstmSchedule schedule = loop_.schedule(rows_.counts[at(done_)]);
    millrace::run(*loop_.plan_, *weights_, piece, stream_, &schedule);
  }
  done_ = end;
  return true;
}

/// Where the device refuses, or slots do not fit, the loop goes on iteration by iteration.
bool DeviceLstm::PassingRun::advance(std::int64_t end) {
  end = issued(std::min(end, iterations()));
  if (failed_ || end <= done_) return false;
  const bool enqueued = unless_refused(why_, [&] { return enqueue(end); });
  failed_ = !enqueued;
  if (enqueued) write(end);  // an error of an array is the run's: the iterations are on their way
  return enqueued;
}

/// The slots of the iterations from `written` on. An array is filled as far as work is enqueued for it, so that the loop that reads it enqueues its own
/// meanwhile: the device gets it in the order in which it can begin.
void DeviceLstm::PassingRun::write(std::int64_t end) {
  for (std::size_t i = 0; i < operands_.outputs.size(); ++i) {
    const TensorArray& array = operands_.outputs[i];
    const std::int64_t first = operands_.written[i].first;
    const Tensor& made = loop_.loop_.outputs()[i] == loop_.loop_.h_next ? whole_.y : *whole_.c_steps;
    if (filled_ && array.is_fixed() && first == 0 && array.size() == operands_.iterations) {
      if (written_ == 0)
        array.begin_fill(made, rows_.offsets, marked_, end);
      else
        array.issue(end);
      continue;
    }
    for (std::int64_t iteration = written_; iteration < end; ++iteration) {
      const Tensor slot = made.rows(rows_.offsets[at(iteration)], rows_.offsets[at(iteration) + 1]);
      const auto step = static_cast<std::uint64_t>(filled_ ? iteration + 1 : iteration - written_ + 1);
      const bool empty = slot.dim(0) == 0;
      array.write(first + iteration, LoDTensor(part_of(slot, empty ? Point() : marked_ ? Point(marked_, step) : made.ready())));
    }
  }
  written_ = end;
}

std::vector<SlotValue> DeviceLstm::PassingRun::finish() { return loop_.last_states(rows_, whole_, done_, stream_); }

}  // namespace millrace
