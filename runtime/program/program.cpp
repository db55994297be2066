// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/program.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace {
namespace {

bool plain(char c) {
  return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_' || c == '.' || c == '/';
}

/// A program's constants never change under it: nobody writes their storage from here on.
void freeze(const Tensor& constant) { constant.storage()->freeze(); }

/// Words that have a meaning where the text form expects a name.
bool reserved(const std::string& word) {
  return word == "_" || word == "params" || word == "results" || word == "lod" || word == "ordered";
}

/// Loops and branches within each other: beyond any program, and few enough for what walks a program to recurse.
constexpr int deepest_block = 256;

/// Names are words of the text form: anything else becomes `_`, and a digit may not come first.
std::string as_word(const std::string& name) {
  std::string word = name.empty() ? "v" : name;
  for (char& c : word)
    if (!plain(c)) c = '_';
  if (word[0] >= '0' && word[0] <= '9') word.insert(0, "_");
  return word;
}

bool variadic(const std::string& slot) { return slot.size() > 3 && slot.ends_with("..."); }
bool optional(const std::string& slot) { return slot.ends_with("?"); }

void check_inputs(const OpDef& def, const Op& op) {
  const bool open = !def.inputs.empty() && variadic(def.inputs.back());
  if (!open && op.inputs.size() > def.inputs.size())
    throw ProgramError("expected at most " + std::to_string(def.inputs.size()) + " inputs, found " + std::to_string(op.inputs.size()));
  for (std::size_t i = 0; i < def.inputs.size(); ++i) {
    if (optional(def.inputs[i]) || variadic(def.inputs[i])) continue;
    if (i >= op.inputs.size() || op.inputs[i] == no_var) throw ProgramError("expected input " + def.inputs[i] + ", found none");
  }
}

void check_attributes(const OpDef& def, const Op& op) {
  for (const auto& [name, value] : op.attributes)
    if (!def.takes_attribute(name))
      throw ProgramError(
          fmt::format("expected {}, found {}",
                      def.attributes.empty() ? "no attributes" : fmt::format("the attributes {}", fmt::join(def.attributes, ", ")),
                      internal::printable(name)));
}

/// The designs' CopyInSeqToOut: outputs with as many rows as the inputs that carry LoD carry it too. An op that would lose it must say so.
void pass_lod(const OpDef& def, InferContext& context) {
  int depth = 0;
  std::size_t carrier = 0;
  std::vector<int> axes(context.inputs(), -1);
  for (std::size_t i = 0; i < context.inputs(); ++i) {
    if (!context.has(i) || !context.type(i).is_tensor() || context.type(i).lod_depth == 0) continue;
    if (depth > 0 && context.type(i).lod_depth != depth)
      throw ProgramError("two inputs carry different levels of LoD: " + context.describe(carrier) + " and " + context.describe(i));
    depth = context.type(i).lod_depth;
    carrier = i;
    axes[i] = 0;
  }
  if (depth == 0) return;
  const std::string lost = "would silently lose the LoD of " + context.describe(carrier) + ": use drop_lod first";
  if (!def.follow_rows) throw ProgramError(lost);
  std::vector<int> followed;
  try {
    followed = def.follow_rows(context, axes);
  } catch (const UnsupportedError& error) {
    throw ProgramError(lost + " (" + error.what() + ")");
  }
  for (std::size_t i = 0; i < context.results.size(); ++i) {
    if (followed.at(i) != 0) throw ProgramError(lost);
    context.results[i].lod_depth = depth;
  }
}

/// Files and callers in C end a name at NUL, and ONNX takes an empty name for an absent value.
void expect_port_name(const char* port, const std::string& name) {
  if (name.empty() || name.find('\0') != std::string::npos)
    throw ArgumentError(std::string(port) + ": expected a name that is not empty and has no NUL, found " + internal::printable(name));
}

}  // namespace

Program::Program(std::shared_ptr<const OpRegistry> registry) : registry_(registry ? std::move(registry) : standard_ops()) {
  blocks_.emplace_back();
}

std::uint64_t Program::next_revision() noexcept {
  static std::atomic<std::uint64_t> last{0};
  return last.fetch_add(1, std::memory_order_relaxed) + 1;
}

void Program::fail_index(const char* what, int index, std::size_t count) const {
  check_present();
  throw IndexError(fmt::format("program: expected one of {} {}s, found {} {}", count, what, what, index));
}

