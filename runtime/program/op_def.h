// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <millrace/kernels/row_function.h>
#include <millrace/runtime/program/gradient.h>
#include <millrace/runtime/program/program.h>

namespace millrace {

class Device;
class OpContext;

/// The view that an op's inference has, and its results. Every message it throws is given op and block by `Program::append`.
class InferContext {
 public:
  InferContext(const Program& program, const Op& op, int block) : program_(program), op_(op), block_(block) {}

  const Program& program() const noexcept { return program_; }
  const Op& op() const noexcept { return op_; }
  int block() const noexcept { return block_; }
  std::size_t inputs() const noexcept { return op_.inputs.size(); }
  bool has(std::size_t input) const noexcept { return input < op_.inputs.size() && op_.inputs[input] != no_var; }
  /// ProgramError when the input is absent.
  const VarType& type(std::size_t input) const;
  /// The type of an input that must be a tensor.
  const VarType& tensor(std::size_t input) const;
  /// The value of an input that is a weight or the result of `constant`, or null.
  const Tensor* constant(std::size_t input) const;
  const Attributes& attributes() const noexcept { return op_.attributes; }
  /// "'x' of f32[2, 3]"
  std::string describe(std::size_t input) const;

  /// One per output, in order.
  std::vector<VarType> results;
  void result(VarType type) { results.push_back(std::move(type)); }

 private:
  const Program& program_;
  const Op& op_;
  int block_;
};

/// The view that an op's `prepare` has: once per compiled program, before any run.
class PrepareContext {
 public:
  /// `device`: where the op will run; none: the host.
  PrepareContext(const Program& program, const Op& op, Device* device = nullptr) : program_(program), op_(op), device_(device) {}
  const Program& program() const noexcept { return program_; }
  const Op& op() const noexcept { return op_; }
  const Attributes& attributes() const noexcept { return op_.attributes; }
  /// The value of an input that never changes (a weight, a literal), or null: such inputs are packed once.
  const Tensor* constant(std::size_t input) const;
  const VarType& type(std::size_t input) const { return program_.var(op_.inputs.at(input)).type; }
  /// Where the op will run: weights are packed for this place.
  Place place() const;
  /// A tensor made on the host, such as packed weights, where the op will run. An empty one stays empty.
  Tensor placed(const Tensor& tensor) const;

 private:
  const Program& program_;
  const Op& op_;
  Device* device_;
};

/// Launches one op: reads inputs, sets outputs, returns at once (the work itself is on `context.stream()`).
using OpKernel = std::function<void(OpContext&)>;

/// The layout of the rows of an op in a fused loop.
struct RowForm {
  DType dtype = DType::f32;  ///< of all inputs and outputs: f32 or f64
  std::vector<DDim>
      inputs{};  ///< extents of one row; of an input that is the same for all rows, its own. Absent and constant inputs are left out
  std::vector<DDim> outputs{};  ///< extents of one row
};

class Vectorizer;

/// Relations of an op to others: the passes ask for a trait, not for a name. Nothing is assumed of an op that says nothing.
struct OpTraits {
  /// Arithmetic on numbers that counts follow: `keep` is x itself.
  enum class Arithmetic { none, keep, negate, add, subtract, multiply };
  enum class Comparison { none, equal, not_equal, less, less_equal, greater, greater_equal };

  Arithmetic arithmetic = Arithmetic::none;
  Comparison comparison = Comparison::none;
  /// A matrix product, a convolution, or a cell that has one: the cost of an iteration.
  bool product = false;
  /// The elements of the outputs are those of input 0 from another side: no arithmetic, and no copy where strides can say it.
  bool view = false;
  /// Output 0 is input 0, element for element in the same extents; the LoD may differ.
  bool forwards = false;
  /// Inputs of which the kernel reads the extents alone. Their elements may lie on another place than the op's stream, and may not be there yet: an
  /// output is no view of them.
  std::vector<std::size_t> extents_of = {};
  bool reads_extents(std::size_t input) const { return std::find(extents_of.begin(), extents_of.end(), input) != extents_of.end(); }
};

/// The definition of one kind of op. Registered from inside or outside the tree.
struct OpDef {
  std::string name;
  /// Names of the inputs in order: "X", optional "B?", and last a variadic "Xs...".
  std::vector<std::string> inputs;
  /// Names of the outputs; a last "Out..." means as many as inference gives.
  std::vector<std::string> outputs;
  /// Names of the attributes that the op reads: `Program` refuses others. A last "..." means that any may be given.
  std::vector<std::string> attributes = {"..."};
  bool takes_attribute(const std::string& attribute) const {
    return std::find(attributes.begin(), attributes.end(), attribute) != attributes.end() ||
           (!attributes.empty() && attributes.back() == "...");
  }
  /// Sets `context.results` or throws. Required.
  std::function<void(InferContext&)> infer;
  /// Reads attributes and packs weights once; its result is run each time. Null for the ops that the executor itself drives (`while`
  /// …).
  std::function<OpKernel(const PrepareContext&)> prepare;
  /// Inputs whose elements the kernel reads on the host (shapes, indices of arrays): they are awaited before it runs.
  std::vector<std::size_t> host_inputs;
  /// The rule of the op for rows, by which a program can be fed live: given the axis of each input along which rows lie (−1: none), the
  /// axis of each output along which they lie (−1: none). Throws UnsupportedError with the reason when an output row needs other rows than
  /// its own. Null: it is not described, and a program with this op on its live rows cannot be fed live.
  std::function<std::vector<int>(const InferContext&, const std::vector<int>& axes)> follow_rows;
  /// The op on rows in memory, which lets a loop with it be fused: called once for each compiled loop, with up to six inputs that are neither
  /// absent nor constant, and one or two outputs. The function that it gives has the bits of the kernel. UnsupportedError with the reason
  /// keeps the loop interpreted, and so does null.
  std::function<RowFunction(const PrepareContext&, const RowForm&)> prepare_rows;
  /// Whether the op looks along axis 0: the function of `prepare_rows` is then called once for an iteration, with all of its rows. Null: no.
  std::function<bool(const Op&)> couples_rows;
  /// The gradient rule of the op. Null: a program that needs the gradient of an input of this op is refused by name.
  GradientRule gradient;
  /// True: every output is constant almost everywhere in every input (comparisons, rounding, argmax), so that no gradient goes through.
  bool cuts_gradient = false;
  /// Rewrites one step of one sequence into one step of many: see program/vectorize.h. Null: cannot.
  std::function<void(Vectorizer&, const Op&)> vectorize;
  /// For ops that write an array: the inputs that are the array and the value. An array's slots get their type from what is written.
  std::optional<std::pair<std::size_t, std::size_t>> stores;
  /// Whether outputs with as many rows as the input that carries LoD get that LoD (the designs' CopyInSeqToOut). Ops that set it themselves
  /// say false.
  bool passes_lod = true;
  /// False: results may differ from call to call or it has effects. A pure op is folded where its inputs are constants, dropped where nobody reads it, and, where
  /// it reads extents alone, its results may be those of an earlier run.
  bool pure = true;
  OpTraits traits = {};
};

}  // namespace millrace
