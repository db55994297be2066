// SPDX-License-Identifier: Apache-2.0
// Slots that come to a fused loop, and leave it, while its iterations run.
#include <algorithm>
#include <cmath>

#include <millrace/runtime/array/slab.h>
#include <millrace/runtime/loops/cpu_fused/internal/fused_state.h>

namespace millrace {
namespace {

/// Multiply-adds that take as long as passing a run of iterations on: some tasks, and a message.
constexpr std::int64_t pass_work = 1 << 20;
/// Fewer rows are a poor product.
constexpr std::int64_t product_rows = 16;

}  // namespace

bool FusedRun::State::arrives(std::size_t input) const {
  const bool fed = input < operands.sources.size() && operands.sources[input].run != nullptr;
  return !fed && input < operands.arriving.size() && operands.arriving[input];
}

/// The rows that arrive for one iteration; false when some of them are not there, or are others than were expected.
bool FusedRun::State::bind_iteration(std::int64_t iteration, StreamRef stream) {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (!arrives(i)) continue;
    try {
      input_rows.push_back(numbers(binder->slot(i, iteration), stream));
    } catch (const Error&) {
      return false;
    }
    // (A shrunk one has more rows than the iteration.)
    const std::int64_t count = input_rows.back().dim(0);
    if (loop->form().inputs[i].shrinks ? count < rows_of(iteration) : count != rows_of(iteration)) return false;
    inputs[i].first[static_cast<std::size_t>(iteration)] = static_cast<const std::byte*>(input_rows.back().raw());
  }
  return true;
}

bool FusedRun::passes_slots() const noexcept {
  const State& state = *state_;
  for (std::size_t i = 0; i < state.operands.inputs.size(); ++i)
    if (state.arrives(i)) return true;
  for (std::size_t i = 0; i < state.operands.outputs.size(); ++i)
    if (state.leaves(i)) return true;
  return false;
}

std::vector<std::pair<TensorArray, std::int64_t>> FusedRun::next_slots() const {
  const State& state = *state_;
  std::vector<std::pair<TensorArray, std::int64_t>> made;
  if (state.bound >= state.operands.iterations) return made;
  for (std::size_t i = 0; i < state.operands.inputs.size(); ++i) {
    const auto [first, stride] = state.operands.read[i];
    const std::int64_t slot = first + stride * state.bound;
    if (state.arrives(i) && slot >= 0) made.emplace_back(state.operands.inputs[i], slot);
  }
  return made;
}

bool FusedRun::bind(std::int64_t end) {
  State& state = *state_;
  const std::int64_t begin = state.bound, last = std::min(end, state.operands.iterations);
  while (state.bound < last && state.bind_iteration(state.bound, stream_)) ++state.bound;
  return state.bound > begin || begin >= last;
}

void FusedRun::publish() {
  for (std::size_t i = 0; i < state_->operands.outputs.size(); ++i)
    if (state_->leaves(i)) state_->write_slots(i, state_->published, state_->done);
  state_->published = state_->done;
}

std::int64_t FusedRun::iterations_done() const noexcept { return state_->done; }
std::int64_t FusedRun::iterations_bound() const noexcept { return state_->bound; }

/// Each slot has a record of its own: those of later iterations are still to be written.
void FusedRun::State::write_slots(std::size_t output, std::int64_t begin, std::int64_t end) const {
  const Target& target = target_of(output);
  const Tensor& made = whole[static_cast<std::size_t>(target.whole)];
  const auto [first, stride] = operands.written[output];
  for (std::int64_t iteration = begin; iteration < end; ++iteration) {
    const std::int64_t row = place(target, iteration);
    const Tensor slot = loop->form().unbatched ? made.select(0, row) : made.rows(row, row + rows_of(iteration));
    operands.outputs[output].write(first + stride * iteration, LoDTensor(leaves(output) ? part_of(slot, Point()) : slot));
  }
}

std::int64_t iterations_of_a_run(const std::vector<const FusedRun*>& runs) {
  std::int64_t work = 1, iterations = 1, rows = 1;
  for (const FusedRun* run : runs) {
    work += run->work();
    iterations = std::max(iterations, run->iterations());
    rows = std::max(rows, run->rows());
  }
  const double best = static_cast<double>(iterations) * std::sqrt(static_cast<double>(pass_work) / static_cast<double>(work));
  const std::int64_t least = (product_rows + rows - 1) / rows;
  return std::max(least, best < static_cast<double>(iterations) ? static_cast<std::int64_t>(std::ceil(best)) : iterations);
}

}  // namespace millrace
