// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <millrace/kernels/lstm_cell.h>
#include <millrace/tensor/watermark.h>

namespace millrace {

/// The room of a device, and its way to multiply.
struct LstmLimits {
  int multiprocessors = 1;
  std::int64_t shared_bytes = 0;              ///< of shared memory for one block, when it is alone on a multiprocessor
  bool cooperative = false;                   ///< the blocks of a grid may wait for one another
  std::vector<std::pair<int, int>> clusters;  ///< blocks of a cluster, and how many such there are at once; ascending
  bool registers = false;                     ///< warps may hold weights in registers (`LstmSchedule::held`)
  bool tf32 = false;                          ///< f32 as tf32, with the bits of a device that was made so (CudaOptions::tf32)

  /// The limits with so many multiprocessors left to others; one stays.
  LstmLimits without(int reserved) const;
  /// The share of one of so many that run at the same time; one multiprocessor at least.
  LstmLimits share(int among) const;
};
/// The limits of the device of `place`, without `tf32`. PlaceError unless it is a CUDA device; UnsupportedError in a build without CUDA.
LstmLimits lstm_limits(const Place& place, DType dtype);

/// How the blocks of a device share a sequence of steps. Groups share the rows, 8 at a time; the blocks of a group share the units, and meet once
/// a step. No output bit depends on any of this.
struct LstmSchedule {
  enum class Group : std::uint8_t {
    block,    ///< a block alone
    cluster,  ///< blocks of one cluster, which has a barrier
    grid      ///< any blocks; they count their arrivals in global memory
  };
  Group group = Group::block;
  int blocks = 1;  ///< of a group; of a cluster 2, 4, 8 or 16
  int groups = 1;
  int warps = 8;              ///< of a block, 1…8
  int ways = 1;               ///< warps that share the k of one product; divides `warps`
  int wide = 1;               ///< times 8 rows that a warp multiplies at once: 1 or 4; more than 1 with one way alone
  int staged = 1;             ///< times 8 rows of h that lie in shared memory at once; a multiple of `wide`
  int held = 0;               ///< chains of k, of 8 units each, whose weights a warp holds in registers: 1 or 2; 0: none
  std::int64_t resident = 0;  ///< of each unit's weights that stay in shared memory: times 16 k (f32: 8 k). The rest is read each step
  double step_ns = 0;         ///< estimated
  std::string reason;         ///< for people

  std::string to_string() const;
};
/// The schedule with the least estimated time for so many rows. UnsupportedError when not one block's work fits. `beside`: the number of
/// such sequences that may run at the same time, this one included. The schedule is then the one with which all of them together take the least time.
LstmSchedule schedule_lstm(const LstmDesc& desc, std::int64_t rows, const LstmLimits& limits, int beside = 1);
/// ArgumentError when the numbers do not fit each other, or the limits.
void check_schedule(const LstmSchedule& schedule, const LstmDesc& desc, const LstmLimits& limits, std::int64_t rows);

/// All steps of an LSTM over ragged sequences as one kernel, or one for every so many steps: the recurrent weights stay on chip, h goes from
/// block to block through the second cache. On CUDA devices, for f32, f16 and bf16. The bits are those of lstm_cell.h, step by step, with the
/// projection x·W as it is given (f32 sums, so that it was not rounded in between).
class LstmSequencePlan {
 public:
  const LstmDesc& desc() const noexcept { return desc_; }
  const Place& place() const noexcept { return place_; }
  const LstmLimits& limits() const noexcept { return limits_; }
  /// The schedule of so many sequences within `limits()`, less multiprocessors that are reserved, with weights in registers or not, as one of `beside`
  /// runs at the same time. The last few are remembered: a choice costs as much host time as three launches. Of a plan that `make_lstm_sequence` made.
  /// Thread-safe.
  LstmSchedule schedule(std::int64_t sequences, int reserved = 0, bool registers = true, int beside = 1) const;

