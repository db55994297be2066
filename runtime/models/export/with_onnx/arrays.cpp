// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <millrace/runtime/models/export/with_onnx/exporter.h>
#include <millrace/tensor/error.h>

/// The form of an array at a place of the graph.
namespace millrace::exporting {

using Form = ArrayState::Form;

VarId Exporter::root(VarId array) const {
  for (auto alias = aliases_.find(array); alias != aliases_.end(); alias = aliases_.find(array)) array = alias->second;
  return array;
}

ArrayState& Exporter::array(VarId var) {
  const VarId of = root(var);
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
    if (const auto found = scope->arrays.find(of); found != scope->arrays.end()) {
      if (scope->scanned.contains(of)) throw UnsupportedError("reads '" + program_.var(of).name + "' in the loop that writes it");
      return found->second;
    }
  name(of);  // an array that could not be exported is an error
  throw UnsupportedError("reads an array that an op gives which has no counterpart");
}

Scope* Exporter::scanning(VarId array) {
  const VarId of = root(array);
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope)
    if (scope->scanned.contains(of)) return &*scope;
  return nullptr;
}

const std::string* Exporter::found(std::map<VarId, std::string> Scope::* map, VarId array, VarId counter) {
  const VarId of = root(array);
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (scope->counter != counter) continue;
    const auto found = ((*scope).*map).find(of);
    if (found != ((*scope).*map).end()) return &found->second;
  }
  return nullptr;
}

std::optional<Place> Exporter::place_of(VarId index) const {
  Place place;
  for (const Op* op = maker(index); op != nullptr; op = maker(index)) {
    if (op->type != "identity" && op->type != "add" && op->type != "sub") return std::nullopt;
    if (op->type == "identity") {
      index = op->inputs[0];
      continue;
    }
    const std::size_t constant = program_.constant(op->inputs[1]) != nullptr ? 1 : 0;
    const Tensor* number = program_.constant(op->inputs[constant]);
    if (number == nullptr || number->elements() != 1 || is_floating(number->dtype()) || (op->type == "sub" && constant == 0))
      return std::nullopt;
    place.offset += op->type == "add" ? number->item_int() : -number->item_int();
    index = op->inputs[1 - constant];
  }
  place.counter = index;
  return place;
}

/// A slab where it is known what a slot is and how many there are: slots may then come in any order.
void Exporter::make_general(VarId var) {
  ArrayState state = array(var);
  if (state.form != Form::unwritten) return;
  const VarType& of = type(root(var));
  DDim slot = of.shape.value_or(DDim{DDim::unknown});
  // A slot of an array with an order holds a row for each sequence that lives: one.
  if (of.ordered && slot.rank() > 0 && slot[0] == DDim::unknown) slot[0] = 1;
  const bool known = std::none_of(slot.begin(), slot.end(), [](std::int64_t extent) { return extent == DDim::unknown; });
  if (!state.size.empty() && known && !of.open) {
    const std::string n = node("Reshape", {state.size, ints({1})});
    const std::string extents = node("Concat", {n, ints(Ints(slot.begin(), slot.end()))}, {{"axis", std::int64_t{0}}});
    state.value = node("Expand", {number(of.dtype, 0), extents});
    state.form = Form::slab;
  } else {
    state.value = node("SequenceEmpty", {}, {{"dtype", std::int64_t{onnx_type(of.dtype)}}});
    state.form = Form::list;
  }
  set_array(var, state);
}

void Exporter::describe_array(onnx::ValueInfoProto* info, const std::string& name, VarId root) {
  const VarType& of = type(root);
  if (array(root).form == Form::list) {
    info->set_name(name);
    info->mutable_type()->mutable_sequence_type()->mutable_elem_type()->mutable_tensor_type()->set_elem_type(onnx_type(of.dtype));
    return;
  }
  VarType all = VarType::unranked(of.dtype);
  if (of.shape) all.shape = of.shape->inserted(0, DDim::unknown);
  describe(info, name, all);
}

void Exporter::collect_mutated(int block, std::set<VarId>& found) const {
  for (const Op& op : program_.block(block).ops) {
    if (op.type == "tensor_array_write" || op.type == "tensor_array_append") found.insert(root(op.inputs.at(0)));
    for (const auto& [name, attribute] : op.attributes)
      if (const auto* inner = std::get_if<BlockId>(&attribute)) collect_mutated(inner->index, found);
  }
}

/// Arrays from around `block` that something in it writes.
std::set<VarId> Exporter::mutated(int block) const {
  std::set<VarId> found;
  collect_mutated(block, found);
  const int parent = program_.block(block).parent_idx;
  std::erase_if(found, [&](VarId array) { return !program_.visible(array, parent); });
  return found;
}

}  // namespace millrace::exporting
