// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cuda/lstm_sequence.h>

#include <algorithm>

#include <millrace/tensor/with_cuda/device_context.h>
#include <millrace/tensor/with_cuda/watermark.h>
#include <millrace/kernels/cuda/with_cuda/held_lstm.cuh>
#include <millrace/kernels/cuda/with_cuda/lstm_worker.cuh>

namespace millrace::cuda {
namespace {

template <class T, int TILES, bool USUAL, bool TIMED = false>
struct LstmSequence {
  /// Four tiles take the registers that a ninth warp would.
  static constexpr int publishing = TILES == 1 ? 1 : 0;
  LstmArguments arguments;
  MILLRACE_DEVICE void operator()(Warp& warp) const { LstmWorker<T, TILES, USUAL, TIMED>(arguments, warp).run(); }
};

template <class T, int HELD, bool GRID, bool TIMED = false>
struct HeldSequence {
  using Worker = HeldLstm<T, HELD, GRID, TIMED>;
  static constexpr int publishing = Worker::publishing;
  LstmArguments arguments;
  MILLRACE_DEVICE void operator()(Warp& warp) const { Worker(arguments, warp).run(); }
};

template <class Word>
struct Zeros {
  Word* to;
  MILLRACE_HD void operator()(std::int64_t i) const { to[i] = 0; }
};

template <class T>
void pack_as(const LstmDesc& desc, const Tensor& r, const Tensor& packed, const Queue& queue) {
  using Stored = typename Arithmetic<T>::Stored;
  each_index(queue, packed.elements() / static_cast<std::int64_t>(sizeof(T)),
             PackWeights<T>{static_cast<const Stored*>(r.raw()), static_cast<T*>(packed.raw_mutable()), desc.hidden, desc.hidden, 4,
                            lstm_pieces(desc.hidden, lstm_chunk(desc.dtype))});
}

/// Weights are packed for one arithmetic; the kernel of another one would read nonsense, or give bits that no other backend has.
void check_arithmetic(const LstmDesc& desc, bool tf32, const Queue& queue) {
  if (desc.dtype != DType::f32 || tf32 == uses_tf32(queue)) return;
  throw ArgumentError(std::string("lstm sequence: expected a device ") + (tf32 ? "with" : "without") +
                      " tf32, as the plan says, found cuda:" + std::to_string(queue.device) + (tf32 ? " without" : " with"));
}

}  // namespace

void pack_lstm_sequence(const LstmDesc& desc, bool tf32, const Tensor& r, const Tensor& packed, KernelContext& context) {
  const Queue& queue = queue_of(context);
  check_arithmetic(desc, tf32, queue);
  if (tf32) return pack_as<TensorFloat32>(desc, r, packed, queue);
  if (desc.dtype == DType::f32) return pack_as<float>(desc, r, packed, queue);
  if (desc.dtype == DType::f16) return pack_as<float16>(desc, r, packed, queue);
  pack_as<bfloat16>(desc, r, packed, queue);
}

namespace {

/// The memory that one launch works in, for as long as it runs.
struct Room {
  Tensor exchange, words;