 private:
  friend LstmSequencePlan make_lstm_sequence(const LstmDesc& desc, const Place& place, bool tf32);
  struct Schedules;
  LstmDesc desc_;
  Place place_;
  LstmLimits limits_;
  std::shared_ptr<Schedules> schedules_;
};
/// `desc.input` is of no interest: x·W is made before. `tf32`: what `uses_tf32` says of the device that it is for; with
/// another, `pack` and `run` fail with ArgumentError. ArgumentError, DTypeError; PlaceError for a place without the kernel.
LstmSequencePlan make_lstm_sequence(const LstmDesc& desc, const Place& place, bool tf32 = false);

/// R in the order in which the kernel reads it, [8 units][16 k (f32: 8)]; bias and peepholes in f32. Cheap to copy, shareable.
struct PackedLstmSequence {
  Tensor recurrent, bias, peepholes;
};
/// R [H, 4H], bias [4H] or null, peepholes [3H] or null, on the device, of any strides. ShapeError, DTypeError.
PackedLstmSequence pack(const LstmSequencePlan& plan, const Tensor& r, const Tensor* bias, const Tensor* peepholes, StreamRef stream);

/// The operands of a sequence of steps. Sequences are numbered so that none is longer than the one before: those of a step are the first of them.
struct LstmSequenceRows {
  Tensor projection;              ///< x·W of all steps, [rows, 4H] with contiguous rows, in f32 or the dtype of the cell
  Tensor y;                       ///< [rows, H]: h of all steps
  std::optional<Tensor> c_steps;  ///< the same of c, in its dtype, where they are wanted
  std::vector<std::int64_t>
      offsets;  ///< of the steps' rows in `projection` and `y`, one more than steps; no step has more rows than the last
  std::vector<std::int64_t> places;  ///< by row: which of its step's rows that sequence is in `projection` and `y`. Empty: in order
  Tensor h, c;                       ///< [slots, H], the state before: h in the dtype of the cell, c in that or f32
  Tensor h_out, c_out;               ///< the same after: of each sequence behind its own last step. May be h and c themselves
  std::vector<std::int64_t> slots;   ///< by sequence: its row in the four. Empty: in order
  /// On the device, i64, where a graph finds the numbers of each run: `offsets`, as many as those above, which say how many rows each step has
  /// at most; and `slots`, of as many sequences. Their elements are not checked: they must be values that pass the checks above.
  /// Rows of y and `c_steps` that the steps might have had are zeros.
  std::optional<Tensor> offsets_there, slots_there;
  /// bool [rows, 1], contiguous, by row of `projection`: where it is false, a step leaves h and c of its row as they were, and y and `c_steps`
  /// repeat them. None: all rows step.
  std::optional<Tensor> live;
  std::int64_t steps_a_launch = 0;  ///< 0: all in one
  /// Of the stream, for all steps but the last ones without rows: reaches the number of steps whose rows are written, while the kernel goes on; of
  /// steps that the schedule takes to be short some at once, those of 4 µs.
  std::shared_ptr<Watermark> watermark;
  std::int64_t steps_before = 0;  ///< of the watermark, which runs before this one raise
  /// i64 [lstm_phases.size()] on the device: of the last launch the cycles that the first warp of its first block took, by phase. The bits of the
  /// other results stay as they are. In f16 and for the usual functions alone: sigmoids, hyperbolic tangents, no peepholes, no clipping.
  std::optional<Tensor> phases;
};

/// Parts of a step, as `LstmSequenceRows::phases` counts them: loads, and stores of the step before, that no block waits for; the wait for other
/// blocks, the copy of h to shared memory, the product, the functions and the stores of h for other blocks, the arrival at the next barrier.
inline constexpr std::array<const char*, 6> lstm_phases{"ask", "wait", "copy", "product", "pointwise", "arrive"};

/// Enqueues all steps. `schedule`: another than `schedule_lstm`'s. ShapeError, DTypeError, IndexError
/// (a slot outside), ArgumentError (a slot twice, offsets that grow).
void run(const LstmSequencePlan& plan, const PackedLstmSequence& weights, const LstmSequenceRows& rows, StreamRef stream,
         const LstmSchedule* schedule = nullptr);

}  // namespace millrace
