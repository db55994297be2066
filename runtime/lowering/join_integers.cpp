// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_integers.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include <millrace/kernels/conv_integer.h>
#include <millrace/runtime/lowering/internal/reads.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace {
namespace {

using Ints = std::vector<std::int64_t>;

/// Whole numbers of a tensor of floats, each at most `most`; nothing where another is among them.
std::optional<std::vector<std::int32_t>> whole_numbers(const Tensor& of, double most) {
  std::vector<std::int32_t> made;
  const auto take = [&](const auto& numbers) {
    for (const double number : numbers) {
      if (!(std::abs(number) <= most) || number != std::nearbyint(number)) return false;
      made.push_back(static_cast<std::int32_t>(number));
    }
    return true;
  };
  const bool all = of.dtype() == DType::f32 ? take(of.to_vector<float>()) : of.dtype() == DType::f64 ? take(of.to_vector<double>()) : false;
  return all ? std::optional(std::move(made)) : std::nullopt;
}

/// Convolutions of bytes that a program computes in floats, exactly.
class Convolutions {
 public:
  explicit Convolutions(Program& program) : program_(program), ops_(program.block(0).ops), readers_(lowering::reads_of(program)) {}

  void run() {
    for (std::size_t i = 0; i < ops_.size(); ++i)
      for (const VarId output : ops_[i].outputs) makers_[output] = i;
    std::vector<Op> made;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      std::optional<Op> taken = ops_[i].type == "conv" || ops_[i].type == "conv1d" ? take(i) : std::nullopt;
      if (taken) made.push_back(std::move(*taken));
      made.push_back(ops_[i]);
    }
    std::set<VarId> gone;
    for (const std::size_t op : gone_) gone.insert(ops_[op].outputs[0]);
    std::erase_if(made, [&](const Op& op) { return gone.contains(op.outputs.empty() ? no_var : op.outputs[0]); });
    ops_ = std::move(made);
  }

 private:
  const VarType& type(VarId var) const { return program_.var(var).type; }
  const Op* maker(VarId var, const char* type) const {
    const auto found = makers_.find(var);
    return found == makers_.end() || ops_[found->second].type != type ? nullptr : &ops_[found->second];
  }
  VarId uncopied(VarId var) const {
    while (const Op* op = maker(var, "identity")) var = op->inputs[0];
    return var;
  }
  bool is_wide(VarId var) const { return type(var).dtype == DType::f32 || type(var).dtype == DType::f64; }
  /// The difference of which `var` is a cast: f32 and f64 have those of bytes exactly.
  VarId unwidened(VarId var) const {
    var = uncopied(var);
    const Op* const cast = maker(var, "cast");
    return cast != nullptr && maker(uncopied(cast->inputs[0]), "sub") != nullptr && is_wide(cast->inputs[0]) ? uncopied(cast->inputs[0])
                                                                                                             : var;
  }
  static bool is_byte(const VarType& type) { return type.is_tensor() && (type.dtype == DType::u8 || type.dtype == DType::i8); }
  /// The bytes that `var` is in floats.
  VarId bytes_of(VarId var) const {
    const Op* const cast = maker(uncopied(var), "cast");
    return cast != nullptr && is_byte(type(cast->inputs[0])) ? cast->inputs[0] : no_var;
  }

  /// A byte, as a var of the dtype of `bytes`, that a float of one element is.
  VarId zero_of(VarId var, DType dtype) {
    if (!type(var).is_static() || type(var).shape->elements() != 1) return no_var;
    if (const Tensor* known = program_.constant(var)) {
      const auto numbers = whole_numbers(*known, 255);
      const std::int32_t least = dtype == DType::i8 ? -128 : 0;
      if (!numbers || numbers->front() < least || numbers->front() > least + 255) return no_var;
      return program_.add_parameter("zero", dtype == DType::i8 ? Tensor::scalar(static_cast<std::int8_t>(numbers->front()))
                                                               : Tensor::scalar(static_cast<std::uint8_t>(numbers->front())));
    }
    for (var = uncopied(var);; var = uncopied(var)) {
      const Op* const view = maker(var, "reshape");
      if (view == nullptr) break;
      var = view->inputs[0];
    }
    const VarId byte = bytes_of(var);
    return byte != no_var && type(byte).dtype == dtype ? byte : no_var;
  }

