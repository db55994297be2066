// SPDX-License-Identifier: Apache-2.0
// The run of a fused loop: its rows in parts, its iterations in runs.
#include <algorithm>
#include <cstring>
#include <tuple>
#include <type_traits>

#include <millrace/runtime/loops/cpu_fused/internal/fused_state.h>
#include <millrace/runtime/loops/last_state.h>
#include <millrace/tensor/ragged.h>

namespace millrace {
namespace {

using passes::Source;
using From = Source::From;

/// From so many rows on, a product over one iteration is as good as one over many.
constexpr std::int64_t few_rows = 32;
/// Multiply-adds of a whole loop that nobody needs to interrupt: at most about a millisecond.
constexpr std::int64_t brief_work = 48 << 20;

}  // namespace

// ---- Iterations ----

/// `row`: rows of the part before this iteration in the run.
RowView FusedRun::State::source(const Part& part, const Source& from, std::int64_t iteration, std::int64_t row) const {
  const auto at = static_cast<std::size_t>(iteration);
  switch (from.from) {
    case From::input: {
      const IterationRows& input = inputs[from.place];
      if (input.stands_apart(iteration)) return {part.picked[from.place].data(), input.width};
      return {const_cast<std::byte*>(input.first[at]) + part.first * input.width * size, input.width};
    }
    case From::state: return part.states[from.place];
    case From::shared: return {const_cast<void*>(shared[from.place].raw()), 0};
    case From::invariant: return {const_cast<void*>(invariant[from.place].raw()), 0};
    case From::ahead: {
      const Target& target = ahead_targets[from.place];
      const std::int64_t width = loop->ahead_.kernel->outputs()[from.place].width;
      if (target.whole >= 0)
        return {static_cast<std::byte*>(whole[static_cast<std::size_t>(target.whole)].raw_mutable()) +
                    (place(target, iteration) + part.first) * width * size,
                width};
      return {part.ahead[from.place].data() + row * width * size, width};
    }
    case From::step: break;
  }
  const Target& target = step_targets[from.place];
  const std::int64_t width = loop->step_.kernel->outputs()[from.place].width;
  if (target.whole >= 0)
    return {static_cast<std::byte*>(whole[static_cast<std::size_t>(target.whole)].raw_mutable()) +
                (place(target, iteration) + part.first) * width * size,
            width};
  return {part.step[from.place].data() + row * width * size, width};
}

RowView FusedRun::State::target(Part& part, const Target& target, std::size_t port, PooledVector<LineBuffer>& buffers, std::int64_t width,
                                std::int64_t iteration, std::int64_t row) const {
  if (target.whole >= 0) {
    auto* data = static_cast<std::byte*>(whole[static_cast<std::size_t>(target.whole)].raw_mutable());
    return {data + (place(target, iteration) + part.first) * width * size, width};
  }
  if (target.state < 0) return {buffers[port].data() + row * width * size, width};
  const auto state = static_cast<std::size_t>(target.state);
  return {part.held[2 * state + static_cast<std::size_t>(1 - part.side[state])].data(), width};
}

void FusedRun::State::gather_views(const FusedLoop::Part& what, Part& part, const PooledVector<Target>& targets,
                                   PooledVector<LineBuffer>& buffers, std::int64_t iteration, std::int64_t row) const {
  part.in.resize(what.inputs.size());
  part.out.resize(targets.size());
  for (std::size_t i = 0; i < what.inputs.size(); ++i) part.in[i] = source(part, what.inputs[i], iteration, row);
  for (std::size_t i = 0; i < targets.size(); ++i)
    part.out[i] = target(part, targets[i], i, buffers, what.kernel->outputs()[i].width, iteration, row);
}

void FusedRun::State::launch(const FusedLoop::Part& what, const RowWeights& weights, Part& part, const PooledVector<Target>& targets,
                             PooledVector<LineBuffer>& buffers, std::int64_t iteration, std::int64_t row, std::int64_t count) {
  if (!what.kernel || count == 0) return;
  gather_views(what, part, targets, buffers, iteration, row);
  what.kernel->run(weights, part.in, part.out, count, part.workspace.data(), part.helper);
}

void FusedRun::State::launch_step(Part& part, std::int64_t iteration, std::int64_t row, std::int64_t count) {
  if (!loop->step_.kernel) return;
  gather_views(loop->step_, part, step_targets, part.step, iteration, row);
  loop->step_.kernel->run_placed(*step_weights, part.in, part.out, count, part.step_workspace.data(), part.helper);
}

/// Where iterations [begin, end) read and write, each of them `count` rows: false where that is no line. The states are those before `begin`, left by
/// the iteration before it.
bool FusedRun::State::find_tracks(Part& part, std::int64_t begin, std::int64_t end, std::int64_t row, std::int64_t count) const {
  const FusedLoop::Part& what = loop->step_;
  const auto between = [](const RowView& from, const RowView& to) {
    return static_cast<const std::byte*>(to.first) - static_cast<const std::byte*>(from.first);
  };
  const auto held = [&](std::int64_t state) {
    const auto at = static_cast<std::size_t>(state);
    const auto now = static_cast<std::size_t>(part.side[at]);
    return std::pair<void*, void*>(part.held[2 * at + now].data(), part.held[2 * at + 1 - now].data());
  };
  // Iterations whose slots stand in a line, from `first` on.
  const auto line = [&](const Source& from, std::int64_t first, std::int64_t first_row) -> std::optional<RowTrack> {
    if (from.from == From::input && inputs[from.place].any_apart(first, end)) return std::nullopt;
    const RowView view = source(part, from, first, first_row);
    const std::int64_t step = between(view, source(part, from, first + 1, first_row + count));
    if (from.from == From::input)
      for (std::int64_t t = first + 1; t + 1 < end; ++t)
        if (inputs[from.place].first[static_cast<std::size_t>(t + 1)] - inputs[from.place].first[static_cast<std::size_t>(t)] != step)
          return std::nullopt;
    return RowTrack{view, step};
  };
  part.tracks_in.clear();
  part.tracks_out.clear();
  part.tracks_in.reserve(what.inputs.size());
  part.tracks_out.reserve(step_targets.size());
  for (const Source& input : what.inputs) {
    if (input.from != From::state) {
      const auto track = line(input, begin, row);
      if (!track) return false;
      part.tracks_in.push_back(*track);
      continue;
    }
    RowTrack track{part.states[input.place]};
    if (loop->form().states[input.place].changes) {
      const Source& from = loop->outputs_[next_of[input.place]];
      if (from.from == From::state) return false;
      if (const std::int64_t state = from.from == From::step ? step_targets[from.place].state : -1; state >= 0) {
        std::tie(track.view.first, track.other) = held(state);
      } else {
        const auto after = line(from, begin - 1, row - count);
        if (!after || after->view.first != track.view.first) return false;
        track.step = after->step;
      }
    }
    part.tracks_in.push_back(track);
  }
  for (std::size_t i = 0; i < step_targets.size(); ++i) {
    const std::int64_t width = what.kernel->outputs()[i].width;
    RowTrack track{target(part, step_targets[i], i, part.step, width, begin, row)};
    if (step_targets[i].whole < 0 && step_targets[i].state >= 0)
      std::tie(track.other, track.view.first) = held(step_targets[i].state);
    else
      track.step = between(track.view, target(part, step_targets[i], i, part.step, width, begin + 1, row + count));
    part.tracks_out.push_back(track);
  }
  return true;
}

/// Iterations [begin, end) of the part in one call, where they can be.
bool FusedRun::State::launch_steps(Part& part, std::int64_t begin, std::int64_t end, std::int64_t row, std::int64_t count) {
  if (!loop->step_.kernel || count > loop->step_.kernel->plan().block_rows() || !find_tracks(part, begin, end, row, count)) return false;
  loop->step_.kernel->run_tracks(*step_weights, part.tracks_in, part.tracks_out, count, end - begin, part.step_workspace.data(),
                                 part.helper);
  for (const Target& target : step_targets)
    if (target.state >= 0 && (end - begin) % 2 == 0) part.side[static_cast<std::size_t>(target.state)] ^= 1;
  take_states(part, end - 1, row + (end - 1 - begin) * count);
  return true;
}

/// Whether the part's rows of the iterations stand one behind the other, in order.
bool FusedRun::State::in_line(const Source& from, std::int64_t begin, std::int64_t end) const {
  if (from.from == From::shared || from.from == From::invariant) return true;
  if (from.from == From::state) return false;
  if (from.from != From::input) {
    const Target& target = (from.from == From::ahead ? ahead_targets : step_targets)[from.place];
    return in_line(target);
  }
  if (end > bound && arrives(from.place)) return false;
  const IterationRows& input = inputs[from.place];
  for (std::int64_t t = begin; t + 1 < end; ++t)
    if (input.first[static_cast<std::size_t>(t)] + rows_of(t) * input.width * size != input.first[static_cast<std::size_t>(t + 1)])
      return false;
  return parts.size() == 1;
}

/// All iterations of a run at once. Rows that lie in another order are brought into that of the iterations, and back.
void FusedRun::State::launch_run(const FusedLoop::Part& what, const RowWeights& weights, Part& part, const PooledVector<Target>& targets,
                                 PooledVector<LineBuffer>& buffers, const PooledVector<LineBuffer>& room, std::int64_t begin,
                                 std::int64_t end, std::int64_t total) {
  if (!what.kernel || total == 0) return;
  part.in.clear();
  part.out.clear();
  part.in.reserve(what.inputs.size());
  part.out.reserve(targets.size());
  const auto aside = [&](std::size_t port, std::int64_t width) { return RowView{room[port].data(), width}; };
  const auto each_iteration = [&](std::int64_t width, const auto& copy) {
    std::int64_t row = 0;
    for (std::int64_t t = begin; t < end; row += live(part, t++))
      copy(t, row, static_cast<std::size_t>(live(part, t) * width * size), row * width * size);
  };
  for (const Source& from : what.inputs) {
    const std::size_t port = part.in.size();
    if (in_line(from, begin, end)) {
      part.in.push_back(source(part, from, begin, 0));
      continue;
    }
    const std::int64_t width = what.kernel->inputs()[port].width;
    part.in.push_back(aside(port, width));
    each_iteration(width, [&](std::int64_t iteration, std::int64_t row, std::size_t bytes, std::int64_t at) {
      std::memcpy(static_cast<std::byte*>(part.in[port].first) + at, source(part, from, iteration, row).first, bytes);
    });
  }
  const auto width_of = [&](std::size_t port) { return what.kernel->outputs()[port].width; };
  for (std::size_t i = 0; i < targets.size(); ++i)
    part.out.push_back(in_line(targets[i]) ? target(part, targets[i], i, buffers, width_of(i), begin, 0)
                                           : aside(what.inputs.size() + i, width_of(i)));
  what.kernel->run(weights, part.in, part.out, total, part.workspace.data(), part.helper);
  for (std::size_t i = 0; i < targets.size(); ++i) {
    if (in_line(targets[i])) continue;
    each_iteration(width_of(i), [&](std::int64_t iteration, std::int64_t row, std::size_t bytes, std::int64_t at) {
      std::memcpy(target(part, targets[i], i, buffers, width_of(i), iteration, row).first, static_cast<std::byte*>(part.out[i].first) + at,
                  bytes);
    });
  }
}

/// Rows that live on move together, in the order of the batch.
void FusedRun::State::move_rows(Part& part, std::int64_t iteration) {
  const RowSelection kept = shrink_rows(*order, ordered.first + iteration - 1, ordered.first + iteration);
  if (kept.prefix) return;
  for (std::size_t i = 0; i < part.states.size(); ++i) {
    const std::int64_t width = part.states[i].stride;
    LineBuffer& to = part.held[2 * i + static_cast<std::size_t>(1 - part.side[i])];
    for (std::size_t row = 0; row < kept.rows.size(); ++row)
      std::memcpy(to.data() + static_cast<std::int64_t>(row) * width * size,
                  static_cast<const std::byte*>(part.states[i].first) + kept.rows[row] * width * size,
                  static_cast<std::size_t>(width * size));
    part.side[i] = 1 - part.side[i];
    part.states[i].first = to.data();
  }
}

/// States that lie where the next run will write are put aside.
void FusedRun::State::keep_states(Part& part, std::int64_t count) {
  for (std::size_t i = 0; i < part.states.size(); ++i) {
    if (!loop->form().states[i].changes) continue;
    const Source& from = loop->outputs_[next_of[i]];
    const Target& target = (from.from == From::ahead ? ahead_targets : step_targets)[from.place];
    if (target.whole >= 0 || target.state >= 0) continue;
    const std::int64_t width = part.states[i].stride;
    LineBuffer& to = part.held[2 * i];
    if (part.states[i].first == to.data()) continue;
    std::memcpy(to.data(), part.states[i].first, static_cast<std::size_t>(count * width * size));
    part.side[i] = 0;
    part.states[i].first = to.data();
  }
}

/// The states that the iteration left become those that the next one takes.
void FusedRun::State::take_states(Part& part, std::int64_t iteration, std::int64_t row) {
  const auto held_now = [&](std::size_t state) { return part.held[2 * state + static_cast<std::size_t>(1 - part.side[state])].data(); };
  for (const std::size_t state : changing) {
    const Source& from = loop->outputs_[next_of[state]];
    const bool held = from.from == From::step && step_targets[from.place].state >= 0;
    part.states[state].first =
        held ? held_now(static_cast<std::size_t>(step_targets[from.place].state)) : source(part, from, iteration, row).first;
  }
  for (const Target& target : step_targets)
    if (target.state >= 0) part.side[static_cast<std::size_t>(target.state)] ^= 1;
}

/// Copies the rows of the iteration that stand apart.
void FusedRun::State::pick_rows(Part& part, std::int64_t iteration) const {
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const IterationRows& input = inputs[i];
    if (!input.stands_apart(iteration)) continue;
    const std::int64_t* places = input.picked->rows.data() + input.begin[static_cast<std::size_t>(iteration)] + part.first;
    const auto* from = static_cast<const std::byte*>(input.picked->from.raw());
    const std::int64_t bytes = input.width * size, count = live(part, iteration);
    for (std::int64_t row = 0; row < count; ++row)
      std::memcpy(part.picked[i].data() + row * bytes, from + places[row] * bytes, static_cast<std::size_t>(bytes));
  }
}

