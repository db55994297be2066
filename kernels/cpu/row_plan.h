// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <tuple>
#include <vector>

#include <millrace/kernels/cpu/span_kernels.h>
#include <millrace/kernels/cpu/unary_kernels.h>
#include <millrace/kernels/row_plan.h>

namespace millrace {
namespace cpu {

/// The function that an elementwise op calls, found when its plan is made.
template <class T>
struct RowFunctions {
  UnaryFunction<T> unary = nullptr;
  SpanFunction<T> binary = nullptr;
  WhereFunction<T> where = nullptr;
  bool whole_row = false;  ///< the elements of a row lie side by side in all operands, or are one
  bool heavy = false;      ///< a product, a cell or a function over a whole block
};

/// The functions of each op, in the list of the plan's dtype.
using RowFunctionTable = std::tuple<std::vector<RowFunctions<float>>, std::vector<RowFunctions<double>>>;

/// Whether the elements of a row lie side by side in an operand, or are one.
inline bool lies_whole(const RowOp& op, const RowOperand& x) { return op.outer == 1 || x.outer_step == op.inner * x.inner_step; }

}  // namespace cpu

/// The schedule of a description: ops that run over a whole block, ops that run a few rows at a time, and the places of scratch registers.
struct RowPlan::State {
  /// Ops [first, last): one product or cell over all rows of the block, or row-wise ops over `tile` rows at a time.
  struct Group {
    std::size_t first = 0;
    std::size_t last = 0;
    std::int64_t tile = 0;  ///< 0: the whole block
    int gru = -1;           ///< the place in `gru` of what the ops are together, if they are
    int lstm = -1;          ///< the same in `lstm`
    bool is_pattern() const { return gru >= 0 || lstm >= 0; }
  };
  /// Ops that are the gates of a GRU: where each of their operands lies.
  struct Gru {
    RowOperand sums, candidate, gates_bias, candidate_bias, x, x_candidate, one, h, out;
    std::int64_t hidden = 0;
    bool turned = false;
  };
  /// Ops that are the gates of an LSTM, or their gradients: operands by their places in lstm_gate_kernels.h, none where a pattern has none.
  struct Lstm {
    bool gradients = false;
    std::int64_t hidden = 0;
    std::vector<RowOperand> operands;
  };
  /// Elements from the start of the workspace's data. A local register holds the rows of a tile, else those of the block.
  struct Place {
    std::int64_t offset = 0;
    bool local = false;
  };
  /// Equal sections of a row that never read each other, such as the heads of an attention whose states are matrices. One section may go through many runs
  /// before the next one does: the states of a section stay in the first cache.
  struct Sections {
    std::vector<std::vector<RowOp>> ops;  ///< of each section, in the order of `desc.ops`
    cpu::RowFunctionTable functions;      ///< one table for all sections
    /// An input and an output, by register: of the input each section reads no more than it wrote to the output in the run before.
    struct Handed {
      std::size_t input = 0;
      std::size_t output = 0;
      /// The elements of section 0, and the distance between sections, where one op reads all elements and writes the output, which may then lie where the
      /// input does; nothing where several ops do.
      std::optional<RowOperand> in_place;
    };
    std::vector<Handed> handed;
  };
  RowDesc desc;
  std::vector<Group> groups;
  std::vector<Gru> gru;
  std::vector<Lstm> lstm;
  std::vector<Place> places;       ///< by register; of scratch alone
  std::vector<std::size_t> given;  ///< registers that are inputs or outputs
  cpu::RowFunctionTable functions;
  std::optional<Sections> sections;  ///< where their states are too large for the first cache together
  std::int64_t block_rows = 0;
  std::int64_t elements = 0;       ///< in all
  std::int64_t table_bytes = 0;    ///< in front of the elements: where each register is now
  std::int64_t machine_bytes = 0;  ///< both; a second thread that goes through sections has as many behind them
};

namespace cpu {

/// Writes down in the workspace where constants and scratch lie; before the first `run_rows` with it.
template <class T>
void place_registers(const RowPlan::State& plan, const RowWeights& weights, void* workspace);
template <class T>
void run_rows(const RowPlan::State& plan, const RowWeights& weights, std::span<const RowView> inputs, std::span<const RowView> outputs,
              std::int64_t rows, void* workspace, SpinHelper* helper);
template <class T>
void run_tracks(const RowPlan::State& plan, const RowWeights& weights, std::span<const RowTrack> inputs, std::span<const RowTrack> outputs,
                std::int64_t rows, std::int64_t runs, void* workspace, SpinHelper* helper);

}  // namespace cpu
}  // namespace millrace