  std::optional<std::size_t> only_reader(VarId var) const {
    const auto count = readers_.find(var);
    if (count == readers_.end() || count->second != 1) return std::nullopt;
    for (std::size_t i = 0; i < ops_.size(); ++i)
      if (std::count(ops_[i].inputs.begin(), ops_[i].inputs.end(), var) == 1) return i;
    return std::nullopt;
  }

  /// The `conv_integer` that stands for op `at`; the op becomes, or others behind it become, the cast of its sums.
  std::optional<Op> take(std::size_t at) {
    const Op op = ops_[at];
    const Tensor* const weights = program_.constant(op.inputs[1]);
    const DType dtype = type(op.outputs[0]).dtype;
    if (weights == nullptr || weights->rank() > 4 || weights->elements() == 0 || (op.inputs.size() > 2 && op.inputs[2] != no_var) ||
        op.attributes.get_or("relu", false) || op.attributes.get_or("winograd", false) || (dtype != DType::f32 && dtype != DType::f64))
      return std::nullopt;
    const VarId given = unwidened(op.inputs[0]);
    const Op* const centred = maker(given, "sub");
    const VarId bytes = bytes_of(centred == nullptr ? given : centred->inputs[0]);
    const auto whole = whole_numbers(*weights, 255);
    if (bytes == no_var || !whole || type(bytes).rank() != weights->rank()) return std::nullopt;
    const std::int64_t units = weights->dim(0);
    const std::size_t terms = whole->size() / static_cast<std::size_t>(units);
    // Sums of floats are these whole numbers, whatever the bytes.
    const double most = dtype == DType::f32 ? 0x1p24 : 0x1p31 - 1;
    std::vector<std::int32_t> zeros, added;
    std::vector<std::int8_t> packed;
    std::vector<double> largest;
    for (std::int64_t unit = 0; unit < units; ++unit) {
      const auto first = whole->begin() + unit * static_cast<std::int64_t>(terms), last = first + static_cast<std::int64_t>(terms);
      double sum = 0;
      for (auto each = first; each != last; ++each) sum += 255.0 * std::abs(*each);
      const auto [low, high] = std::minmax_element(first, last);
      if (sum > most || *high - *low > 255) return std::nullopt;
      largest.push_back(sum);
      zeros.push_back(*low < -128 ? -128 - *low : *high > 127 ? 127 - *high : 0);
      for (auto each = first; each != last; ++each) packed.push_back(static_cast<std::int8_t>(*each + zeros.back()));
    }
    const VarId zero = centred == nullptr ? program_.add_parameter("zero", type(bytes).dtype == DType::i8 ? Tensor::scalar(std::int8_t{0})
                                                                                                          : Tensor::scalar(std::uint8_t{0}))
                                          : zero_of(centred->inputs[1], type(bytes).dtype);
    if (zero == no_var) return std::nullopt;
    Op& cast = dtype == DType::f64 ? narrowed(at, largest, added) : ops_[at];
    VarType made = type(op.outputs[0]);
    made.dtype = DType::i32;
    const VarId sums = program_.add_var("sums", made);
    const auto numbers = [&](const std::vector<std::int32_t>& of) {
      return std::all_of(of.begin(), of.end(), [](std::int32_t number) { return number == 0; })
                 ? no_var
                 : program_.add_parameter("of_units", Tensor::from(of, DDim{units}));
    };
    Attributes attributes;
    attributes.set("group", op.attributes.get_or("group", std::int64_t{1}));
    const auto list = [&](const char* several, const char* one) {
      attributes.set(several, op.type == "conv" ? op.attributes.get<Ints>(several) : Ints{op.attributes.get_or(one, std::int64_t{1})});
    };
    list("strides", "stride");
    list("dilations", "dilation");
    attributes.set("pads", op.attributes.get_or("pads", Ints{0, 0}));
    cast = Op{"cast", {sums}, cast.outputs, {{"to", type(cast.outputs[0]).dtype}}, op.label};
    const VarId held = program_.add_parameter(program_.var(op.inputs[1]).name + "_bytes", Tensor::from(packed, weights->dims()));
    return Op{"conv_integer", {bytes, zero, held, numbers(zeros), numbers(added)}, {sums}, attributes, op.label};
  }