void FusedRun::State::run_iterations(Part& part, std::int64_t begin, std::int64_t end) {
  std::int64_t total = 0;
  for (std::int64_t t = begin; t < end; ++t) total += live(part, t);
  // Few rows of an iteration are a poor product: they are brought together, if need be.
  const auto joined = [&](const FusedLoop::Part& what, const PooledVector<Target>& targets) {
    if (what.kernel && what.kernel->couples_rows()) return false;
    if (total >= (end - begin) * few_rows || !what.multiplies) {
      return parts.size() == 1 && std::all_of(targets.begin(), targets.end(), [&](const Target& target) { return in_line(target); }) &&
             std::all_of(what.inputs.begin(), what.inputs.end(), [&](const Source& from) { return in_line(from, begin, end); });
    }
    return true;
  };
  const bool ahead = joined(loop->ahead_, ahead_targets);
  const bool behind = joined(loop->behind_, behind_targets);
  // Where every iteration has the same rows, those of other parts too, all but the first go on in a line.
  bool together = (ahead || !loop->ahead_.kernel) && (behind || !loop->behind_.kernel) && end - begin > 2;
  for (std::int64_t t = begin + 1; together && !rows.empty() && t < end; ++t) together = rows_of(t) == rows_of(begin);
  std::int64_t row = 0;
  std::int64_t count = 0;
  if (ahead) launch_run(loop->ahead_, *ahead_weights, part, ahead_targets, part.ahead, part.ahead_aside, begin, end, total);
  for (std::int64_t t = begin; t < end; ++t) {
    count = live(part, t);
    if (count == 0) continue;
    if (moves && t > 0) move_rows(part, t);
    pick_rows(part, t);
    if (!ahead) launch(loop->ahead_, *ahead_weights, part, ahead_targets, part.ahead, t, row, count);
    launch_step(part, t, row, count);
    take_states(part, t, row);
    if (together && t == begin && launch_steps(part, t + 1, end, row + count, count)) break;
    if (!behind) launch(loop->behind_, *behind_weights, part, behind_targets, part.step, t, row, count);
    row += count;
  }
  if (behind) launch_run(loop->behind_, *behind_weights, part, behind_targets, part.step, part.behind_aside, begin, end, total);
  keep_states(part, count);
}

