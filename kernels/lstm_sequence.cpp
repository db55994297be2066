// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/lstm_sequence.h>

#include <algorithm>
#include <deque>
#include <mutex>
#include <string>

#include <millrace/kernels/cuda/lstm_sequence.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/tensor/launch.h>
#include <millrace/tensor/multiprocessor_reserve.h>

namespace millrace {
namespace {

constexpr const char* op = "lstm sequence";

void check_here(const Place& place) {
  if (!internal::on_cuda(place))
    throw PlaceError("lstm sequence: expected a CUDA device, found " + place.to_string() + ": a CPU fuses loops row by row");
}

}  // namespace

struct LstmSequencePlan::Schedules {
  struct Known {
    std::int64_t sequences;
    int reserved;
    bool registers;
    int beside;
    LstmSchedule schedule;
  };
  static constexpr std::size_t most = 64;
  std::mutex mutex;
  std::deque<Known> known;  // the last used first
};

LstmSchedule LstmSequencePlan::schedule(std::int64_t sequences, int reserved, bool registers, int beside) const {
  const std::lock_guard lock(schedules_->mutex);
  std::deque<Schedules::Known>& known = schedules_->known;
  const auto found = std::find_if(known.begin(), known.end(), [&](const Schedules::Known& one) {
    return one.sequences == sequences && one.reserved == reserved && one.registers == registers && one.beside == beside;
  });
  if (found != known.end()) {
    std::rotate(known.begin(), found, found + 1);
    return known.front().schedule;
  }
  LstmLimits limits = limits_;
  limits.registers = limits.registers && registers;
  known.push_front({sequences, reserved, registers, beside, schedule_lstm(desc_, sequences, limits.without(reserved), beside)});
  if (known.size() > Schedules::most) known.pop_back();
  return known.front().schedule;
}

LstmLimits lstm_limits(const Place& place, DType dtype) {
  check_here(place);
  return cuda::lstm_limits(std::get<CudaPlace>(place).index, dtype);
}

LstmSequencePlan make_lstm_sequence(const LstmDesc& desc, const Place& place, bool tf32) {
  check_here(place);
  make_lstm_cell(desc, place);  // says what is wrong with the description
  if (desc.dtype == DType::f64) throw DTypeError("lstm sequence: expected f32, f16 or bf16, found f64");
  LstmSequencePlan plan;
  plan.desc_ = desc;
  plan.place_ = place;
  plan.limits_ = lstm_limits(place, desc.dtype);
  plan.limits_.tf32 = tf32 && desc.dtype == DType::f32;
  plan.schedules_ = std::make_shared<LstmSequencePlan::Schedules>();
  return plan;
}

PackedLstmSequence pack(const LstmSequencePlan& plan, const Tensor& r, const Tensor* bias, const Tensor* peepholes, StreamRef stream) {
  const LstmDesc& desc = plan.desc();
  internal::check_device_places(op, stream, {&r, bias, peepholes});
  internal::check_dtype(op, "R", r, desc.weights_dtype());
  internal::check_dims(op, "R", r, DDim{desc.hidden, 4 * desc.hidden});
  const auto vector = [&](const char* role, const Tensor* from, bool wanted, std::int64_t gates) {
    if ((from != nullptr) != wanted)
      throw ArgumentError("lstm sequence: expected " + std::string(wanted ? "" : "no ") + role + " as the description says, found " +
                          (from == nullptr ? "none" : from->to_string()));
    if (from == nullptr) return Tensor(DType::f32, DDim{0}, stream.memory());
    internal::check_dtype(op, role, *from, desc.dtype);
    internal::check_dims(op, role, *from, DDim{gates * desc.hidden});
    return internal::row_major_as(op, *from, DType::f32, stream);
  };
  PackedLstmSequence made{{}, vector("bias", bias, desc.bias, 4), vector("peepholes", peepholes, desc.peepholes, 3)};
  const std::int64_t pieces = cuda::lstm_pieces(desc.hidden, 8) * cuda::lstm_pieces(desc.hidden, cuda::lstm_chunk(desc.dtype));
  made.recurrent = Tensor(DType::u8, DDim{pieces * cuda::lstm_weight_bytes}, stream.memory());
  const Tensor straight = internal::row_major_as(op, r, desc.dtype, stream);
  launch(
      TensorRefs<1>{&straight}, TensorRefs<1>{&made.recurrent},
      [desc, tf32 = plan.limits().tf32, straight, packed = made.recurrent](KernelContext& context) {
        cuda::pack_lstm_sequence(desc, tf32, straight, packed, context);
      },
      stream);
  return made;
}

namespace {

void check_rows(const char* role, const Tensor& tensor, std::int64_t rows, std::int64_t columns) {
  internal::check_dims(op, role, tensor, DDim{rows, columns});
  if (columns > 1 && rows > 0 && tensor.strides()[1] != 1)
    throw ShapeError("lstm sequence: expected contiguous rows for " + std::string(role) + ", found strides " +
                     tensor.strides().to_string());
}

void check_offsets(const std::vector<std::int64_t>& offsets) {
  if (offsets.empty() || offsets[0] < 0) throw ArgumentError("lstm sequence: expected offsets from 0 or more on, one more than steps");
  for (std::size_t t = 1; t < offsets.size(); ++t) {
    const std::int64_t rows = offsets[t] - offsets[t - 1];
    if (rows < 0 || (t > 1 && rows > offsets[t - 1] - offsets[t - 2]))
      throw ArgumentError("lstm sequence: expected steps of no more rows than the one before, found " + std::to_string(rows) + " in step " +
                          std::to_string(t - 1));
  }
}

/// Each of `values` once, below `limit`.
void check_permutation(const char* what, const std::int64_t* values, std::int64_t count, std::int64_t limit) {
  std::vector<bool> seen(static_cast<std::size_t>(limit), false);
  for (std::int64_t i = 0; i < count; ++i) {
    if (values[i] < 0 || values[i] >= limit)
      throw IndexError("lstm sequence: expected a " + std::string(what) + " below " + std::to_string(limit) + ", found " +
                       std::to_string(values[i]));
    if (seen[static_cast<std::size_t>(values[i])])
      throw ArgumentError("lstm sequence: expected each " + std::string(what) + " once, found " + std::to_string(values[i]) + " again");
    seen[static_cast<std::size_t>(values[i])] = true;
  }
}

void check_states(const LstmDesc& desc, const LstmSequenceRows& rows, std::int64_t sequences) {
  const std::int64_t slots = rows.h.rank() == 2 ? rows.h.dim(0) : 0;
  for (const auto& [role, tensor] : {std::pair{"h", &rows.h}, {"c", &rows.c}, {"h_out", &rows.h_out}, {"c_out", &rows.c_out}})
    check_rows(role, *tensor, slots, desc.hidden);
  internal::check_dtype(op, "h", rows.h, desc.dtype);
  internal::check_dtype(op, "h_out", rows.h_out, desc.dtype);
  if (rows.c.dtype() != DType::f32) internal::check_dtype(op, "c", rows.c, desc.dtype);
  internal::check_dtype(op, "c_out", rows.c_out, rows.c.dtype());
  if (rows.slots_there) {
    internal::check_dtype(op, "slots on the device", *rows.slots_there, DType::i64);
    internal::check_dims(op, "slots on the device", *rows.slots_there, DDim{sequences});
    internal::check_contiguous(op, "slots on the device", *rows.slots_there);
    return;
  }
  if (rows.slots.empty() && slots < sequences)
    throw ShapeError("lstm sequence: expected states of " + std::to_string(sequences) + " sequences, found " + rows.h.to_string());
  if (rows.slots.empty()) return;
  if (std::cmp_not_equal(rows.slots.size(), sequences))
    throw ArgumentError("lstm sequence: expected " + std::to_string(sequences) + " slots, found " + std::to_string(rows.slots.size()));
  check_permutation("slot", rows.slots.data(), sequences, slots);
}

void check_run(const LstmSequencePlan& plan, const LstmSequenceRows& rows) {
  const LstmDesc& desc = plan.desc();
  check_offsets(rows.offsets);
  const std::int64_t last = rows.offsets.back();
  const std::int64_t given = rows.projection.rank() == 2 ? rows.projection.dim(0) : 0;
  if (given < last)
    throw ShapeError("lstm sequence: expected " + std::to_string(last) + " rows of projections, found " + rows.projection.to_string());
  if (rows.projection.dtype() != DType::f32) internal::check_dtype(op, "the projection", rows.projection, desc.dtype);
  check_rows("the projection", rows.projection, given, 4 * desc.hidden);
  internal::check_dtype(op, "y", rows.y, desc.dtype);
  check_rows("y", rows.y, given, desc.hidden);
  if (rows.c_steps) {
    internal::check_dtype(op, "c of all steps", *rows.c_steps, rows.c.dtype());
    check_rows("c of all steps", *rows.c_steps, given, desc.hidden);
  }
  if (rows.live) {
    internal::check_dtype(op, "which rows step", *rows.live, DType::boolean);
    internal::check_dims(op, "which rows step", *rows.live, DDim{given, 1});
    internal::check_contiguous(op, "which rows step", *rows.live);
  }
  check_states(desc, rows, rows.offsets.size() < 2 ? 0 : rows.offsets[1] - rows.offsets[0]);
  if (rows.offsets_there) {
    internal::check_dtype(op, "offsets on the device", *rows.offsets_there, DType::i64);
    internal::check_dims(op, "offsets on the device", *rows.offsets_there, DDim{static_cast<std::int64_t>(rows.offsets.size())});
    internal::check_contiguous(op, "offsets on the device", *rows.offsets_there);
  }
  if (rows.places.empty()) return;
  if (std::cmp_less(rows.places.size(), last))
    throw ArgumentError("lstm sequence: expected a place for each of " + std::to_string(last) + " rows");
  for (std::size_t t = 0; t + 1 < rows.offsets.size(); ++t) {
    const std::int64_t count = rows.offsets[t + 1] - rows.offsets[t];
    check_permutation("place", rows.places.data() + rows.offsets[t], count, count);
  }
}

/// Phases are taken by kernels of their own.
void check_phases(const LstmDesc& desc, const LstmSequenceRows& rows) {
  internal::check_dtype(op, "phases", *rows.phases, DType::i64);
  internal::check_dims(op, "phases", *rows.phases, DDim{static_cast<std::int64_t>(lstm_phases.size())});
  internal::check_contiguous(op, "phases", *rows.phases);
  if (desc.dtype != DType::f16 || !cuda::has_usual_functions(desc) || rows.projection.dtype() != DType::f32)
    throw UnsupportedError(
        "lstm sequence: phases are those of cells in f16 with a projection of f32, sigmoids, hyperbolic tangents, no peepholes and no "
        "clipping, found " +
        std::string(name_of(desc.dtype)));
}

}  // namespace

void run(const LstmSequencePlan& plan, const PackedLstmSequence& weights, const LstmSequenceRows& rows, StreamRef stream,
         const LstmSchedule* schedule) {
  internal::check_device_places(
      op, stream,
      {&weights.recurrent, &weights.bias, &weights.peepholes, &rows.projection, &rows.y, &rows.h, &rows.c, &rows.h_out, &rows.c_out});
  check_run(plan, rows);
  auto steps = static_cast<std::int64_t>(rows.offsets.size()) - 1;
  while (steps > 0 && rows.offsets[static_cast<std::size_t>(steps)] == rows.offsets[static_cast<std::size_t>(steps) - 1]) --steps;
  if (steps == 0 || plan.desc().hidden == 0) return;
  const std::int64_t sequences = rows.offsets[1] - rows.offsets[0];
  const int reserved = reserved_multiprocessors(std::get<CudaPlace>(plan.place()).index);
  LstmLimits limits = plan.limits();
  limits.registers = limits.registers && rows.projection.dtype() == DType::f32;
  const LstmSchedule chosen = schedule != nullptr ? *schedule : plan.schedule(sequences, reserved, limits.registers);
  check_schedule(chosen, plan.desc(), limits, sequences);
  if (rows.phases) check_phases(plan.desc(), rows);
  const std::int64_t at_once = rows.steps_a_launch > 0 ? rows.steps_a_launch : steps;
  for (std::int64_t first = 0; first < steps; first += at_once) {
    LstmSequenceRows now = rows;
    if (first > 0) {
      now.h = now.h_out;
      now.c = now.c_out;
    }
    launch(
        TensorRefs<9>{&weights.recurrent, &weights.bias, &weights.peepholes, &now.projection, &now.h, &now.c,
                      now.offsets_there ? &*now.offsets_there : nullptr, now.slots_there ? &*now.slots_there : nullptr,
                      now.live ? &*now.live : nullptr},
        TensorRefs<5>{&rows.y, &rows.h_out, &rows.c_out, rows.c_steps ? &*rows.c_steps : nullptr, rows.phases ? &*rows.phases : nullptr},
        [desc = plan.desc(), tf32 = plan.limits().tf32, chosen, weights, now, first, last = std::min(steps, first + at_once)](
            KernelContext& context) { cuda::lstm_sequence(desc, tf32, chosen, weights, now, first, last, context); },
        stream);
  }
}

}  // namespace millrace
