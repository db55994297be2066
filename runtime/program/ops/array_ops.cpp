// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/ops/array_ops.h>

#include <limits>
#include <vector>

#include <millrace/kernels/concat.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/transpose.h>
#include <millrace/runtime/array/join_runs.h>
#include <millrace/runtime/array/last.h>
#include <millrace/runtime/array/pack.h>
#include <millrace/runtime/array/reorder_steps.h>
#include <millrace/runtime/program/ops/internal/beams.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/spill_memory.h>

namespace millrace {
namespace {

LoDTensor value_of(const OpContext& context, std::size_t input) { return context.in(input).tensor(); }

task<void> run_read(OpContext& context) {
  const TensorArray& array = context.in(0).array();
  const SlotIndex index(context.tensor(1));
  if (context.has(2)) {
    const LoDTensor boot = value_of(context, 2);
    SlotRead read = array.read(index, boot, context.stream());
    SlotValue slot = co_await read;
    context.set(0, std::move(slot));
    co_return;
  }
  SlotRead read = array.read(index);
  SlotValue slot = co_await read;
  context.set(0, std::move(slot));
  const std::int64_t ahead = context.op().attributes.get_or("read_ahead", std::int64_t{0});
  if (ahead < 1 || index.value() < ahead) co_return;
  if (const std::optional<LoDTensor> next = array.peek(index.value() - ahead)) read_ahead(next->tensor());
}

/// The file that the slot before lies in, where there is one: an array has few files.
std::shared_ptr<MemoryResource> spill_memory(const TensorArray& array, std::int64_t index, const std::string& folder) {
  if (const std::optional<LoDTensor> before = index > 0 ? array.peek(index - 1) : std::nullopt) {
    const std::shared_ptr<MemoryResource>& memory = before->tensor().storage()->shared_resource();
    if (std::dynamic_pointer_cast<SpillMemory>(memory) != nullptr) return memory;
  }
  return std::make_shared<SpillMemory>(folder);
}

void expect_host(const TensorArray& array, StreamRef stream) {
  if (stream.place() != Place(CpuPlace{}))
    throw UnsupportedError(array.to_string() + ": expected values on the host to spill to files, found " + stream.place().to_string());
}

LoDTensor spilled(const TensorArray& array, std::int64_t index, const LoDTensor& value, const std::string& folder, StreamRef stream) {
  expect_host(array, stream);
  const Tensor& x = value.tensor();
  const Tensor made(x.dtype(), x.dims(), spill_memory(array, index, folder));
  copy(x, made, stream);
  return LoDTensor(made, value.lod());
}

/// Writes the op's last input. A window is waited for until it has room; elsewhere the value has its place
/// at once.
task<void> run_write(OpContext& context) {
  const TensorArray& array = context.in(0).array();
  const bool shared = context.op().attributes.get_or("share", true);
  const SlotIndex index(context.tensor(1));
  LoDTensor value = value_of(context, 2);
  if (context.op().attributes.has("spill"))
    value = spilled(array, index.value(), value, context.op().attributes.get<std::string>("spill"), context.stream());
  SlotWrite written = array.write(index, std::move(value), shared ? TensorArray::share : TensorArray::copy, context.stream());
  if (array.is_window()) co_await written;
}

task<void> run_append(OpContext& context) {
  const TensorArray& array = context.in(0).array();
  SlotWrite written = array.append(value_of(context, 1));
  if (array.is_window()) co_await written;
}

/// Waits until the number of slots is known. In a program no op closes a growable array: it ends when the last op
/// that may write it is done.
task<void> await_end(TensorArray array) {
  if (array.is_window()) throw UnsupportedError(array.to_string() + ": a window has no size: its slots leave as they are read");
  if (array.is_fixed()) co_return;
  bool more = true;
  for (std::int64_t i = array.size(); more; ++i) {
    try {
      SlotHas has = array.has(i);
      more = co_await has;
    } catch (const NeverWrittenError&) {
      if (i < array.size()) throw;
      more = false;
    }
  }
  array.close();
}

bool size_now(OpContext& context) {
  const TensorArray& array = context.in(0).array();
  if (array.is_fixed()) context.set(0, Tensor::scalar(array.size()));
  return array.is_fixed();
}

task<void> run_size(OpContext& context) {
  if (size_now(context)) co_return;
  const TensorArray array = context.in(0).array();
  co_await await_end(array);
  context.set(0, Tensor::scalar(array.size()));
}

/// The end of an array that no op closes is known once no op can write to it any more.
task<void> run_has(OpContext& context) {
  const TensorArray array = context.in(0).array();
  const SlotIndex index(context.tensor(1));
  bool there = false;
  try {
    SlotHas has = array.has(index);
    there = co_await has;
  } catch (const NeverWrittenError&) {
    if (index.value() < array.size()) throw;
  }
  context.set(0, Tensor::scalar(there));
}

/// Axis 0 of `x` as its axis `axis`.
Tensor with_leading_at(const Tensor& x, int axis, StreamRef stream) {
  std::vector<int> axes;
  for (int at = 1; at < x.rank(); ++at) axes.push_back(at);
  axes.insert(axes.begin() + axis, 0);
  return transpose(x, axes, stream);
}

void set_stack(OpContext& context, Tensor stacked) {
  const std::int64_t axis = context.op().attributes.get_or("axis", std::int64_t{0});
  const int place = stacked.dims().checked_axis(static_cast<int>(axis));
  if (place != 0) stacked = with_leading_at(stacked, place, context.stream());
  context.set(0, std::move(stacked));
}

/// The stack of an array that was filled at once.
bool stack_now(OpContext& context) {
  const auto filled = context.in(0).array().filled();
  std::optional<Tensor> stacked = filled == nullptr ? std::nullopt : filled->stacked();
  if (stacked) set_stack(context, std::move(*stacked));
  return stacked.has_value();
}

task<void> run_stack(OpContext& context) {
  if (stack_now(context)) co_return;
  const TensorArray array = context.in(0).array();
  co_await await_end(array);
  Tensor stacked = co_await array.stack(context.stream());
  set_stack(context, std::move(stacked));
}

task<void> run_concat(OpContext& context) {
  const TensorArray array = context.in(0).array();
  co_await await_end(array);
  LoDTensor rows = co_await array.concat(context.stream());
  context.set(0, std::move(rows));
}

/// The steps of a beam search, which only the host can follow back.
task<void> run_beam_search_decode(OpContext& context) {
  const TensorArray ids = context.in(0).array();
  const TensorArray scores = context.in(1).array();
  co_await await_end(ids);
  co_await await_end(scores);
  if (ids.size() != scores.size())
    throw LoDError(ids.to_string() + " and " + scores.to_string() + ": expected as many slots of ids as of scores");
  const LoDTensor all_ids = co_await ids.concat(context.stream());
  const LoDTensor all_scores = co_await scores.concat(context.stream());
  const Point ids_there = all_ids.ready();
  co_await ready(ids_there);
  const Point scores_there = all_scores.ready();
  co_await ready(scores_there);
  const BeamOptions options = ops::beam_options(context.op().attributes);
  Hypotheses found = beam_search_decode(all_ids, all_scores, ids.size(), options, context.stream());
  context.set(0, std::move(found.tokens));
  context.set(1, std::move(found.scores));
  context.set(2, std::move(found.totals));
}

task<void> run_gather(OpContext& context) {
  const TensorArray array = context.in(0).array();
  std::vector<std::int64_t> places = context.integers(1);
  Tensor picked = co_await array.gather(std::move(places), context.stream());
  context.set(0, std::move(picked));
}

task<void> run_pack(OpContext& context) {
  const TensorArray array = context.in(0).array();
  const int level = static_cast<int>(context.op().attributes.get_or("level", std::int64_t{0}));
  const SequenceOrder order = context.in(1).order();
  co_await await_end(array);
  LoDTensor rows = co_await pack(array, level, order, context.stream());
  context.set(0, std::move(rows));
}

task<void> run_join_runs(OpContext& context) {
  const TensorArray array = context.in(0).array();
  const SequenceOrder order = context.in(1).order();
  co_await await_end(array);
  LoDTensor rows = co_await join_runs(array, order, context.stream());
  context.set(0, std::move(rows));
}

task<void> run_join_runs_gradient(OpContext& context) {
  const Tensor gradient = context.tensor(0);
  const TensorArray array = context.in(1).array();
  const SequenceOrder order = context.in(2).order();
  co_await await_end(array);
  context.set(0, TensorList(co_await split_runs(gradient, array, order, context.stream())));
}

task<void> run_reorder_steps(OpContext& context) {
  const TensorArray array = context.in(0).array();
  const SequenceOrder from = context.in(1).order();
  const SequenceOrder to = context.in(2).order();
  co_await await_end(array);
  std::shared_ptr<MemoryResource> memory;
  if (context.op().attributes.has("spill")) {
    expect_host(array, context.stream());
    memory = std::make_shared<SpillMemory>(context.op().attributes.get<std::string>("spill"));
  }
  TensorArray made = co_await reorder_steps(array, from, to, context.stream(), std::move(memory));
  context.set(0, std::move(made));
}

task<void> run_last_rows(OpContext& context) {
  const TensorArray array = context.in(0).array();
  const SequenceOrder order = context.in(1).order();
  const Tensor boot = context.tensor(2);
  co_await await_end(array);
  Tensor rows = co_await last_rows(array, order, boot, context.stream());
  context.set(0, std::move(rows));
}

task<void> run_slot_gradients_of(OpContext& context) {
  const TensorArray array = context.in(0).array();
  co_await await_end(array);
  const std::vector<SlotValue> slots = co_await array.values();
  std::vector<Tensor> gradients;
  for (const SlotValue& slot : slots) gradients.push_back(slot.tensor());
  context.set(0, TensorList(std::move(gradients)));
}

/// The rows of each slot.
task<void> run_concat_gradient(OpContext& context) {
  const Tensor gradient = context.tensor(0);
  const TensorArray array = context.in(1).array();
  co_await await_end(array);
  const std::vector<SlotValue> slots = co_await array.values();
  std::vector<std::int64_t> lengths;
  for (const SlotValue& slot : slots) lengths.push_back(slot.tensor().dim(0));
  context.set(0, TensorList(split(gradient, 0, lengths)));
}

/// A slot without a gradient is zero; each has the LoD of the array's.
task<void> run_slot_gradients_to_array(OpContext& context) {
  const TensorList gradients = context.in(0).list();
  const TensorArray array = context.in(1).array();
  co_await await_end(array);
  const std::vector<SlotValue> slots = co_await array.values();
  const TensorArray made = array.order() ? TensorArray(SlotIndex(array.size()), *array.order()) : TensorArray(array.size());
  for (std::int64_t i = 0; i < array.size(); ++i) {
    const SlotValue& slot = slots[static_cast<std::size_t>(i)];
    const bool zero = i >= gradients.size() || gradients.at(i).dims() == DDim{0};
    const Tensor rows = zero ? full(slot.dims(), 0, slot.dtype(), context.stream()) : gradients.at(i);
    made.write(i, LoDTensor(rows, slot.lod()));
  }
  made.close();
  // An array without slots still says what they would be.
  const Attributes& slot = context.op().attributes;
  const bool described = array.size() == 0 && slot.has("shape");
  context.set(0, described ? made.of(slot.get<DType>("dtype"), DDim(slot.get<std::vector<std::int64_t>>("shape"))) : made);
}

// ---- Whether they wait ----

bool undecided(const TensorArray& array, std::int64_t index) {
  const std::int64_t end = array.is_fixed() ? array.size() : std::numeric_limits<std::int64_t>::max();
  if (index < 0 || index >= end) return false;  // a boot, or an error at once
  const SlotState state = array.state(index);
  return state == SlotState::empty || state == SlotState::waited;
}

bool slot_undecided(const OpContext& context) { return undecided(context.in(0).array(), context.tensor(1).item_int()); }

/// Whether the op has to wait for a slot. A feed may say any number of slots, so the walk ends at the first slot without a value: the op reads
/// the slots in this order, and waits or fails there. The last slot comes before the others: it is the likeliest to be missing.
bool any_undecided(const OpContext& context) {
  const TensorArray& array = context.in(0).array();
  if (!array.is_fixed() && !array.closed()) return true;
  const std::int64_t size = array.size();
  if (size == 0 || array.filled() != nullptr) return false;
  if (undecided(array, size - 1)) return true;
  for (std::int64_t i = 0; i < size; ++i)
    if (array.state(i) != SlotState::written) return undecided(array, i);
  return false;
}

bool end_undecided(const OpContext& context) { return !context.in(0).array().is_fixed() && !context.in(0).array().closed(); }

bool has_undecided(const OpContext& context) {
  const TensorArray& array = context.in(0).array();
  return !array.is_fixed() && !array.closed() && undecided(array, context.tensor(1).item_int());
}

bool named_undecided(const OpContext& context) {
  for (const std::int64_t index : context.integers(1))
    if (undecided(context.in(0).array(), index)) return true;
  return false;
}

bool always(const OpContext&) { return true; }

bool is_full(const OpContext& context) { return context.in(0).array().is_window(); }

struct AsyncOp {
  const char* type;
  task<void> (*run)(OpContext&);
  bool (*waits)(const OpContext&);
  bool (*run_now)(OpContext&) = nullptr;
};

constexpr AsyncOp async_ops[] = {
    {"tensor_array_read", run_read, slot_undecided},
    {"tensor_array_write", run_write, is_full},
    {"tensor_array_append", run_append, is_full},
    {"tensor_array_size", run_size, end_undecided, size_now},
    {"tensor_array_has", run_has, has_undecided},
    {"tensor_array_stack", run_stack, any_undecided, stack_now},
    {"tensor_array_concat", run_concat, any_undecided},
    {"tensor_array_gather", run_gather, named_undecided},
    {"beam_search_decode", run_beam_search_decode, always},
    {"pack", run_pack, any_undecided},
    {"restore_lod_tensor_from_timesteps", run_pack, any_undecided},
    {"join_runs", run_join_runs, any_undecided},
    {"join_runs_gradient", run_join_runs_gradient, always},
    {"reorder_steps", run_reorder_steps, any_undecided},
    {"last_rows", run_last_rows, any_undecided},
    {"slot_gradients_of", run_slot_gradients_of, any_undecided},
    {"concat_gradient", run_concat_gradient, always},
    {"slot_gradients_to_array", run_slot_gradients_to_array, always},
};

const AsyncOp* find(const std::string& type) {
  for (const AsyncOp& each : async_ops)
    if (type == each.type) return &each;
  return nullptr;
}

}  // namespace

task<void> (*find_async_op(const std::string& type))(OpContext&) {
  const AsyncOp* found = find(type);
  return found == nullptr ? nullptr : found->run;
}

bool (*find_immediate_op(const std::string& type))(OpContext&) {
  const AsyncOp* found = find(type);
  return found == nullptr ? nullptr : found->run_now;
}

bool may_suspend(const OpContext& context) {
  const AsyncOp* found = find(context.op().type);
  return found != nullptr && found->waits(context);
}

}  // namespace millrace
