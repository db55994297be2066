// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include <millrace_onnx.pb.h>

#include <millrace/runtime/program/program.h>

namespace millrace::exporting {

class RowsOfSequences;
using Ints = std::vector<std::int64_t>;
using Names = std::vector<std::string>;
/// Attributes of a node.
using Setting = std::variant<std::int64_t, double, std::string, Ints, Tensor>;
using Settings = std::vector<std::pair<std::string, Setting>>;

/// The form of an array at a place of the graph.
struct ArrayState {
  enum class Form : std::uint8_t {
    unwritten,  ///< nothing was written yet
    stacked,    ///< all slots, as a tensor [n, slot…]
    slab,       ///< a tensor [n, slot…] that writes fill
    list        ///< an ONNX sequence of slots, written in order
  };
  Form form = Form::unwritten;
  std::string value = {};  ///< the tensor or sequence
  std::string size = {};   ///< of an array that was made with a size: i64, one element; else empty
  std::string last = {};   ///< carried out of the loop that wrote it: the last slot, or `boot` where there is none
  VarId boot = no_var;
};

/// Names and types known inside one graph, beside those known around it.
struct Scope {
  onnx::GraphProto* graph = nullptr;
  std::map<VarId, std::string> names;
  std::map<VarId, ArrayState> arrays;    ///< by root
  std::map<VarId, std::string> slices;   ///< of a scanned array: its slot of this step
  std::map<VarId, std::string> lags;     ///< of an array that the iteration writes: its slot of the step before
  std::map<VarId, std::string> written;  ///< by array that becomes a scanned output: the value that the iteration wrote
  std::set<VarId> scanned;               ///< those arrays
  VarId counter = no_var;                ///< the loop's number of the step
};

/// A number of a step: a counter plus an offset.
struct Place {
  VarId counter = no_var;
  std::int64_t offset = 0;
};

/// Iterations the blocks of one program into the graphs of one model, op by op; a rule per op (rules.h) says which nodes it becomes.
class Exporter {
 public:
  /// `plain_names`: spaces in the names of inputs and outputs become `_`. `batched`: of many sequences, with their lengths. `initial`: an input
  /// that has the name of an output is called initial_NAME.
  Exporter(Program program, bool plain_names, bool batched = false, bool initial = false);
  onnx::ModelProto run();

  // ---- what rules use
  const Program& program() const noexcept { return program_; }
  const VarType& type(VarId var) const { return program_.var(var).type; }
  const VarType& type(const Op& op, std::size_t input) const { return type(op.inputs.at(input)); }
  static bool has(const Op& op, std::size_t input) { return input < op.inputs.size() && op.inputs[input] != no_var; }
  /// The name of an input's value; empty when it is absent.
  std::string in(const Op& op, std::size_t input) { return has(op, input) ? name(op.inputs[input]) : std::string(); }
  Names all_in(const Op& op);
  /// The name of a var's value.
  std::string name(VarId var);
  /// Integers that an input always holds.
  std::optional<Ints> known(const Op& op, std::size_t input) const;
  /// Rank of an input. UnsupportedError when it is not known.
  int rank(const Op& op, std::size_t input) const;

  /// Appends a node and returns its outputs.
  Names nodes(const std::string& onnx, Names inputs, std::size_t outputs, const Settings& settings = {}, const std::string& hint = "");
  std::string node(const std::string& onnx, Names inputs, const Settings& settings = {}, const std::string& hint = "") {
    return nodes(onnx, std::move(inputs), 1, settings, hint).front();
  }
  /// A node that is the one output of `op`.
  void give(const Op& op, const std::string& onnx, Names inputs, const Settings& settings = {});
  /// A node without inputs whose attribute `type` says what it would hold.
  void give_typed(const Op& op, const std::string& onnx, const VarType& held);
  void bind(VarId var, std::string value) { scopes_.back().names[var] = std::move(value); }

  /// Values that never change.
  std::string constant(const Tensor& value, const std::string& hint = "");
  std::string ints(const Ints& list);
  std::string whole(std::int64_t value);
  std::string number(DType dtype, double value);
  /// A model of at least this opset.
  void need_opset(std::int64_t opset) { opset_ = std::max(opset_, opset); }

  /// i64, one element → rank 0 (what `index` is already, or a reshape of it).
  std::string scalar(VarId var);
  /// The number of rows along axis 0, rank 0.
  std::string length_of(const std::string& tensor, int axis = 0);
  std::string flipped(const std::string& tensor, std::int64_t axis);
  std::string cast(const std::string& tensor, DType to);
  /// A list of numbers, or one number.
  std::string reshaped(const std::string& tensor, const Ints& extents) { return node("Reshape", {tensor, ints(extents)}); }
  /// Along axis 0.
  std::string gathered(const std::string& tensor, const std::string& index);
  std::string joined(const Names& tensors, std::int64_t axis = 0);

  // ---- arrays
  /// The `tensor_array`, `unpack`, … output that a var stands for.
  VarId root(VarId array) const;
  ArrayState& array(VarId var);
  void set_array(VarId var, ArrayState state) { scopes_.back().arrays[root(var)] = std::move(state); }
  /// Makes an array that is written out of order a slab or a list.
  void make_general(VarId var);
  /// The number of the step plus an offset, when `index` is that.
  std::optional<Place> place_of(VarId index) const;
  Scope* scanning(VarId array);
  const std::string* found(std::map<VarId, std::string> Scope::* map, VarId array, VarId counter);
  Scope& scope() { return scopes_.back(); }

