// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include <millrace_onnx.pb.h>

#include <millrace/runtime/models/import/onnx.h>
#include <millrace/runtime/models/import/with_onnx/cuts.h>
#include <millrace/runtime/models/import/with_onnx/node.h>
#include <millrace/runtime/models/import/with_onnx/source.h>
#include <millrace/runtime/models/import/with_onnx/values.h>
#include <millrace/runtime/program/program.h>

namespace millrace::importing {

struct ElementRule;
struct ElementType;

/// Iterations the graphs of one model into blocks of one program, node by node; a rule per ONNX op (rules.h) says which
/// standard ops a node becomes.
class Importer {
 public:
  Importer(Source& source, const OnnxOptions& options, const onnx::ModelProto& model);
  Program run();

  // ---- what rules use
  std::int64_t opset() const noexcept { return opset_; }
  Program& program() noexcept { return program_; }
  const VarType& type(VarId var) const { return program_.var(var).type; }
  /// The block that ops are appended to.
  int block() const noexcept { return scopes_.back().block; }

  /// The var of an input. ProgramError when it is absent or nothing before the node defines it.
  VarId in(const Node& node, std::size_t input);
  /// The var of an input; `no_var` when it is absent.
  VarId in_or_none(const Node& node, std::size_t input) { return node.has(input) ? in(node, input) : no_var; }
  std::vector<VarId> all_in(const Node& node);
  /// The value of an input that the file itself holds (an initializer, a Constant), or that small ops make of such values and of known
  /// extents; else null.
  const Tensor* known(const Node& node, std::size_t input);
  const Tensor* known(const std::string& name);
  /// The known value as integers. ProgramError when it is of another dtype.
  std::optional<Ints> known_integers(const Node& node, std::size_t input);
  /// The known value as integers, for an op that has no other form: UnsupportedError when the value is not known, `otherwise` when the input
  /// is absent.
  Ints needed_integers(const Node& node, std::size_t input, const Ints& otherwise);
  /// The numbers of a list of the program, as far as they are known.
  std::optional<std::vector<Element>> elements(VarId var) { return values_.elements(var); }
  /// The value that `var` is in another form, and the var and axis that an extent comes from (values.h).
  VarId source(VarId var, bool casts = false) const { return values_.source(var, casts); }
  const Op* maker(VarId var) const { return values_.maker(var); }
  VarId copied(VarId var) const { return var == no_var ? var : values_.copied(var); }
  Element origin(VarId var, int axis) { return values_.origin(var, axis); }
  std::vector<Element> broadcast_from(VarId var, int axis) const { return values_.broadcast_from(var, axis); }
  bool same_extent(VarId a, int axis, VarId b, int other) { return origin(a, axis) == origin(b, other); }
  /// Takes the extent of a param along an axis for that of a place outside, until an iteration was seen to change it: a state of this body, and its axis.
  void take_extent(VarId param, int axis, const Element& place) { values_.same_extent(param, axis, place); }
  std::set<std::pair<std::size_t, int>>& changed_extents(const onnx::GraphProto& graph) { return changed_extents_[&graph]; }
  /// The var that a name of the file has here; `no_var`: none.
  VarId named(const std::string& name) { return find(name); }
  /// Every run needs this extent of `x` along an axis. Where it is that of an input of the graph, whose file leaves it open, the input gets it (in another
  /// attempt, see `again`).
  void needs_extent(VarId x, int axis, std::int64_t extent);
  /// Rank of a var. UnsupportedError when it is not known.
  int rank(VarId var) const;

  /// Appends an op and returns its outputs.
  std::vector<VarId> emit(const std::string& op, std::vector<VarId> inputs, Attributes attributes = {},
                          const std::vector<std::string>& names = {});
  /// Appends an op of one output, and returns that.
  VarId emit1(const std::string& op, std::vector<VarId> inputs, Attributes attributes = {}, const std::string& name = "");
  /// `x` without these axes of extent 1: where an op gave it them, what it was before.
  VarId squeezed(VarId x, Ints axes, const std::string& name = "");
  /// Appends an op whose output is the first output of `node`.
  void give(const Node& node, const std::string& op, std::vector<VarId> inputs, Attributes attributes = {});
  /// Binds an output that somebody may read to a var.
  void bind(const Node& node, std::size_t output, VarId var);
  /// The output of `node` is a value that never changes.
  void bind_constant(const Node& node, Tensor value, const ElementType* type = nullptr);
  VarId literal(Tensor value, const std::string& name = "");
  VarId literal(const Ints& list) { return literal(Tensor::from<std::int64_t>(list, DDim{static_cast<std::int64_t>(list.size())})); }
  Tensor tensor_of(const onnx::TensorProto& proto, const std::string& what);
  /// The tensor of any type of numbers: a type without a dtype is held in a wider one (element_types.h).
  Tensor held_tensor_of(const onnx::TensorProto& proto, const std::string& what);

  /// The ONNX type of a var's elements where it has no dtype here, else null.
  const ElementType* element(VarId var) const;
  void set_element(VarId var, const ElementType* type);

  /// The bytes of a var that a DequantizeLinear made, as far as they are known.
  struct Dequantized {
    VarId bytes = no_var, scale = no_var, zero = no_var;
    std::int64_t axis = 0;
    std::optional<Tensor> known_bytes, known_zero, known_scale;
  };
  const Dequantized* dequantized(VarId var) const;
  void set_dequantized(VarId var, Dequantized from) { notes_.dequantized[var] = std::move(from); }