/// The rows of the states that the part begins with, where they lie; they may have been made on the stream itself. No iteration writes where it reads a state.
void FusedRun::State::take_initial(Part& part) const {
  for (std::size_t i = 0; i < initial.size(); ++i)
    part.states[i].first = static_cast<std::byte*>(initial[i].raw_mutable()) + part.first * part.states[i].stride * size;
}

/// Whether the iteration changes nothing for the rows of the part. Rows that move between iterations do so in each of them.
bool FusedRun::State::rests(const Part& part, std::int64_t iteration) const {
  if (!loop->rest_ || moves) return false;
  const RowView truth = source(part, {From::input, loop->rest_->input}, iteration, 0);
  const auto all_zero = [&]<class T>(std::type_identity<T>) {
    for (std::int64_t row = 0; row < live(part, iteration); ++row)
      if (*truth.row<const T>(row) != 0) return false;
    return true;
  };
  return dtype == DType::f64 ? all_zero(std::type_identity<double>()) : all_zero(std::type_identity<float>());
}

void FusedRun::State::skip_iteration(const Part& part, std::int64_t iteration) const {
  for (std::size_t i = 0; i < loop->rest_->states.size(); ++i) {
    const Target& to = target_of(i);
    const Tensor& made = whole[static_cast<std::size_t>(to.whole)];
    const std::int64_t row = made.dims().erased(0).elements() * size;
    auto* first = static_cast<std::byte*>(made.raw_mutable()) + (place(to, iteration) + part.first) * row;
    const auto bytes = static_cast<std::size_t>(live(part, iteration) * row);
    if (loop->rest_->states[i])
      std::memcpy(first, part.states[*loop->rest_->states[i]].first, bytes);
    else
      std::memset(first, 0, bytes);
  }
}