  /// Whether a value is one in ONNX too: tensors, lists and optionals, and no arrays or orders.
  static bool is_value(const VarType& of) { return !of.is_array() && of.kind != VarKind::order; }

  // ---- control
  /// A Loop of `trips` iterations (rank 0), perhaps none. `body` is given the number of the iteration and the carried values, as many as `initial`;
  /// it gives their next ones, and behind them what the iteration adds to each scanned output. Gives the last values and the scanned outputs.
  Names repeat(const std::string& trips, const Names& initial, const std::vector<VarType>& carried, const std::vector<VarType>& scanned,
               const std::function<Names(const std::string& iteration, const Names& values)>& body);
  /// One of two values, of which only the one that is chosen is computed.
  std::string choose(const std::string& condition, const VarType& type, const std::function<std::string()>& yes,
                     const std::function<std::string()>& no);
  void branch(const Op& op);
  void loop(const Op& op);
  /// The op that gives a var, or null.
  const Op* maker(VarId var) const;

 private:
  struct Iteration;
  struct Tail {
    Names carried;
    std::string proceed;
  };

  class SequencePorts;
  struct Given;

  void inputs();
  void outputs();
  void batch();
  std::vector<Given> batch_inputs(const SequencePorts& ports);
  void bind_sequence(const Given& given, const std::string& iteration);
  std::string no_rows(const VarType& rows, int axis);
  std::string input_name(const Program::Port& port) const;
  void claim_ports();
  std::string claimed(const std::string& name);
  std::string exported(VarId var);
  void give_port(const std::string& port, const std::string& value, const VarType& of);
  void block(int index);
  void op(const Op& op);
  void check_ops() const;
  void drop_unused();
  std::string fresh(const std::string& hint);
  onnx::ValueInfoProto* describe(onnx::ValueInfoProto* info, const std::string& name, const VarType& type,
                                 const std::string& dim_prefix = "", const std::vector<std::string>& extents = {});
  std::string unnamed_extent(const std::string& prefix, int axis) const;
  VarType port_type(const Program::Port& port) const;
  void describe_array(onnx::ValueInfoProto* info, const std::string& name, VarId root);
  /// `value` as an output of the innermost graph: a value that one of its nodes gives, for this output alone.
  std::string own(const std::string& value);
  void enter(onnx::GraphProto* graph, const std::string& name);
  onnx::NodeProto* raw_node(const std::string& onnx);
  onnx::GraphProto* subgraph(onnx::NodeProto* node, const std::string& attribute);

  std::set<VarId> mutated(int block) const;
  void collect_mutated(int block, std::set<VarId>& found) const;
  Iteration plan(const Op& op);
  void find_test(Iteration& iteration) const;
  void find_roles(Iteration& iteration, int block);
  bool becomes_output(const Iteration& iteration, VarId of, VarId& boot);
  bool may_differ_in_rows(VarId of) const;
  void find_scan(const Op& loop, Iteration& iteration);
  bool keeps_extents(const Op& op, const Iteration& iteration) const;
  bool changes_extents(const Op& op) const;
  bool made_of_changes(const Iteration& iteration, VarId next) const;
  VarId length_key(VarId var, int depth = 0) const;
  std::set<VarId> slot_keys(VarId var, int depth) const;
  Names loop_inputs(const Op& op, Iteration& iteration);
  void enter_iteration(Iteration& iteration, onnx::GraphProto* body);
  void leave_iteration(const Iteration& iteration, const Names& carried);
  void finish_loop(const Op& op, const Iteration& iteration, onnx::NodeProto* node);
  void emit_scan(const Op& op, Iteration& iteration);
  onnx::NodeProto* scan_node(Iteration& iteration, const Names& inputs);
  bool surely_steps(const Iteration& iteration);
  void no_steps(const Iteration& iteration, const Names& initial);
  std::string no_slots(VarId array);
  void steps(const Iteration& iteration, onnx::NodeProto* scan);
  void emit_loop(const Op& op, Iteration& iteration);
  std::string goes_on(const Iteration& iteration, const Names& carried, const std::map<VarId, std::string>& lags);
  Tail tail(const Iteration& iteration, std::size_t from);
  Tail leave_or_go_on(const Iteration& iteration, std::size_t at);

  Program program_;
  bool plain_names_;
  bool initial_;
  bool batched_;
  onnx::ModelProto model_;
  std::int64_t opset_ = 18;
  std::deque<Scope> scopes_;  // references to what is in them stay good
  std::set<std::string> taken_;
  std::map<VarId, std::string> constants_;
  std::map<std::string, std::string> small_;
  std::map<VarId, const Op*> makers_;
  std::map<VarId, VarId> aliases_;
  std::map<std::string, std::vector<std::string>> refused_;
};

onnx::TensorProto::DataType onnx_type(DType dtype);
onnx::TensorProto tensor_proto(const Tensor& value, const std::string& name);

}  // namespace millrace::exporting
