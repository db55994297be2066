// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cuda/lstm_sequence.h>

#include <algorithm>

#include <millrace/tensor/with_cuda/device_context.h>
#include <millrace/tensor/with_cuda/watermark.h>
#include <millrace/kernels/cuda/with_cuda/lstm_worker.cuh>

namespace millrace::cuda {
namespace {

template <class T, int TILES>
struct LstmSequence {
  LstmArguments arguments;
  MILLRACE_DEVICE void operator()(Warp& warp) const { LstmWorker<T, TILES>(arguments, warp).run(); }
};

template <class Word>
struct Zeros {
  Word* to;
  MILLRACE_HD void operator()(std::int64_t i) const { to[i] = 0; }
};

/// R as lstm_worker.cuh reads it; `place` is one element of the packed form.
template <class T>
struct PackRecurrent {
  const typename Arithmetic<T>::Stored* from;
  T* to;
  std::int64_t hidden, chunks;

  MILLRACE_HD void operator()(std::int64_t i) const {
    constexpr int k_of_chunk = Arithmetic<T>::chunk;
    // i counts [unit block][chunk][k][unit][gate].
    const auto gate = static_cast<int>(i % 4);
    const auto unit = static_cast<int>(i / 4 % 8);
    const auto k = static_cast<int>(i / 32 % k_of_chunk);
    const std::int64_t piece = i / (32 * k_of_chunk);
    const std::int64_t row = piece % chunks * k_of_chunk + k;
    const std::int64_t column = piece / chunks * 8 + unit;
    const T value = row < hidden && column < hidden ? factor_of<T>(from[row * 4 * hidden + gate * hidden + column]) : T{};
    to[piece * 32 * k_of_chunk + place(gate, unit, k)] = value;
  }
  MILLRACE_HD static std::int64_t place(int gate, int unit, int k) {
    if constexpr (!Arithmetic<T>::by_mma) return (k * 8 + unit) * 4 + gate;
    return gate / 2 * 16 * Arithmetic<T>::chunk + place_in_a<T>(gate % 2 * 8 + unit, k);
  }
};

template <class T>
void pack_as(const LstmDesc& desc, const Tensor& r, const Tensor& packed, const Queue& queue) {
  using Stored = typename Arithmetic<T>::Stored;
  each_index(queue, packed.elements() / static_cast<std::int64_t>(sizeof(T)),
             PackRecurrent<T>{static_cast<const Stored*>(r.raw()), static_cast<T*>(packed.raw_mutable()), desc.hidden,
                              lstm_pieces(desc.hidden, lstm_chunk(desc.dtype))});
}

}  // namespace

namespace {

/// Weights are packed for one arithmetic; the kernel of another one would read nonsense, or give bits that no other backend has.
void check_arithmetic(const LstmDesc& desc, bool tf32, const Queue& queue) {
  if (desc.dtype != DType::f32 || tf32 == uses_tf32(queue)) return;
  throw ArgumentError(std::string("lstm sequence: expected a device ") + (tf32 ? "with" : "without") +
                      " tf32, as the plan says, found cuda:" + std::to_string(queue.device) + (tf32 ? " without" : " with"));
}

}  // namespace

void pack_lstm_sequence(const LstmDesc& desc, bool tf32, const Tensor& r, const Tensor& packed, ThreadTeam& team) {
  const Queue& queue = queue_of(team);
  check_arithmetic(desc, tf32, queue);
  if (tf32) return pack_as<TensorFloat32>(desc, r, packed, queue);
  if (desc.dtype == DType::f32) return pack_as<float>(desc, r, packed, queue);
  if (desc.dtype == DType::f16) return pack_as<float16>(desc, r, packed, queue);
  pack_as<bfloat16>(desc, r, packed, queue);
}

namespace {

/// What one launch works in, for as long as it runs.
struct Room {
  Tensor exchange, words;