  /// The op behind a convolution in f64 that makes f32 of it, with what known numbers add to each unit in between; else the convolution.
  Op& narrowed(std::size_t at, const std::vector<double>& largest, std::vector<std::int32_t>& added) {
    const VarId out = ops_[at].outputs[0];
    const auto is_cast = [&](std::size_t op) { return ops_[op].type == "cast" && type(ops_[op].outputs[0]).dtype == DType::f32; };
    const auto next = only_reader(out);
    if (!next) return ops_[at];
    if (is_cast(*next)) {
      gone_.push_back(at);
      return ops_[*next];
    }
    const Op& add = ops_[*next];
    const auto behind = add.type == "add" && add.inputs[0] == out ? only_reader(add.outputs[0]) : std::nullopt;
    const Tensor* const bias = behind && is_cast(*behind) ? program_.constant(add.inputs[1]) : nullptr;
    const auto units = std::ssize(largest);
    if (bias == nullptr || type(add.outputs[0]) != type(out) || bias->elements() != units || bias->rank() + 1 < type(out).rank() ||
        bias->dim(1 - (type(out).rank() - bias->rank())) != units)
      return ops_[at];
    const auto numbers = whole_numbers(*bias, 0x1p31 - 1);
    for (std::int64_t unit = 0; numbers && unit < units; ++unit)
      if (largest[static_cast<std::size_t>(unit)] + std::abs(static_cast<double>((*numbers)[static_cast<std::size_t>(unit)])) > 0x1p31 - 1)
        return ops_[at];
    if (!numbers) return ops_[at];
    added = *numbers;
    gone_.push_back(at);
    gone_.push_back(*next);
    return ops_[*behind];
  }

  Program& program_;
  std::vector<Op>& ops_;
  std::map<VarId, int> readers_;
  std::map<VarId, std::size_t> makers_;
  std::vector<std::size_t> gone_;
};

class Joiner {
 public:
  explicit Joiner(Program& program) : program_(program), ops_(program.block(0).ops) {}

  void run() {
    std::map<VarId, int> readers = lowering::reads_of(program_);
    std::map<VarId, std::size_t> sums;
    std::set<std::size_t> gone;
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      const Op& op = ops_[i];
      if (is_known(op) && readers[op.outputs[0]] == 1) sums[op.outputs[0]] = i;
      const auto made = op.type == "arithmetic" ? sums.find(op.inputs[0]) : sums.end();
      if (made == sums.end() || !takes(op, ops_[made->second])) continue;
      gone.insert(made->second);
      join(ops_[made->second], ops_[i]);
    }
    std::size_t place = 0;
    std::erase_if(ops_, [&](const Op&) { return gone.contains(place++); });
  }

 private:
  const VarType& type(VarId var) const { return program_.var(var).type; }

  bool is_known(const Op& op) const {
    if (op.type == "conv_integer") return type(op.outputs[0]).shape.has_value();
    return op.type == "matmul_integer" && program_.constant(op.inputs[2]) != nullptr && type(op.inputs[1]).is_scalar() &&
           type(op.inputs[1]).rank() == 0 && type(op.outputs[0]).shape;
  }

  /// Whether each operand stands for all sums or for those of a column (of a unit of a convolution), and none stretches the sums.
  bool takes(const Op& arithmetic, const Op& product) const {
    const bool units = product.type == "conv_integer";
    const std::int64_t columns = program_.constant(product.inputs[2])->dim(units ? 0 : 1);
    const int rank = type(product.outputs[0]).rank(), of_columns = units ? 1 : rank - 1;
    if (type(arithmetic.outputs[0]).shape != type(product.outputs[0]).shape) return false;
    return std::all_of(arithmetic.inputs.begin() + 1, arithmetic.inputs.end(), [&](VarId operand) {
      const std::optional<DDim>& dims = type(operand).shape;
      if (!dims || dims->rank() > rank) return false;
      for (int axis = 0; axis < dims->rank(); ++axis)
        if ((*dims)[axis] != 1 && (axis + rank - dims->rank() != of_columns || (*dims)[axis] != columns)) return false;
      return units || dims->rank() <= 1 || dims->elements() == 1;
    });
  }

  static void join(const Op& product, Op& arithmetic) {
    std::vector<VarId> inputs = product.inputs;
    inputs.resize(5, no_var);
    inputs.insert(inputs.end(), arithmetic.inputs.begin() + 1, arithmetic.inputs.end());
    Attributes attributes = product.attributes;
    attributes.set("steps", arithmetic.attributes.get<std::string>("steps"));
    attributes.set("to", arithmetic.attributes.get_or("to", DType::f32));
    arithmetic = Op{product.type == "conv_integer" ? "conv_integer" : "integer_arithmetic", std::move(inputs), arithmetic.outputs,
                    std::move(attributes), product.label};
  }

  Program& program_;
  std::vector<Op>& ops_;
};

