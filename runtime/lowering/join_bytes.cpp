// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_bytes.h>

#include <cstdint>
#include <cstring>
#include <map>
#include <optional>
#include <utility>
#include <vector>

#include <millrace/runtime/lowering/drop_unread.h>
#include <millrace/runtime/program/fold_constants.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace {
namespace {

constexpr std::int64_t all_bytes = 256;

bool is_byte(DType dtype) { return dtype == DType::u8 || dtype == DType::i8; }

class Joiner {
 public:
  explicit Joiner(Program& program) : program_(program) {}

  void run() {
    for (std::size_t i = 0; i < program_.block(0).ops.size(); ++i) read(i);
    if (joined_) drop_unread(program_);
  }

 private:
  const VarType& type(VarId var) const { return program_.var(var).type; }
  bool is_plain(VarId var) const { return type(var).is_tensor() && type(var).lod_depth == 0 && type(var).shape.has_value(); }
  bool is_number(VarId var, int rank) const {
    const Tensor* const known = program_.constant(var);
    return known != nullptr && known->elements() == 1 && known->rank() <= rank;
  }

  /// The byte that a value is a function of; the byte itself where nothing says of what.
  VarId source_of(VarId var) const {
    const auto found = sources_.find(var);
    return found != sources_.end() ? found->second : is_plain(var) && is_byte(type(var).dtype) ? var : no_var;
  }

  void read(std::size_t at) {
    const Op op = program_.block(0).ops[at];
    if (op.type != "arithmetic" || op.outputs.size() != 1 || !is_plain(op.outputs[0])) return;
    VarId source = no_var;
    bool whole = true;  // the inputs but numbers are the source itself
    for (const VarId input : op.inputs) {
      if (is_number(input, type(op.outputs[0]).rank())) continue;
      const VarId byte = source_of(input);
      if (byte == no_var || (source != no_var && byte != source)) return;
      source = byte;
      whole = whole && input == byte;
    }
    if (source == no_var || type(source).rank() != type(op.outputs[0]).rank()) return;
    std::vector<Tensor> numbers;  // operands, without their axes of 1
    std::vector<const Tensor*> inputs;
    numbers.reserve(op.inputs.size());
    for (const VarId input : op.inputs) {
      if (const Tensor* const known = program_.constant(input); known != nullptr)
        inputs.push_back(&numbers.emplace_back(known->reshape(DDim{})));
      else
        inputs.push_back(&(results_.contains(input) ? results_.at(input) : results_[input] = every_byte(type(input).dtype)));
    }
    const Tensor made = evaluate_op(program_, op, inputs).at(0);
    sources_[op.outputs[0]] = source;
    results_.insert_or_assign(op.outputs[0], made);
    if (whole || !is_byte(made.dtype())) return;
    const VarId table = program_.add_parameter(program_.var(op.outputs[0]).name + "_table", made);
    program_.block(0).ops[at] = Op{"byte_map", {source, table}, op.outputs, {}, op.label};
    joined_ = true;
  }

  static Tensor every_byte(DType dtype) {
    std::vector<std::uint8_t> bytes(all_bytes);
    for (std::size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::uint8_t>(i);
    Tensor made(dtype, DDim{all_bytes});
    void* const to = dtype == DType::i8 ? static_cast<void*>(made.mutable_data<std::int8_t>()) : made.mutable_data<std::uint8_t>();
    std::memcpy(to, bytes.data(), bytes.size());
    return made;
  }

  Program& program_;
  std::map<VarId, VarId> sources_;
  std::map<VarId, Tensor> results_;  ///< for each byte of the source
  bool joined_ = false;
};

}  // namespace

void join_bytes(Program& program) {
  if (program.registry().find("byte_map") != nullptr) Joiner(program).run();
}

}  // namespace millrace