  /// `apart`: the blocks of a cluster hand h on themselves, and each block has a line of words.
  Room(const LstmArguments& a, bool apart, const Queue& queue)
      : exchange(scratch(queue, DType::u8, DDim{apart && a.group.kind != 2 ? 0 : 2 * std::int64_t{a.tiles} * a.chunks * lstm_state_bytes})),
        words(scratch(queue, DType::i32, DDim{group_words(apart ? a.group.groups * a.group.blocks : a.group.groups)})) {
    // A block alone, and the blocks of a cluster, have barriers of their own.
    if (a.group.kind == 2 || a.group.watermark != nullptr)
      each_index(queue, words.elements(), Zeros<std::uint32_t>{static_cast<std::uint32_t*>(words.raw_mutable())});
  }
};

Tensor from(const Queue& queue, const std::vector<std::int64_t>& values, std::int64_t first, std::int64_t last) {
  return uploaded(queue, {values.begin() + first, values.begin() + last});
}

void describe(LstmArguments& a, const LstmDesc& desc, const LstmSchedule& schedule) {
  a.hidden = static_cast<int>(desc.hidden);
  a.unit_blocks = static_cast<int>(lstm_pieces(desc.hidden, 8));
  a.chunks = static_cast<int>(lstm_pieces(desc.hidden, lstm_chunk(desc.dtype)));
  a.group.kind = static_cast<int>(schedule.group);
  a.group.blocks = schedule.blocks;
  a.group.groups = schedule.groups;
  a.group.warps = schedule.warps;
  a.ways = schedule.ways;
  a.staged = schedule.staged;
  a.resident = static_cast<int>(schedule.resident);
  // A fence of the device for each closed step would be dear beside a short one. A waiter sees a step some microseconds later.
  constexpr double most_ns = 4000;
  a.group.published = schedule.step_ns > 0 ? std::max(1, static_cast<int>(std::min(most_ns, most_ns / schedule.step_ns))) : 1;
}

void point_at(LstmArguments& a, const LstmDesc& desc, const PackedLstmSequence& weights, const LstmSequenceRows& rows) {
  a.weights = static_cast<const std::byte*>(weights.recurrent.raw());
  a.bias = desc.bias ? static_cast<const float*>(weights.bias.raw()) : nullptr;
  a.peepholes = desc.peepholes ? static_cast<const float*>(weights.peepholes.raw()) : nullptr;
  a.projection = elements<float>(rows.projection);
  a.c = elements<float>(rows.c);
  a.c_out = elements<float>(rows.c_out);
  if (rows.c_steps) {
    a.c_steps = elements<float>(*rows.c_steps);
    a.c_steps_row = rows.c_steps->strides()[0];
  }
  a.live = rows.live ? static_cast<const std::uint8_t*>(rows.live->raw()) : nullptr;
  a.h = rows.h.raw();
  a.h_out = rows.h_out.raw_mutable();
  a.y = rows.y.raw_mutable();
  a.projection_row = rows.projection.strides()[0];
  a.wide_copies = desc.hidden % 4 == 0 && a.projection_row % 4 == 0 && reinterpret_cast<std::uintptr_t>(rows.projection.raw()) % 16 == 0;
  a.c_row = rows.c.strides()[0];
  a.c_out_row = rows.c_out.strides()[0];
  a.h_row = rows.h.strides()[0];
  a.h_out_row = rows.h_out.strides()[0];
  a.y_row = rows.y.strides()[0];
}

bool is_usual(const LstmArguments& a) { return a.functions.is_usual() && a.projection.dtype == DType::f32; }

/// Cells of other functions take one tile at a time, whatever the schedule says: so no bit changes, and half of the code need not be compiled.
template <class T>
void start_as(const LstmArguments& a, const GridShape& shape, bool wide, const Queue& queue) {
  if (!is_usual(a)) return run_grid(queue, shape, LstmSequence<T, 1, false>{a});
  if constexpr (Arithmetic<T>::by_mma)
    if (wide) return run_grid(queue, shape, LstmSequence<T, 4, true>{a});
  run_grid(queue, shape, LstmSequence<T, 1, true>{a});
}

template <class T, bool TIMED = false>
void start_held(const LstmArguments& a, const GridShape& shape, int held, const Queue& queue) {
  if (shape.meets) {
    if (held == 1) return run_grid(queue, shape, HeldSequence<T, 1, true, TIMED>{a});
    return run_grid(queue, shape, HeldSequence<T, 2, true, TIMED>{a});
  }
  if (held == 1) return run_grid(queue, shape, HeldSequence<T, 1, false, TIMED>{a});
  run_grid(queue, shape, HeldSequence<T, 2, false, TIMED>{a});
}

void start_held(const LstmDesc& desc, const LstmArguments& a, const GridShape& shape, int held, const Queue& queue) {
  if (!is_usual(a)) throw ArgumentError("lstm sequence: expected the usual functions and a projection of f32 beside weights in registers");
  if (a.phases != nullptr) return start_held<float16, true>(a, shape, held, queue);
  if (desc.dtype == DType::f16) return start_held<float16>(a, shape, held, queue);
  start_held<bfloat16>(a, shape, held, queue);
}

void start(const LstmDesc& desc, bool tf32, const LstmArguments& a, const GridShape& shape, bool wide, const Queue& queue) {
  if (a.phases != nullptr) {
    if (wide) return run_grid(queue, shape, LstmSequence<float16, 4, true, true>{a});
    return run_grid(queue, shape, LstmSequence<float16, 1, true, true>{a});
  }
  if (tf32) return start_as<TensorFloat32>(a, shape, wide, queue);
  if (desc.dtype == DType::f32) return start_as<float>(a, shape, wide, queue);
  if (desc.dtype == DType::f16) return start_as<float16>(a, shape, wide, queue);
  start_as<bfloat16>(a, shape, wide, queue);
}

}  // namespace

void lstm_sequence(const LstmDesc& desc, bool tf32, const LstmSchedule& schedule, const PackedLstmSequence& weights,
                   const LstmSequenceRows& rows, std::int64_t first, std::int64_t last, KernelContext& context) {
  const Queue& queue = queue_of(context);
  check_arithmetic(desc, tf32, queue);
  LstmArguments a = {};
  a.functions = LstmFunctions<float>(desc);
  if (rows.phases) a.phases = static_cast<std::int64_t*>(rows.phases->raw_mutable());
  describe(a, desc, schedule);
  point_at(a, desc, weights, rows);
  const auto at = [&](std::int64_t step) { return rows.offsets[static_cast<std::size_t>(step)]; };
  a.tiles = static_cast<int>(lstm_pieces(at(first + 1) - at(first), 8));
  a.group.steps = static_cast<int>(last - first);
  auto* const watermark = static_cast<CudaWatermark*>(rows.watermark.get());
  a.group.watermark = watermark == nullptr ? nullptr : watermark->word();
  a.group.done_before = (watermark == nullptr ? 0 : watermark->base()) + static_cast<std::uint64_t>(rows.steps_before + first);
  const Room room(a, schedule.held > 0, queue);
  a.exchange = static_cast<std::byte*>(room.exchange.raw_mutable());
  a.group.words = static_cast<std::uint32_t*>(room.words.raw_mutable());
  const Tensor offsets = rows.offsets_there ? *rows.offsets_there : from(queue, rows.offsets, first, last + 1);
  const Tensor places = uploaded(queue, rows.places);
  const Tensor slots = rows.slots_there ? *rows.slots_there : uploaded(queue, rows.slots);
  a.offsets = integers(offsets) + (rows.offsets_there ? first : 0);
  if (rows.offsets_there && static_cast<std::size_t>(last) + 1 == rows.offsets.size()) a.rows_room = rows.offsets.back();
  a.places = rows.places.empty() ? nullptr : integers(places);
  a.slots = slots.elements() == 0 ? nullptr : integers(slots);
  GridShape shape;
  shape.blocks = schedule.blocks * schedule.groups;
  shape.warps = schedule.warps;
  shape.cluster = schedule.group == LstmSchedule::Group::cluster ? schedule.blocks : 1;
  shape.meets = schedule.group == LstmSchedule::Group::grid;
  shape.shared_bytes = lstm_shared_bytes(schedule, desc.dtype, tf32, desc.hidden, a.tiles);
  shape.publishes = watermark != nullptr;
  if (schedule.held > 0) {
    shape.publishes = true;
    shape.publishing = HeldLstm<float16, 1, false>::publishing;
  }
  if (shape.publishes && schedule.wide > 1) shape.warps = a.group.warps = std::min(schedule.warps, 7);
  if (watermark != nullptr) shape.begun = watermark->launching();
  if (schedule.held > 0)
    start_held(desc, a, shape, schedule.held, queue);
  else
    start(desc, tf32, a, shape, schedule.wide > 1, queue);
  if (watermark != nullptr) watermark->launched(static_cast<std::uint64_t>(rows.steps_before + last));
}

#if defined(__CUDACC__)

namespace {

int attribute(cudaDeviceAttr which, int device) {
  int value = 0;
  check(cudaDeviceGetAttribute(&value, which, device), "cudaDeviceGetAttribute", device);
  return value;
}

}  // namespace

LstmLimits lstm_limits(int device, DType) {
  const OnDevice here(device);
  LstmLimits made;
  made.multiprocessors = attribute(cudaDevAttrMultiProcessorCount, device);
  made.shared_bytes = most_shared_bytes<LstmSequence<float16, 4, true>>(device);
  made.cooperative = attribute(cudaDevAttrCooperativeLaunch, device) != 0;
  if (attribute(cudaDevAttrComputeCapabilityMajor, device) < 9) return made;
  for (const int blocks : {2, 4, 8, 16})
    if (const int most = most_clusters<LstmSequence<float16, 4, true>>(blocks, 8, made.shared_bytes, device); most > 0)
      made.clusters.emplace_back(blocks, most);
  made.registers = !made.clusters.empty();
  return made;
}

#else

/// Little of everything, so that small shapes need all of it.
LstmLimits lstm_limits(int, DType) {
  LstmLimits made;
  made.multiprocessors = 4;
  made.shared_bytes = 48 << 10;
  made.cooperative = true;
  made.clusters = {{2, 2}, {4, 1}};
  made.registers = true;
  return made;
}

#endif

}  // namespace millrace::cuda
