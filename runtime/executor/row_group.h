// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include <millrace/runtime/loops/cpu_fused/row_kernel.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/program.h>

namespace millrace {

/// Ops of one block as one kernel on the host (loops/cpu_fused/row_kernel.h): their small tensors stay in registers of a row plan. The bits are those
/// of the ops one by one. Immutable; any number of threads may run it at the same time.
class RowGroup : public std::enable_shared_from_this<RowGroup> {
 public:
  /// The layout of the tensors of an op in the kernel.
  enum class Form : std::uint8_t {
    none,  ///< not at all: another extent than that of axis 0 is unknown, a LoD, many integers, …
    one,   ///< all extents are known: each tensor is one row
    rows   ///< the extent of axis 0 is unknown, and counts the rows
  };
  /// The form that fits all inputs and outputs of `op` that are not constant. A tensor of more than `most_elements` has none.
  static Form form_of(const Program& program, const Op& op);

  /// `ops` stand in one block of `program` in that order; all have the form `form`. `outputs`: vars that others read. UnsupportedError says which
  /// op has no rule for rows.
  RowGroup(const Program& program, std::span<const Op* const> ops, Form form, const std::vector<VarId>& outputs);

  /// Vars that the ops read and do not make, without constants. The values of a run are in that order.
  const std::vector<VarId>& inputs() const noexcept { return inputs_; }

  /// Whether the values have the types that the kernel was made for, as many rows as each other, and integers that it holds.
  bool fits(std::span<const Value* const> values) const;
  /// Sets the outputs. The values fit.
  void run(OpContext& context) const;

  /// Elements of one tensor, and multiply-adds of one product, beyond which several threads may share an op: it is left alone. Integers are looked at
  /// before each run, so that there may be few of them.
  static constexpr std::int64_t most_elements = 4096;
  static constexpr std::int64_t most_integers = 64;
  static constexpr std::int64_t most_products = std::int64_t{1} << 17;

 private:
  struct Port {
    DType dtype = DType::f32;
    DDim dims;               // of one row
    std::int64_t width = 0;  // elements of a row
    // The place of the numbers of bool and integers behind the workspace of the plan, in elements of a row; −1: the elements are those of the plan.
    std::int64_t aside = -1;
  };
  struct Job;
  Port port_of(const VarType& type);
  void run_rows(std::span<RowView> views, std::int64_t rows) const;
  template <class T>
  static void read_numbers(const Port& port, const RowView& from, T* numbers, std::int64_t count);
  template <class T>
  static void write_numbers(const Port& port, const T* numbers, const RowView& to, std::int64_t count);
  template <class T>
  void run_rows_in(std::span<RowView> views, std::int64_t rows) const;

  Form form_;
  std::vector<VarId> inputs_;
  std::optional<RowKernel> kernel_;
  RowWeights weights_;
  std::vector<Port> in_, out_;
  std::int64_t aside_ = 0;  // elements of a row that are bool or integers
};

}  // namespace millrace