void FusedRun::State::run_part(Part& part, std::int64_t begin, std::int64_t end) {
  if (begin == 0) take_initial(part);
  for (std::int64_t t = begin; t < end;) {
    if (live(part, t) == 0) {  // its sequences have ended, or are still to come
      ++t;
      continue;
    }
    if (rests(part, t)) {
      skip_iteration(part, t++);
      continue;
    }
    std::int64_t next = t;
    for (std::int64_t sum = 0; next < end && (next == t || (sum + live(part, next) <= run_rows && !rests(part, next))); ++next)
      sum += live(part, next);
    run_iterations(part, t, next);
    t = next;
  }
}

/// One thread goes through the iterations, a second one takes half of each large product.
void FusedRun::State::run_shared(ThreadTeam& team, std::int64_t begin, std::int64_t end) {
  SpinHelper helper;
  team.parallel(2, 1, [&](std::int64_t first, std::int64_t last) {
    for (std::int64_t i = first; i < last; ++i) {
      if (i == 1) {
        helper.serve();
        continue;
      }
      parts[0].helper = &helper;
      run_part(parts[0], begin, end);
      parts[0].helper = nullptr;
      helper.release();
    }
  });
}

bool FusedRun::brief() const {
  std::int64_t sum = 0;
  for (std::int64_t iteration = 0; iteration < state_->operands.iterations && sum <= brief_work; ++iteration)
    sum += state_->rows_of(iteration) * state_->work;
  return !passes_slots() && sum <= brief_work;
}