/// Sums of bytes that a program computes in floats, exactly.
class ByteSums {
 public:
  explicit ByteSums(Program& program) : program_(program), ops_(program.block(0).ops) {}

  void run() {
    for (Op& op : ops_) {
      if (op.type == "reduce") take(op);
      for (const VarId output : op.outputs) makers_[output] = &op;
    }
  }

 private:
  const VarType& type(VarId var) const { return program_.var(var).type; }
  const Op* maker(VarId var, const char* name) const {
    const auto found = makers_.find(var);
    return found == makers_.end() || found->second->type != name ? nullptr : found->second;
  }
  /// The bytes of which `var` is the floats; none: there are no such bytes.
  VarId bytes_of(VarId var) const {
    const Op* const made = maker(var, "cast");
    if (made == nullptr) return no_var;
    const VarType& from = type(made->inputs[0]);
    const bool plain = from.is_tensor() && from.lod_depth == 0 && from.shape.has_value();
    return plain && (from.dtype == DType::u8 || from.dtype == DType::i8) ? made->inputs[0] : no_var;
  }

  void take(Op& op) const {
    if (op.attributes.get<std::string>("kind") != "sum" || op.inputs.size() != 1 || type(op.inputs[0]).dtype != DType::f32) return;
    std::int64_t zero = 0;
    VarId bytes = bytes_of(op.inputs[0]);
    if (const Op* const less = maker(op.inputs[0], "sub")) {
      const Tensor* const known = program_.constant(less->inputs[1]);
      bytes = bytes_of(less->inputs[0]);
      if (bytes == no_var || known == nullptr || known->elements() != 1 || known->rank() > type(bytes).rank()) return;
      const auto number = whole_numbers(*known, most_zero);
      if (!number) return;
      zero = number->front();
    }
    if (bytes == no_var) return;
    const DDim& shape = *type(bytes).shape;
    std::set<std::int64_t> axes;
    for (const std::int64_t axis : op.attributes.get_or("axes", Ints{})) axes.insert(axis < 0 ? axis + shape.rank() : axis);
    double count = 1;
    for (const std::int64_t axis : axes) {
      if (axis < shape.rank() - std::ssize(axes) || shape[static_cast<int>(axis)] < 1) return;
      count *= static_cast<double>(shape[static_cast<int>(axis)]);
    }
    if (axes.empty() || count * 2 * most_zero >= most_exact) return;
    const bool keep = op.attributes.get_or("keepdims", true);
    op = Op{"byte_sums", {bytes}, op.outputs, {{"zero", zero}, {"axes", std::ssize(axes)}, {"keepdims", keep}}, op.label};
  }

  static constexpr double most_zero = 255, most_exact = 1 << 24;
  Program& program_;
  std::vector<Op>& ops_;
  std::map<VarId, const Op*> makers_;
};

}  // namespace

void take_integers(Program& program) {
  if (program.registry().find("conv_integer") != nullptr && conv_integer_is_fast()) Convolutions(program).run();
}

void take_byte_sums(Program& program) {
  if (program.registry().find("byte_sums") != nullptr) ByteSums(program).run();
}

void join_integers(Program& program) {
  if (program.registry().find("integer_arithmetic") != nullptr) Joiner(program).run();
}

}  // namespace millrace
