// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include <millrace/kernels/lstm_sequence.h>
#include <millrace/kernels/row_plan.h>
#include <millrace/tensor/watermark.h>

/// **All steps of any recurrent cell over ragged sequences as one kernel**, on CUDA devices. `make_cell_plan` divides the row plan of a step
/// (row_plan.h) into stages between which the blocks of a group exchange values, and writes the source of a kernel; `compile_cell` compiles it
/// for a device; `make_cell_sequence` loads it. The weights of products stay on chip as far as they fit. Every op has the bits of the kernel of
/// its name on the device, so the result has the bits of the steps run one by one.
namespace millrace {

/// One step of a cell.
struct CellDesc {
  RowDesc rows;                 ///< f32
  std::vector<Tensor> numbers;  ///< by constant of `rows`: those of one element become part of the source
  /// The source of an input of `rows`.
  struct Input {
    enum class Kind : std::uint8_t {
      rows,   ///< f32, given for every step
      truth,  ///< the same of bool; the row plan computes with 1 and 0
      state,  ///< state `place`
      shared  ///< the same for all rows and steps
    };
    Kind kind = Kind::rows;
    std::size_t place = 0;
  };
  std::vector<Input> inputs;
  struct State {
    std::int64_t width = 0;
    int next = -1;  ///< the register that is the state behind the step; −1: the state does not change
  };
  std::vector<State> states;
  std::vector<int> outputs;                                     ///< registers that every step writes
  std::vector<std::pair<std::int64_t, std::int64_t>> products;  ///< k and n, by matrix of `rows`
  bool tf32 = false;                                            ///< products as tf32
  DType factors = DType::f32;  ///< of all products: f32, or bf16, to which vectors are rounded; sums are f32
};

/// How the source divides a step. Its numbers are those of recurrent/cell.cuh.
struct CellPlan {
  struct Vector {
    std::int64_t width = 0;
    unsigned reads = 0;
    bool factors = false;
    int state = -1;
    std::int64_t begin = 0;
  };
  struct Product {
    int stage = 0;
    int vector = 0;
    int gates = 0;
    std::size_t matrix = 0;
  };
  /// Registers whose elements are the same for all rows, and are read from memory: a constant or an input of the row plan.
  struct Shared {
    bool constant = false;
    std::size_t place = 0;
  };
  std::int64_t units = 1;
  int stages = 1, kept = 0;
  bool tf32 = false;
  DType factors = DType::f32;
  std::vector<Vector> vectors;
  std::vector<Product> products;
  std::vector<std::int64_t> state_widths, output_widths;
  std::vector<bool> state_changes;
  std::vector<int> results;             ///< by stage: floats of a row that folds give
  std::vector<std::size_t> input_rows;  ///< inputs of the row plan, in the order in which the kernel numbers them
  std::vector<Shared> shared;
  std::string source;

  /// "3 stages of 128 units: 1 product of 4 gates, 2 folds".
  std::string to_string() const;
};

/// UnsupportedError says which op or value does not fit: "the cell has a value of 97 elements, which 32 units do not share evenly".
CellPlan make_cell_plan(const CellDesc& desc);

/// Machine code of a plan's source.
struct CellCode {
  std::string image;
  std::string log;  ///< of the compiler: registers and spilled bytes; empty where the code comes from a cache
};
/// The compiler and its options, on which code depends beside the source: "NVRTC 13.0, sm_90a, --fmad=false …". Equal text and equal sources are equal code.
/// PlaceError unless it is a CUDA device; UnsupportedError without a compiler.
std::string cell_compiler(const Place& place);
/// UnsupportedError without a compiler; Error with its log where it refuses the source.
CellCode compile_cell(const CellPlan& plan, const Place& place);
/// Compiler and code for an architecture such as "sm_90a", on any machine with NVRTC.
std::string cell_compiler(const std::string& architecture);
CellCode compile_cell(const CellPlan& plan, const std::string& architecture);

/// How the blocks of a device share the steps, as LstmSchedule says. No output bit depends on any of this.
struct CellSchedule {
  LstmSchedule::Group group = LstmSchedule::Group::block;
  int blocks = 1, groups = 1, warps = 8;
  int staged = 1;                      ///< times 8 rows of the vectors that lie in shared memory at once
  std::vector<std::int64_t> resident;  ///< by product: chunks of 8 k of each unit block's weights that stay in shared memory
  double step_ns = 0;                  ///< estimated

  std::string to_string() const;
};
/// Bytes of shared memory of a block.
std::int64_t cell_shared_bytes(const CellPlan& plan, const CellSchedule& schedule);
/// The schedule with the least estimated time. UnsupportedError when not one block's work fits.
CellSchedule schedule_cell(const CellPlan& plan, std::int64_t rows, const LstmLimits& limits);

/// Loaded code. Immutable, cheap to copy, shareable.
class CellSequence {
 public:
  const CellPlan& plan() const noexcept;
  const Place& place() const noexcept;
  const LstmLimits& limits() const noexcept;
  struct State;
  const State& state() const noexcept { return *state_; }

 private:
  friend CellSequence make_cell_sequence(CellPlan plan, const Place& place, const CellCode& code);
  std::shared_ptr<const State> state_;
};
/// CudaError where the device does not take the code.
CellSequence make_cell_sequence(CellPlan plan, const Place& place, const CellCode& code);

/// The matrices of a plan's products in the order in which the kernel reads them.
struct PackedCell {
  std::vector<Tensor> products;
};
/// `matrices`: by product of the plan, [k, n] on the device, of any strides: of the plan's factors, or bf16, which f32 holds exactly. ShapeError,
/// DTypeError.
PackedCell pack(const CellSequence& cell, std::span<const Tensor> matrices, StreamRef stream);

/// The operands of a sequence of steps. Sequences are numbered so that none is longer than the one before, as in LstmSequenceRows.
struct CellRows {
  std::vector<Tensor> inputs;               ///< by `input_rows` of the plan: [rows, …] with contiguous elements in a row, f32 or bool
  std::vector<Tensor> shared;               ///< by `shared` of the plan: f32, contiguous
  std::vector<Tensor> outputs;              ///< f32 [rows, width], contiguous rows
  std::vector<Tensor> states, states_out;   ///< f32 [slots, width], contiguous rows: before the first step; behind each sequence's last one
  std::vector<std::int64_t> offsets;        ///< of the steps' rows, one more than steps; no step has more rows than the last
  std::vector<std::int64_t> places, slots;  ///< as in LstmSequenceRows; empty: in order
  bool reversed = false;                    ///< the steps go from the last rows to the first: equal steps, in order, without a watermark
  std::int64_t steps_a_launch = 0;          ///< 0: all in one
  std::shared_ptr<Watermark> watermark;     ///< reaches the number of steps whose outputs are written
};
/// Enqueues all steps. `states_out` of a state that does not change is not written.
void run(const CellSequence& cell, const PackedCell& weights, const CellRows& rows, StreamRef stream,
         const CellSchedule* schedule = nullptr);

}  // namespace millrace