bool FusedRun::advance(std::int64_t limit) {
  State& state = *state_;
  const std::int64_t begin = state.done;
  std::int64_t end = begin;
  std::int64_t last = std::min({limit, state.operands.iterations, state.bound});
  for (const State::Feeder& feeder : state.feeders) last = std::min(last, feeder.run->done - feeder.shift);
  for (std::int64_t sum = 0; end < last && sum < slice_work; ++end) sum += state.rows_of(end) * state.work;
  if (begin >= end) return false;
  stream_.enqueue([kept = state_, begin, end](ThreadTeam& team) {
    if (kept->shares) return kept->run_shared(team, begin, end);
    team.parallel(static_cast<std::int64_t>(kept->parts.size()), 1, [&](std::int64_t first, std::int64_t past) {
      for (std::int64_t i = first; i < past; ++i) kept->run_part(kept->parts[static_cast<std::size_t>(i)], begin, end);
    });
  });
  state.done = end;
  return true;
}

// ---- The end ----

const FusedRun::State::Target& FusedRun::State::target_of(std::size_t output) const {
  const Source& from = loop->outputs_[output];
  if (from.from == From::ahead) return ahead_targets[from.place];
  const bool is_behind = from.from == From::step && from.place >= loop->step_outputs_;
  return is_behind ? behind_targets[from.place - loop->step_outputs_] : step_targets[from.place];
}