  Room(const LstmArguments& a, const Queue& queue)
      : exchange(scratch(queue, DType::u8, DDim{2 * std::int64_t{a.tiles} * a.chunks * lstm_state_bytes})),
        words(scratch(queue, DType::i32, DDim{std::int64_t{a.groups} * words_a_line + a.steps})) {
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
  a.group = schedule.group;
  a.blocks = schedule.blocks;
  a.groups = schedule.groups;
  a.ways = schedule.ways;
  a.staged = schedule.staged;
  a.resident = static_cast<int>(schedule.resident);
  // To publish may take a warp as long as a short step: the host's memory is far away. Who waits hears of a step some microseconds later.
  constexpr double most_ns = 4000;
  a.published = schedule.step_ns > 0 ? std::max(1, static_cast<int>(std::min(most_ns, most_ns / schedule.step_ns))) : 1;
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
  a.c_row = rows.c.strides()[0];
  a.c_out_row = rows.c_out.strides()[0];
  a.h_row = rows.h.strides()[0];
  a.h_out_row = rows.h_out.strides()[0];
  a.y_row = rows.y.strides()[0];
}

void start(const LstmDesc& desc, bool tf32, const LstmArguments& a, const GridShape& shape, bool wide, const Queue& queue) {
  if (tf32 && wide) return run_grid(queue, shape, LstmSequence<TensorFloat32, 4>{a});
  if (tf32) return run_grid(queue, shape, LstmSequence<TensorFloat32, 1>{a});
  if (desc.dtype == DType::f32) return run_grid(queue, shape, LstmSequence<float, 1>{a});
  if (desc.dtype == DType::f16 && wide) return run_grid(queue, shape, LstmSequence<float16, 4>{a});
  if (desc.dtype == DType::f16) return run_grid(queue, shape, LstmSequence<float16, 1>{a});
  if (wide) return run_grid(queue, shape, LstmSequence<bfloat16, 4>{a});
  run_grid(queue, shape, LstmSequence<bfloat16, 1>{a});
}

}  // namespace

void lstm_sequence(const LstmDesc& desc, bool tf32, const LstmSchedule& schedule, const PackedLstmSequence& weights,
                   const LstmSequenceRows& rows, std::int64_t first, std::int64_t last, ThreadTeam& team) {
  const Queue& queue = queue_of(team);
  check_arithmetic(desc, tf32, queue);
  LstmArguments a = {};
  a.functions = LstmFunctions<float>(desc);
  describe(a, desc, schedule);
  point_at(a, desc, weights, rows);
  const auto at = [&](std::int64_t step) { return rows.offsets[static_cast<std::size_t>(step)]; };
  a.tiles = static_cast<int>(lstm_pieces(at(first + 1) - at(first), 8));
  a.steps = static_cast<int>(last - first);
  auto* const watermark = static_cast<CudaWatermark*>(rows.watermark.get());
  a.watermark = watermark == nullptr ? nullptr : watermark->word();
  a.done_before = (watermark == nullptr ? 0 : watermark->base()) + static_cast<std::uint64_t>(rows.steps_before + first);
  const Room room(a, queue);
  a.exchange = static_cast<std::byte*>(room.exchange.raw_mutable());
  a.arrived = static_cast<std::uint32_t*>(room.words.raw_mutable());
  a.closed = a.arrived + a.groups * words_a_line;
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
  shape.shared_bytes = lstm_shared_bytes(schedule, desc.dtype, tf32, desc.hidden);
  if (watermark != nullptr) shape.begun = watermark->launching();
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
  made.shared_bytes = most_shared_bytes<LstmSequence<float16, 4>>(device);
  made.cooperative = attribute(cudaDevAttrCooperativeLaunch, device) != 0;
  if (attribute(cudaDevAttrComputeCapabilityMajor, device) < 9) return made;
  for (const int blocks : {2, 4, 8, 16})
    if (const int most = most_clusters<LstmSequence<float16, 4>>(blocks, 8, made.shared_bytes, device); most > 0)
      made.clusters.emplace_back(blocks, most);
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
  return made;
}

#endif

}  // namespace millrace::cuda
