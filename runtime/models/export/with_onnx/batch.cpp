// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/export/with_onnx/batch.h>

#include <algorithm>
#include <optional>

#include <millrace/runtime/models/export/with_onnx/exporter.h>
#include <millrace/runtime/program/op_def.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/tensor/error.h>

/// Many sequences: the graph of one, once for each.
namespace millrace::exporting {
namespace {

/// Ops that know sequences themselves: each computes one without the others, whatever `follow_rows` says of their rows.
const std::set<std::string_view>& sequence_wise() {
  static const std::set<std::string_view> ops = {"crf_decoding",
                                                 "ctc_greedy",
                                                 "linear_chain_crf",
                                                 "lod_reset",
                                                 "merge_by_mask",
                                                 "pack",
                                                 "restore_lod_tensor_from_timesteps",
                                                 "row_conv",
                                                 "sequence_concat",
                                                 "sequence_conv",
                                                 "sequence_enumerate",
                                                 "sequence_erase",
                                                 "sequence_expand",
                                                 "sequence_expand_as",
                                                 "sequence_mask",
                                                 "sequence_pool",
                                                 "sequence_reshape",
                                                 "sequence_reverse",
                                                 "sequence_scatter",
                                                 "sequence_slice",
                                                 "sequence_softmax",
                                                 "sequence_top_k",
                                                 "sequence_trim",
                                                 "sequence_unpad",
                                                 "split_by_mask",
                                                 "split_lod_tensor_to_timesteps",
                                                 "unpack",
                                                 "last_rows",
                                                 "constant_rows",
                                                 "reorder",
                                                 "shrink",
                                                 "drop_lod",
                                                 "edit_distance",
                                                 "same_steps"};
  return ops;
}

/// Inputs that are one row for each sequence where they have no LoD.
std::vector<std::size_t> row_each(const Op& op) {
  if (op.type == "reorder" || op.type == "sequence_expand" || op.type == "sequence_expand_as" || op.type == "sequence_scatter") return {0};
  if (op.type == "last_rows" || op.type == "tensor_array_read") return {2};
  if (op.type == "sequence_slice") return {1, 2};
  if (op.type == "sequence_trim") return {1};
  if (op.type == "sequence_unpad") return {0, 1};
  return {};
}

bool tells_steps(std::string_view op) {
  return op == "equal" || op == "less" || op == "less_equal" || op == "greater" || op == "greater_equal" || op == "tensor_array" ||
         op == "tensor_array_read" || op == "break_if" || op == "while";
}

}  // namespace

RowsOfSequences::RowsOfSequences(const Program& program) : program_(program) {
  while (changed_) {
    changed_ = false;
    ask_back();
    follow(0);
  }
}

int RowsOfSequences::axis(VarId var) const {
  const VarType& of = program_.var(var).type;
  if (of.is_tensor() && (of.lod_depth > 0 || of.ordered)) return 0;
  const auto found = axes_.find(var);
  return found == axes_.end() ? -1 : found->second;
}

void RowsOfSequences::mark(VarId var, int axis) {
  if (var == no_var || axis < 0 || this->axis(var) >= 0 || program_.constant(var) != nullptr) return;
  axes_[var] = axis;
  changed_ = true;
}

/// A value with a row for each sequence was computed from such values, or is an input that has them.
void RowsOfSequences::ask_back() {
  for (const Block& block : program_.blocks()) {
    for (auto op = block.ops.rbegin(); op != block.ops.rend(); ++op) {
      const bool ordered = op->type != "tensor_array_read" || program_.var(op->inputs[0]).type.ordered;
      for (const std::size_t input : row_each(*op))
        if (ordered && input < op->inputs.size()) mark(op->inputs[input], 0);
      if (op->outputs.size() != 1 || axis(op->outputs[0]) != 0 || !axes_.contains(op->outputs[0])) continue;
      const VarType& made = program_.var(op->outputs[0]).type;
      for (const VarId input : op->inputs) {
        if (input == no_var) continue;
        const VarType& of = program_.var(input).type;
        const bool alike = of.is_tensor() && made.rank() > 0 && of.rank() == made.rank() && (*of.shape)[0] == DDim::unknown;
        if (alike && !sequence_wise().contains(op->type)) mark(input, 0);
      }
    }
  }
}

void RowsOfSequences::follow(int index) {
  const Block& block = program_.block(index);
  for (const Op& op : block.ops) {
    for (const auto& [name, attribute] : op.attributes)
      if (const auto* inner = std::get_if<BlockId>(&attribute)) hand_over(op, inner->index);
    follow(op, index);
  }
}

/// A loop hands on what it carries, a branch gives what its block gives.
void RowsOfSequences::hand_over(const Op& op, int inner) {
  const Block& body = program_.block(inner);
  for (std::size_t i = 0; op.type == "while" && i < op.inputs.size(); ++i) {
    mark(body.params[i], axis(op.inputs[i]));
    mark(body.params[i], axis(body.results[i]));
  }
  follow(inner);
  for (std::size_t i = 0; i < op.outputs.size(); ++i) {
    mark(op.outputs[i], axis(body.results[i]));
    if (op.type == "while") mark(op.outputs[i], axis(op.inputs[i]));
  }
}

void RowsOfSequences::follow(const Op& op, int block) {
  if (op.type == "while" || op.type == "break_if") return;
  if (op.type == "if") {
    if (axis(op.inputs[0]) >= 0) refuse(op, "decides by the rows of all sequences");
    return;
  }
  count_steps(op);
  std::vector<int> axes;
  bool any = false, arrays = false, unordered = false;
  for (const VarId input : op.inputs) {
    axes.push_back(input == no_var ? -1 : axis(input));
    any = any || axes.back() >= 0;
    if (input == no_var) continue;
    const VarType& of = program_.var(input).type;
    arrays = arrays || of.is_array() || of.kind == VarKind::order;
    unordered = unordered || (of.is_array() && !of.ordered);
  }
  if (unordered && any) refuse(op, "keeps rows of all sequences in an array without an order");
  const bool whole = sequence_wise().contains(op.type);
  for (const VarId output : op.outputs)
    if (whole && program_.var(output).type.rank() > 0) mark(output, 0);
  if (whole || arrays || !any) return;
  const OpDef& def = program_.registry().at(op.type);
  if (!def.follow_rows) refuse(op, "may join rows of several sequences");
  try {
    const std::vector<int> made = def.follow_rows(InferContext(program_, op, block), axes);
    for (std::size_t i = 0; i < made.size() && i < op.outputs.size(); ++i) mark(op.outputs[i], made[i]);
  } catch (const UnsupportedError& error) {
    refuse(op, error.what());
  }
}

/// The number of steps is another one for each sequence: it may say where a loop ends, and nothing else.
void RowsOfSequences::count_steps(const Op& op) {
  bool counts = op.type == "tensor_array_size" && program_.var(op.inputs[0]).type.ordered;
  for (const VarId input : op.inputs) counts = counts || steps_.contains(input);
  if (!counts || tells_steps(op.type)) return;
  const bool goes_on =
      op.type == "tensor_array_size" || op.type == "sub" || op.type == "add" || op.type == "maximum" || op.type == "identity";
  if (!goes_on) refuse(op, "computes with the number of steps, which differs from sequence to sequence");
  steps_.insert(op.outputs.begin(), op.outputs.end());
}

void RowsOfSequences::refuse(const Op& op, const std::string& reason) const {
  throw UnsupportedError("program '" + program_.title() + "': op '" + op.type + "'" +
                         (op.outputs.empty() ? std::string() : " of '" + program_.var(op.outputs[0]).name + "'") +
                         ": expected each sequence computed without the others, found that it " + reason);
}

// ---- The model

/// The ports that hold values of several sequences, and the axis of these.
class Exporter::SequencePorts {
 public:
  explicit SequencePorts(const Program& program) : program_(program) {
    for (const Program::Port& port : program.inputs()) ragged_ = ragged_ || program.var(port.var).type.lod_depth > 0;
    if (ragged_) rows_.emplace(program);
  }