/// A state behind the last iteration: its rows that still live.
Tensor FusedRun::State::last_rows(std::size_t state, StreamRef stream) const {
  DDim dims = initial[state].dims();
  dims[0] = rows_of(done - 1);
  const std::int64_t width = dims.erased(0).elements();
  for (const Part& part : parts) {  // the only one, if it hands anything on
    const auto is_here = [&](const RowView& view) { return view.first == part.states[state].first; };
    const bool alone = std::count_if(part.states.begin(), part.states.end(), is_here) == 1;  // two states in one memory are two tensors
    for (const Tensor& memory : part.handed_on) {
      if (!alone || memory.raw() != part.states[state].first) continue;
      memory.storage()->mark_written();
      return memory.rows(0, dims[0]).reshape(dims);
    }
  }
  Tensor made(dtype, dims, stream.memory());
  for (const Part& part : parts) {
    const std::int64_t count = live(part, done - 1);
    if (count == 0) continue;
    std::memcpy(static_cast<std::byte*>(made.raw_mutable()) + part.first * width * size, part.states[state].first,
                static_cast<std::size_t>(count * width * size));
  }
  made.storage()->mark_written();
  return made;
}

std::vector<SlotValue> FusedRun::finish() {
  State& state = *state_;
  const auto iterations = static_cast<std::size_t>(state.done);
  const bool all = state.done == state.operands.iterations;
  for (std::size_t i = 0; i < state.operands.outputs.size(); ++i) {
    if (state.last_of[i]) continue;
    const Tensor& whole = state.whole[static_cast<std::size_t>(state.target_of(i).whole)];
    const TensorArray& array = state.operands.outputs[i];
    if (state.leaves(i)) {
      state.write_slots(i, state.published, state.done);
      continue;
    }
    const auto [first, stride] = state.operands.written[i];
    const bool falls = state.target_of(i).falls;
    const std::int64_t lowest = std::min(first, first + stride * (state.operands.iterations - 1));
    if (all && array.is_fixed() && lowest == 0 && stride == (falls ? -1 : 1) && array.size() == state.operands.iterations) {
      if (form().unbatched) {
        array.fill_items(whole);
        continue;
      }
      std::vector<std::int64_t> offsets;
      offsets.reserve(iterations + 1);
      for (std::size_t t = 0; t < iterations; ++t)
        offsets.push_back(state.place(state.target_of(i), static_cast<std::int64_t>(falls ? iterations - 1 - t : t)));
      offsets.push_back(whole.dim(0));
      array.fill(whole, std::move(offsets));
      continue;
    }
    state.write_slots(i, 0, state.done);
  }
  state.published = state.done;
  std::vector<SlotValue> last;
  last.reserve(state.initial.size());
  for (std::size_t i = 0; i < state.initial.size(); ++i) {
    Tensor made = state.last_rows(i, stream_);
    if (form().unbatched) made = made.select(0, 0);
    for (std::size_t output = 0; output < state.last_of.size(); ++output) {
      if (state.last_of[output] != i) continue;
      const auto [first, stride] = state.operands.written[output];
      state.operands.outputs[output].write(first + stride * (state.done - 1), LoDTensor(made));
    }
    last.push_back(last_state(form(), state.operands, i, state.done, LoDTensor(std::move(made))));
  }
  return last;
}

}  // namespace millrace