void Program::fail_moved() { throw ProgramError("program: expected a program, found one that was moved from"); }

VarId Program::find_var(const std::string& name) const noexcept {
  const auto found = names_.find(name);
  return found == names_.end() ? no_var : found->second;
}

VarId Program::add_var(const std::string& name, VarType type, int block) {
  check_present();
  change();
  const std::string word = as_word(name);
  std::string unique = word;
  if (name.empty() || reserved(word) || names_.contains(unique)) {
    // The search begins at the last number, since thousands of vars may be called "add".
    int& number = numbers_[word];
    do unique = word + "_" + std::to_string(++number);
    while (names_.contains(unique));
  }
  const auto id = static_cast<VarId>(vars_.size());
  names_.emplace(unique, id);
  vars_.push_back({unique, std::move(type), block});
  return id;
}

bool Program::is_name(const std::string& text) { return text == as_word(text) && !reserved(text); }

int Program::add_block(int parent) {
  check_present();
  int depth = 0;
  for (int at = parent; at >= 0; at = block(at).parent_idx) ++depth;
  if (depth > deepest_block)
    throw ProgramError("expected blocks at most " + std::to_string(deepest_block) + " deep, found one more below block " +
                       std::to_string(parent));
  change();
  Block block;
  block.idx = static_cast<int>(blocks_.size());
  block.parent_idx = parent;
  blocks_.push_back(std::move(block));
  return blocks_.back().idx;
}

std::vector<VarType> Program::infer(int block, const Op& op) const {
  const OpDef& def = registry().at(op.type);
  InferContext context(*this, op, block);
  try {
    check_inputs(def, op);
    check_attributes(def, op);
    check_visible(block, op);
    check_results_visible(op);
    def.infer(context);
    if (def.passes_lod) pass_lod(def, context);
  } catch (const Error& error) {
    const std::string from = op.label.empty() ? "" : " (" + internal::printable(op.label) + ")";
    throw ProgramError("block " + std::to_string(block) + ", op " + op.type + from + ": " + error.what());
  }
  return std::move(context.results);
}

std::vector<VarId> Program::append(int block, Op op, const std::vector<std::string>& output_names) {
  const std::vector<VarType> types = infer(block, op);
  for (std::size_t i = 0; i < types.size(); ++i) {
    const std::string wanted = i < output_names.size() && !output_names[i].empty() ? output_names[i] : op.type;
    op.outputs.push_back(add_var(wanted, types[i], block));
  }
  if (const auto& stores = registry().at(op.type).stores) refine_array(op.inputs.at(stores->first), op.inputs.at(stores->second));
  std::vector<VarId> outputs = op.outputs;
  append_raw(block, std::move(op));
  return outputs;
}

/// Writes decide the type of the slots: the first write all of it, later ones the part that stays common.
void Program::refine_array(VarId array, VarId value) {
  VarType& type = var(array).type;
  const VarType& stored = var(value).type;
  const bool first = type.open;
  VarType slot = VarType::array_of(stored.dtype, stored.shape, type.ordered);
  slot.lod_depth = stored.lod_depth;
  // In an ordered array, and in one written iteration by iteration, the rows of a slot are a matter of the run.
  if (slot.ordered && slot.rank() > 0) (*slot.shape)[0] = DDim::unknown;
  type = first ? slot : common(type, slot);
}

void Program::rename(VarId id, const std::string& name) {
  if (var(id).name == name) return;
  if (!is_name(name) || names_.contains(name)) throw ProgramError("var '" + var(id).name + "': cannot be named '" + name + "'");
  names_.erase(var(id).name);
  names_.emplace(name, id);
  var(id).name = name;
}

void Program::append_raw(int block, Op op) {
  if (op.type == "constant" && op.outputs.size() != 1)
    throw ProgramError("op constant: expected one output, found " + std::to_string(op.outputs.size()));
  for (const auto& [name, attribute] : op.attributes)
    if (const auto* tensor = std::get_if<Tensor>(&attribute)) freeze(*tensor);
  if (op.type == "constant") literals_.emplace(op.outputs.at(0), op.attributes.get<Tensor>("value"));
  this->block(block).ops.push_back(std::move(op));
}

