// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/lists_to_arrays.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>

namespace millrace {
namespace {

class Lists {
 public:
  explicit Lists(Program& program) : program_(program) {}

  void run() {
    for (const Block& block : program_.blocks())
      for (const Op& op : block.ops) {
        find_counts(op);
        if (op.type == "list_split" && !op.attributes.get_or("keepdims", true) && may_be_array(op)) splits_.insert(op.outputs[0]);
      }
    for (const Block& block : program_.blocks()) {
      for (const Op& op : block.ops)
        for (std::size_t input = 0; input < op.inputs.size(); ++input)
          if (!reads_item(op, input)) splits_.erase(op.inputs[input]);
      for (const VarId result : block.results) splits_.erase(result);
    }
    for (const Program::Port& port : program_.outputs()) splits_.erase(port.var);
    for (const VarId list : splits_) rewrite(list);
  }

 private:
  /// Params of loops that begin at 0 or above and only grow: no place counts from a list's end.
  void find_counts(const Op& op) {
    if (op.type != "while") return;
    const Block& body = program_.block(op.attributes.get<BlockId>("sub_block").index);
    for (std::size_t i = 0; i < body.params.size(); ++i) {
      const Tensor* first = program_.constant(op.inputs.at(i));
      const VarType& type = program_.var(body.params[i]).type;
      if (first == nullptr || type.dtype != DType::i64 || !type.is_scalar() || first->item_int() < 0) continue;
      const auto made = std::find_if(body.ops.begin(), body.ops.end(),
                                     [&](const Op& each) { return !each.outputs.empty() && each.outputs[0] == body.results[i]; });
      if (made == body.ops.end() || made->type != "add") continue;
      for (const std::size_t at : {std::size_t{0}, std::size_t{1}}) {
        const Tensor* by = program_.constant(made->inputs[1 - at]);
        if (made->inputs[at] == body.params[i] && by != nullptr && by->elements() == 1 && by->item_int() > 0)
          counts_.insert(body.params[i]);
      }
    }
  }

  /// Whether the list has single slices: a split without lengths, or by 1.
  bool may_be_array(const Op& op) const {
    const VarType& x = program_.var(op.inputs[0]).type;
    if (!x.is_tensor() || !x.shape || x.lod_depth > 0 || x.rank() == 0) return false;
    if (op.inputs.size() < 2 || op.inputs[1] == no_var) return true;
    const Tensor* lengths = program_.constant(op.inputs[1]);
    return lengths != nullptr && lengths->rank() == 0 && lengths->item_int() == 1;
  }

  bool reads_item(const Op& op, std::size_t input) const {
    if (!splits_.contains(op.inputs[input])) return true;
    if (op.type == "list_length") return true;
    return op.type == "list_at" && input == 0 && counts_.contains(op.inputs[1]);
  }

  void rewrite(VarId list) {
    for (std::size_t block = 0; block < program_.blocks().size(); ++block)
      for (Op& op : program_.block(static_cast<int>(block)).ops) {
        if (op.type == "list_split" && op.outputs[0] == list) {
          const VarType& x = program_.var(op.inputs[0]).type;
          const std::int64_t axis = op.attributes.get_or("axis", std::int64_t{0});
          const int place = static_cast<int>(axis < 0 ? axis + x.rank() : axis);
          program_.var(list).type = VarType::array_of(x.dtype, x.shape->erased(place), false);
          op.type = "tensor_array_unstack";
          op.inputs = {op.inputs[0]};
          op.attributes = {{"axis", static_cast<std::int64_t>(place)}};
        } else if (!op.inputs.empty() && op.inputs[0] == list) {
          op.type = op.type == "list_at" ? "tensor_array_read" : "tensor_array_size";
        }
      }
  }

  Program& program_;
  std::set<VarId> splits_, counts_;
};

}  // namespace

void lists_to_arrays(Program& program) { Lists(program).run(); }

}  // namespace millrace