  /// A program without LoD works on one sequence, whose rows lie along the one open extent of a value. −1: no rows of sequences.
  int axis(const Program::Port& port) const {
    if (ragged_) return rows_->axis(port.var);
    const VarType& of = program_.var(port.var).type;
    if (!of.is_tensor() || !of.shape) refuse(port, "expected a tensor of known rank");
    int open = -1;
    for (int axis = 0; axis < of.rank(); ++axis) {
      if ((*of.shape)[axis] != DDim::unknown) continue;
      if (open >= 0) refuse(port, "expected one open extent at most, that of a sequence's rows, with a batch of 1");
      open = axis;
    }
    return open;
  }
  /// Whether sequences have rows of different numbers there, as against one value each.
  bool has_lengths(const Program::Port& port) const { return ragged_ ? program_.var(port.var).type.lod_depth > 0 : axis(port) >= 0; }
  bool ragged() const noexcept { return ragged_; }

 private:
  [[noreturn]] void refuse(const Program::Port& port, const std::string& expected) const {
    throw UnsupportedError("program '" + program_.title() + "': '" + port.name + "': " + expected + ", found " +
                           program_.var(port.var).type.to_string());
  }

  const Program& program_;
  bool ragged_ = false;
  std::optional<RowsOfSequences> rows_;
};

/// Where one sequence lies in rows and lengths that are given.
struct Exporter::Given {
  const Program::Port* port;
  int axis;
  std::string rows, lengths, begins;
};

std::vector<Exporter::Given> Exporter::batch_inputs(const SequencePorts& ports) {
  std::vector<Given> given;
  for (const Program::Port& port : program_.inputs()) {
    const VarType& of = type(port.var);
    if (!of.is_tensor() || of.lod_depth > 1)
      throw UnsupportedError("program '" + program_.title() + "': input '" + port.name +
                             "': expected a tensor of at most one level of LoD, found " + of.to_string());
    std::vector<std::string> extents = port.extents;
    if (const auto axis = static_cast<std::size_t>(ports.axis(port)); ports.axis(port) >= 0 && axis < extents.size())
      extents[axis].clear();  // there the rows of all sequences lie
    describe(scope().graph->add_input(), port.name, of, port.name, extents);
    if (ports.axis(port) < 0) {
      bind(port.var, port.name);
      continue;
    }
    Given each{&port, ports.axis(port), port.name, {}, {}};
    if (ports.has_lengths(port)) {
      each.lengths = claimed(port.name + ".lengths");
      VarType lengths(DType::i64, DDim{DDim::unknown});
      describe(scope().graph->add_input(), each.lengths, lengths, "sequences");
      each.begins = node("CumSum", {each.lengths, whole(0)}, {{"exclusive", std::int64_t{1}}});
    }
    given.push_back(each);
  }
  return given;
}

/// The rows of sequence `iteration`.
void Exporter::bind_sequence(const Given& given, const std::string& iteration) {
  const std::string at = node("Reshape", {iteration, ints({1})});
  const std::string begin = given.lengths.empty() ? at : gathered(given.begins, at);
  const std::string count = given.lengths.empty() ? ints({1}) : gathered(given.lengths, at);
  bind(given.port->var,
       node("Slice", {given.rows, begin, node("Add", {begin, count}), ints({given.axis})}, {}, given.port->name + "_of_one"));
}

namespace {

/// A list that rows of a sequence are added to, with nothing in it.
VarType list_of_rows(const VarType& rows) {
  VarType element = VarType::unranked(rows.dtype);
  return VarType::list_of(element);
}

}  // namespace

/// No rows, where all but their number is known: then there may be no sequence at all.
std::string Exporter::no_rows(const VarType& rows, int axis) {
  Ints extents;
  for (int i = 0; i < rows.rank(); ++i) extents.push_back(i == axis ? 0 : (*rows.shape)[i]);
  const bool known =
      rows.rank() > 0 && std::none_of(extents.begin(), extents.end(), [](std::int64_t each) { return each == DDim::unknown; });
  if (!known) return node("SequenceEmpty", {}, {{"dtype", std::int64_t{onnx_type(rows.dtype)}}});
  const Tensor none(rows.dtype, make_ddim(extents));
  return node("SequenceConstruct", {constant(none, "no_rows")});
}

void Exporter::batch() {
  const SequencePorts ports(program_);
  const std::vector<Given> given = batch_inputs(ports);
  const auto ragged = std::find_if(given.begin(), given.end(), [](const Given& each) { return !each.lengths.empty(); });
  if (ragged == given.end())
    throw UnsupportedError(
        "program '" + program_.title() +
        "': expected an input with LoD, or with an open extent for the rows of a sequence, to make a batch of, found none");
  Names lists;
  std::vector<VarType> carried, scanned;
  std::vector<VarType> given_back;
  for (const Program::Port& port : program_.outputs()) {
    VarType of = type(port.var);
    if (!of.is_tensor() || (ports.ragged() && ports.axis(port) < 0))
      throw UnsupportedError("program '" + program_.title() + "': output '" + port.name +
                             "': expected one that the sequences decide, found " + of.to_string() + " that they do not");
    // One value for each sequence gets an axis of sequences.
    if (ports.axis(port) < 0) of.shape = of.shape->inserted(0, DDim::unknown);
    lists.push_back(no_rows(of, std::max(ports.axis(port), 0)));
    carried.push_back(list_of_rows(of));
    if (ports.has_lengths(port)) scanned.emplace_back(DType::i64, DDim{});
    given_back.push_back(std::move(of));
  }
  const Names made = repeat(length_of(ragged->lengths), lists, carried, scanned, [&](const std::string& iteration, const Names& before) {
    for (const Given& each : given) bind_sequence(each, iteration);
    block(0);
    Names next, lengths;
    for (std::size_t i = 0; i < program_.outputs().size(); ++i) {
      const Program::Port& port = program_.outputs()[i];
      std::string value = exported(port.var);
      const int axis = ports.axis(port);
      if (!value.empty() && axis < 0) value = node("Unsqueeze", {value, ints({0})});
      next.push_back(value.empty() ? before[i] : node("SequenceInsert", {before[i], value}));
      if (ports.has_lengths(port)) lengths.push_back(value.empty() ? iteration : length_of(value, axis));
    }
    next.insert(next.end(), lengths.begin(), lengths.end());
    return next;
  });
  std::size_t next_lengths = program_.outputs().size();
  for (std::size_t i = 0; i < program_.outputs().size(); ++i) {
    const Program::Port& port = program_.outputs()[i];
    const std::int64_t axis = std::max(ports.axis(port), 0);
    give_port(port.name, node("ConcatFromSequence", {made[i]}, {{"axis", axis}}), given_back[i]);
    if (ports.has_lengths(port)) give_port(claimed(port.name + ".lengths"), made[next_lengths++], VarType(DType::i64, DDim{DDim::unknown}));
  }
}

}  // namespace millrace::exporting