void Program::replace_with_constants(int block, std::size_t op, const std::vector<Tensor>& values) {
  std::vector<Op>& ops = this->block(block).ops;
  const Op replaced = ops.at(op);
  if (values.size() != replaced.outputs.size())
    throw ProgramError("op " + replaced.type + ": expected " + std::to_string(replaced.outputs.size()) + " values, found " +
                       std::to_string(values.size()));
  std::vector<Op> constants;
  for (std::size_t i = 0; i < values.size(); ++i) {
    freeze(values[i]);
    constants.push_back({"constant", {}, {replaced.outputs[i]}, {{"value", values[i]}}, replaced.label});
    literals_.insert_or_assign(replaced.outputs[i], values[i]);
  }
  ops.erase(ops.begin() + static_cast<std::ptrdiff_t>(op));
  ops.insert(ops.begin() + static_cast<std::ptrdiff_t>(op), constants.begin(), constants.end());
}

bool Program::visible(VarId id, int block) const {
  while (block >= 0 && block != var(id).block) block = this->block(block).parent_idx;
  return block >= 0;
}

void Program::check_visible(int block, VarId id) const {
  if (id < 0 || std::cmp_greater_equal(id, vars_.size()))
    throw ProgramError("expected a var of this program, found id " + std::to_string(id));
  if (!visible(id, block))
    throw ProgramError("'" + var(id).name + "' belongs to block " + std::to_string(var(id).block) + " and is not visible in block " +
                       std::to_string(block));
}

void Program::check_visible(int block, const Op& op) const {
  for (const VarId input : op.inputs)
    if (input != no_var) check_visible(block, input);
}

/// The results of the blocks of a loop or branch are visible there.
void Program::check_results_visible(const Op& op) const {
  for (const auto& [name, attribute] : op.attributes) {
    const auto* sub = std::get_if<BlockId>(&attribute);
    if (sub == nullptr || sub->index < 0 || std::cmp_greater_equal(sub->index, blocks_.size())) continue;
    for (const VarId result : this->block(sub->index).results) check_visible(sub->index, result);
  }
}

VarId Program::add_input(const std::string& name, VarType type, std::vector<std::string> extents) {
  check_present();
  expect_port_name("input", name);
  if (std::cmp_greater(extents.size(), type.shape ? type.rank() : 0))
    throw ArgumentError(fmt::format("input {}: expected a name for each axis of {} at most, found {}", internal::printable(name),
                                    type.to_string(), extents.size()));
  if (!input_names_.insert(name).second) throw ProgramError("input " + internal::printable(name) + ": the name is taken");
  const VarId id = add_var(name, std::move(type));
  inputs_.push_back({name, id, std::move(extents)});
  return id;
}

VarId Program::add_parameter(const std::string& name, Tensor value) {
  if (value.storage() == nullptr) value.check_written();
  if (!value.host_accessible()) throw ProgramError("parameter '" + name + "': expected a tensor on the host, found " + value.to_string());
  value.check_written();
  const VarId id = add_var(name, VarType(value.dtype(), value.dims()));
  value = value.is_contiguous() ? value : value.copy_to(CpuPlace{});
  freeze(value);
  parameters_.emplace(id, value.read_only());
  return id;
}

void Program::add_output(const std::string& name, VarId var) {
  check_present();
  expect_port_name("output", name);
  try {
    check_visible(0, var);
  } catch (const ProgramError& error) {
    throw ProgramError("output " + internal::printable(name) + ": " + error.what());
  }
  if (!output_names_.insert(name).second) throw ProgramError("output " + internal::printable(name) + ": the name is taken");
  change();
  outputs_.push_back({name, var});
}

const Tensor* Program::parameter(VarId var) const noexcept {
  const auto found = parameters_.find(var);
  return found == parameters_.end() ? nullptr : &found->second;
}

const Tensor* Program::constant(VarId var) const noexcept {
  const auto found = literals_.find(var);
  return found == literals_.end() ? parameter(var) : &found->second;
}

void Program::remove_constant(VarId var) {
  change();
  parameters_.erase(var);
  if (literals_.erase(var) == 0) return;
  std::erase_if(block(this->var(var).block).ops, [&](const Op& op) {
    return op.type == "constant" && std::find(op.outputs.begin(), op.outputs.end(), var) != op.outputs.end();
  });
}

}  // namespace millrace