  /// Begins a block inside the innermost one, which ops are appended to until `leave`. Returns its parameters.
  struct Param {
    std::string name;
    VarType type;
  };
  std::vector<VarId> enter(const std::vector<Param>& params);
  /// One more parameter of the innermost block.
  VarId add_param(const std::string& name, const VarType& type);
  /// Arrays of the steps of tensors outside a loop, by tensor and axis.
  using Steps = std::map<std::pair<VarId, int>, VarId>;
  /// The graph that is being imported.
  const onnx::GraphProto& graph() const { return *scopes_.back().graph; }
  /// The cuts of the outermost graph.
  const Cuts& cuts();
  /// Another form of a node, by the graph that it holds and a word for how it differs; it lives as long as the import. Null at first.
  std::unique_ptr<onnx::NodeProto>& other_form(const onnx::GraphProto& body, const std::string& kind) {
    return other_forms_[{&body, kind}];
  }
  /// By the name of an output that a loop scans: a value and an axis of it, whose other extents are those of a slot.
  std::map<std::string, std::pair<VarId, std::int64_t>>& pieces_of() noexcept { return notes_.pieces_of; }
  /// Tensors that stand for the list of their rows along axis 0.
  std::set<VarId>& stacked_lists() noexcept { return notes_.stacked_lists; }
  /// `count` numbers the iterations of the innermost block: what its body takes of a tensor at that place is a slot of `steps`.
  void read_steps(VarId count, Steps steps) {
    scopes_.back().count = count;
    scopes_.back().steps = std::move(steps);
  }
  /// Reads that slot; `no_var` where there is no such array, or where `index` is no such count.
  VarId step_read(VarId x, int axis, VarId index);
  /// The numbers of the iterations of the loops around the innermost block, the outermost loop first: i64 of no axes.
  std::vector<VarId> counters() const;
  /// A number of its own for each node that draws numbers.
  std::int64_t next_draw() { return ++notes_.draws; }
  /// Imports a sub-graph into the innermost block. Returns what its outputs are, each a var of that block.
  std::vector<VarId> body(const onnx::GraphProto& graph, const std::vector<VarId>& inputs);
  /// Ends the innermost block with its results, and returns its index.
  int leave(std::vector<VarId> results);

  /// Imports a sub-graph without inputs as ops of the innermost block itself.
  std::vector<VarId> inlined(const onnx::GraphProto& graph);

  /// Where the import is, and the way back there after an error: what was appended since is left behind, so `again`.
  struct Mark {
    std::size_t scopes;
  };
  Mark mark() const { return {scopes_.size()}; }
  void back_to(const Mark& mark);

  /// Types of what a loop carries, as wide as attempts at this graph found them to be. Where an attempt failed, `again`
  /// says so: once all is imported, and all such types are known, the program is made anew without what the attempts
  /// left.
  std::vector<VarType>& widened(const onnx::GraphProto& graph) { return widened_[&graph]; }
  void again() noexcept { again_ = true; }

 private:
  /// A value that the file holds, not yet a var.
  struct Known {
    Tensor value;
    bool weight = false;
    const ElementType* element = nullptr;
    bool setting = false;  ///< no weight, however large
  };
  /// The names that one graph defines.
  struct Scope {
    int block = 0;
    std::unordered_map<std::string, VarId> vars;
    std::unordered_map<std::string, Known> known;
    const onnx::GraphProto* graph = nullptr;
    VarId count = no_var;  ///< see read_steps
    Steps steps = {};
  };

  const ElementType* element_named(const std::string& name) const;
  const ElementType* element_in(const Node& node, const ElementRule*& rule);
  void give_elements(const Node& node, const ElementRule& rule, const ElementType& type);
  Program attempt();
  void check_opset(const onnx::ModelProto& model);
  void check_ops() const;
  void inputs(const onnx::GraphProto& graph);
  void initializers(const onnx::GraphProto& graph);
  void nodes(const onnx::GraphProto& graph);
  std::vector<VarId> outputs(const onnx::GraphProto& graph);
  void node(const onnx::NodeProto& proto);
  VarId find(const std::string& name);
  VarId extent_alone(VarId var);
  VarId make_var(Scope& scope, const std::string& name);
  void define(const std::string& name, VarId var);
  std::string node_prefix() const;
  [[noreturn]] void fail(const std::string& what) const;

  Source& source_;
  const OnnxOptions& options_;
  const onnx::ModelProto& model_;
  std::int64_t opset_ = 0;
  std::set<std::string> settings_;         // see settings.h
  std::map<std::string, Known> defaults_;  // of inputs that stay inputs
  Program program_;
  Values values_{program_};
  std::vector<Scope> scopes_;
  const Node* node_ = nullptr;  // the one that is being imported
  std::map<const onnx::GraphProto*, std::vector<VarType>> widened_;
  std::map<const onnx::GraphProto*, std::set<std::pair<std::size_t, int>>> changed_extents_;
  std::map<std::pair<const onnx::GraphProto*, std::string>, std::unique_ptr<onnx::NodeProto>> other_forms_;
  std::optional<Cuts> cuts_;
  bool again_ = false;
  std::map<std::string, std::map<int, std::int64_t>> needed_extents_;  // of inputs, by axis
  /// Notes on vars, which another attempt numbers anew.
  struct Notes {
    std::int64_t draws = 0;
    std::map<std::string, std::pair<VarId, std::int64_t>> pieces_of;
    std::set<VarId> stacked_lists;
    std::unordered_map<VarId, const ElementType*> elements;
    std::unordered_map<VarId, Dequantized> dequantized;
  };
  Notes notes_;
};

/// A tensor of one element.
Tensor scalar_of(DType dtype, double value);

}  // namespace millrace::importing
