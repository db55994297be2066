// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <optional>
#include <type_traits>
#include <vector>

#include <millrace/kernels/conv_integer.h>
#include <millrace/kernels/round_to_bytes.h>
#include <millrace/runtime/models/import/with_onnx/element_types.h>
#include <millrace/runtime/models/import/with_onnx/quantized.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>

/// Quantized ops as what they mean: products of 8-bit numbers are exact in floats that are wide enough, scales are factors.
namespace millrace::importing {
namespace {

/// The most products of two 8-bit numbers that sum up exactly in f32.
constexpr std::int64_t most_in_f32 = 256;

void refuse_blocks(const Node& node) {
  if (node.integer("block_size", 0) != 0) throw UnsupportedError("attribute block_size: expected none, found scales of blocks");
}

/// Narrows to a type that has no dtype here.
VarId narrowed_to(Importer& to, const Formula& f, VarId x, VarId zero, const ElementType& type, bool saturate) {
  if (type.is_float()) return narrowed(to, x, type, {saturate});
  const double least = type.is_signed ? -std::ldexp(1.0, type.bits - 1) : 0,
               most = std::ldexp(1.0, type.is_signed ? type.bits - 1 : type.bits) - 1;
  const VarId rounded = f.op("round", x);
  const VarId moved = zero == no_var ? rounded : f.plus(rounded, f.taken(zero));
  return to.emit1("cast", {f.limited(moved, least, most)}, {{"to", type.held}});
}

/// Whether the file holds a scale that is infinite, as a calibration over masks of −∞ gives it.
bool has_infinite_scale(Importer& to, const Node& node) {
  const Tensor* scale = to.known(node, 1);
  if (scale == nullptr || scale->dtype() != DType::f32) return false;
  const std::vector<float> all = scale->to_vector<float>();
  return std::any_of(all.begin(), all.end(), [](float each) { return std::isinf(each); });
}

/// x / scale. Over an infinite scale, −∞ is the least integer, as ONNX Runtime has it: a mask stays one.
VarId quotient(Importer& to, const Node& node, const Formula& f, VarId x, VarId scale) {
  const VarId made = f.over(f.taken(x), scale);
  if (!has_infinite_scale(to, node)) return made;
  return f.where(to.emit1("is_nan", {made}), f.number(-std::numeric_limits<double>::infinity()), made);
}

void quantize(Importer& to, const Node& node, const char*) {
  refuse_blocks(node);
  const Formula f(to, DType::f32);
  const VarId x = to.in(node, 0);
  const std::int64_t axis = node.integer("axis", 1);
  const VarId scale = f.taken(along_axis(to, to.in(node, 1), x, axis));
  const VarId zero = node.has(2) ? along_axis(to, to.in(node, 2), x, axis) : no_var;
  const int said = static_cast<int>(node.integer("output_dtype", 0));
  const ElementType* type = node.has(2) ? to.element(to.in(node, 2)) : held_type(said);
  if (const std::int64_t precision = node.integer("precision", 0); precision != 0 && precision != onnx::TensorProto::FLOAT)
    throw UnsupportedError("attribute precision: expected float, found another type");
  const bool saturate = node.flag("saturate", true);
  if (type != nullptr && type->bits <= 16) {
    const VarId made = narrowed_to(to, f, quotient(to, node, f, x, scale), zero, *type, saturate);
    to.set_element(made, type);
    return to.bind(node, 0, made);
  }
  const DType dtype = zero != no_var                         ? to.type(zero).dtype
                      : node.integer("output_dtype", 0) != 0 ? dtype_attribute(node, "output_dtype")
                                                             : DType::u8;
  to.give(node, "identity", {narrowed_to_bytes(to, f, quotient(to, node, f, x, scale), zero, dtype)});
}

void dequantize(Importer& to, const Node& node, const char*) {
  refuse_blocks(node);
  const std::int64_t axis = node.integer("axis", 1);
  const VarId made = dequantized(to, to.in(node, 0), to.in(node, 1), to.in_or_none(node, 2), axis);
  // 0: the type of the scale.
  if (node.integer("output_dtype", 0) == 0) {
    to.give(node, "identity", {made});
    if (to.element(to.in(node, 0)) != nullptr || !is_byte(to.type(to.in(node, 0)).dtype) || to.type(made).dtype != DType::f32) return;
    const auto held = [](const Tensor* of) { return of == nullptr ? std::nullopt : std::optional(*of); };
    return to.set_dequantized(to.named(node.output(0)),
                              {to.in(node, 0), to.in(node, 1), to.in_or_none(node, 2), axis, held(to.known(node, 0)),
                               node.has(2) ? held(to.known(node, 2)) : std::nullopt, held(to.known(node, 1))});
  }
  to.give(node, "cast", {made}, {{"to", dtype_attribute(node, "output_dtype")}});
}

/// Whether f32 holds the products of two scales with all their bits, as far as both are known: sums times a product that is infinite or too small are not the products of floats
/// that the graph means.
bool product_fits_f32(const Importer::Dequantized& a, const Importer::Dequantized& b) {
  if (!a.known_scale || !b.known_scale || a.known_scale->dtype() != DType::f32 || b.known_scale->dtype() != DType::f32) return true;
  const std::vector<float> others = b.known_scale->to_vector<float>();
  const auto fits = [&](float scale) {
    return std::all_of(others.begin(), others.end(), [&](float other) { return std::isnormal(scale * other) || scale == 0 || other == 0; });
  };
  const std::vector<float> scales = a.known_scale->to_vector<float>();
  return std::all_of(scales.begin(), scales.end(), fits);
}

/// u8 between the least and the greatest element, and 0.
void quantize_dynamically(Importer& to, const Node& node, const char*) {
  const std::vector<VarId> made = to.emit("quantize_bytes", {to.in(node, 0)}, {}, {node.output(0)});
  for (std::size_t output = 0; output < made.size(); ++output) to.bind(node, output, made[output]);
}

/// An input with its zero point taken off: one for each row of a matrix (`rows`) or for each column, or one for all.
VarId centred(Importer& to, const Node& node, std::size_t input, std::size_t zero, const Formula& f, bool rows) {
  const VarId x = f.taken(to.in(node, input));
  if (!node.has(zero)) return x;
  VarId point = f.taken(to.in(node, zero));
  if (rows && to.rank(point) == 1 && !to.type(point).is_scalar()) point = f.unsqueezed(point, {1});
  if (to.type(point).is_scalar()) point = f.reshaped(point, {});
  return f.minus(x, point);
}

std::int64_t summed(Importer& to, VarId b) {
  const VarType& type = to.type(b);
  if (type.rank() < 1) return DDim::unknown;
  return (*type.shape)[std::max(type.rank() - 2, 0)];
}

/// A · B with their zero points taken off, in i32 or in floats in which it is exact; zero points of A are of rows, those of B of columns.
VarId integer_product(Importer& to, const Node& node, std::size_t a, std::size_t a_zero, std::size_t b, std::size_t b_zero) {
  expect_bytes(to, to.in(node, a));
  expect_bytes(to, to.in(node, b));
  if (const VarId sums = byte_sums(to, byte_factor(to, node, a, a_zero), byte_factor(to, node, b, b_zero)); sums != no_var) return sums;
  const Formula f(to, exact_sums(summed(to, to.in(node, b))));
  return f.op("matmul", centred(to, node, a, a_zero, f, true), centred(to, node, b, b_zero, f, false));
}

void matmul_integer(Importer& to, const Node& node, const char*) {
  const VarId made = integer_product(to, node, 0, 2, 1, 3);
  if (to.type(made).dtype == DType::i32) return to.give(node, "identity", {made});
  to.give(node, "cast", {made}, {{"to", DType::i32}});
}

/// Sums to 8 bits: their scale is that of a times that of b, over y's.
void requantize(Importer& to, const Node& node, VarId sums, const Formula& f, VarId factor, VarId zero) {
  const DType dtype = to.type(zero).dtype;
  to.give(node, "identity", {narrowed_to_bytes(to, f, f.times(f.taken(sums), factor), f.reshaped(zero, {}), dtype)});
}

void qlinear_matmul(Importer& to, const Node& node, const char*) {
  const VarId sums = integer_product(to, node, 0, 2, 3, 5);
  const Formula f(to, DType::f32);
  const auto scale = [&](std::size_t input, bool rows) {
    const VarId given = f.taken(to.in(node, input));
    if (to.type(given).is_scalar()) return f.reshaped(given, {});
    return rows && to.rank(given) == 1 ? f.unsqueezed(given, {1}) : given;
  };
  requantize(to, node, sums, f, f.over(f.times(scale(1, true), scale(4, false)), scale(6, false)), to.in(node, 7));
}

/// Whether sums of products of bytes with known weights, and their bias, are integers of f32, whatever the bytes. `zeros`, `bias`: none where they are not `given`.
bool sums_fit_f32(const Tensor* weights, bool zeros_given, const Tensor* zeros, bool bias_given, const Tensor* bias) {
  constexpr std::int64_t most = std::int64_t{1} << 24;
  const auto numbers_of = [](const Tensor* values) {
    std::optional<Ints> numbers;
    if (values == nullptr) return numbers;
    visit_dtype(values->dtype(), [&]<class T>(std::type_identity<T>) {
      if constexpr (std::is_integral_v<T> && !std::is_same_v<T, bool>) {
        const std::vector<T> elements = values->to_vector<T>();
        numbers.emplace(elements.begin(), elements.end());
      }
    });
    return numbers;
  };
  const std::optional<Ints> numbers = numbers_of(weights);
  if (!numbers || weights->rank() < 1 || numbers->empty()) return false;
  const auto channels = static_cast<std::size_t>(weights->dim(0));
  const auto by_channel = [&](bool given, const Tensor* values) -> std::optional<Ints> {
    std::optional<Ints> each = given ? numbers_of(values) : Ints{0};
    if (each && each->size() == 1) each->resize(channels, each->front());
    if (each && each->size() != channels) return std::nullopt;
    return each;
  };
  const std::optional<Ints> offs = by_channel(zeros_given, zeros), biases = by_channel(bias_given, bias);
  if (!offs || !biases) return false;
  const std::size_t terms = numbers->size() / channels;
  for (std::size_t channel = 0; channel < channels; ++channel) {
    std::int64_t sum = std::abs((*biases)[channel]);
    for (std::size_t i = 0; i < terms && sum <= most; ++i) sum += 255 * std::abs((*numbers)[channel * terms + i] - (*offs)[channel]);
    if (sum > most) return false;
  }
  return true;
}

/// Weights have a zero point for all, or one for each channel they give (axis 0). `bias`: the input that will be added, in the dtype of the sums.
VarId integer_convolution(Importer& to, const Node& node, VarId x, std::size_t w, std::size_t w_zero,
                          std::optional<std::size_t> bias = std::nullopt) {
  expect_bytes(to, to.in(node, w));
  const VarType& weights = to.type(to.in(node, w));
  std::int64_t terms = 1;
  for (int axis = 1; axis < weights.rank() && terms >= 0; ++axis)
    terms = (*weights.shape)[axis] < 0 ? DDim::unknown : std::min(terms * (*weights.shape)[axis], most_in_f32 + 1);
  const bool narrow = (weights.rank() >= 0 && exact_sums(terms) == DType::f32) ||
                      sums_fit_f32(to.known(node, w), node.has(w_zero), node.has(w_zero) ? to.known(node, w_zero) : nullptr,
                                   bias && node.has(*bias), bias && node.has(*bias) ? to.known(node, *bias) : nullptr);
  const Formula f(to, narrow ? DType::f32 : DType::f64);
  VarId kernel = f.taken(to.in(node, w));
  if (node.has(w_zero)) kernel = f.minus(kernel, f.taken(along_axis(to, to.in(node, w_zero), kernel, 0)));
  return convolved(to, node, f.taken(x), kernel, no_var, true);
}

/// Input 0 with its zero point taken off.
VarId pixels(Importer& to, const Node& node, std::size_t zero) {
  expect_bytes(to, to.in(node, 0));
  return centred(to, node, 0, zero, Formula(to, DType::f32), false);
}

void conv_integer(Importer& to, const Node& node, const char*) {
  to.give(node, "cast", {integer_convolution(to, node, pixels(to, node, 2), 1, 3)}, {{"to", DType::i32}});
}

/// ONNX Runtime's own may have the channels last.
void qlinear_conv(Importer& to, const Node& node, const char* own) {
  const bool last = *own != '\0' && node.flag("channels_last", false);
  const VarId x = pixels(to, node, 2);
  VarId sums = integer_convolution(to, node, last ? channels_first(to, x) : x, 3, 5, 8);
  const Formula wide(to, to.type(sums).dtype);
  if (node.has(8)) sums = wide.plus(sums, wide.taken(along_axis(to, to.in(node, 8), sums, 1)));
  const Formula f(to, DType::f32);
  const auto scale = [&](std::size_t input) { return f.taken(along_axis(to, to.in(node, input), sums, 1)); };
  const VarId factor = f.over(f.times(scale(1), scale(4)), scale(6));
  const VarId scaled = f.times(f.taken(sums), factor);
  const VarId zero = f.reshaped(to.in(node, 7), {});
  to.give(node, "identity", {narrowed_to_bytes(to, f, last ? channels_last(to, scaled) : scaled, zero, to.type(zero).dtype)});
}

// ---- ONNX Runtime's own, as its dynamic quantizer writes them

/// A [.., K] f32, B [K, N] of 8 bits with scale and zero point; + bias.
void dynamic_matmul(Importer& to, const Node& node, const char*) {
  if (to.type(to.in(node, 1)).rank() == 2 && to.type(to.in(node, 0)).rank() > 0 && to.known(node, 2) != nullptr &&
      are_centred_bytes(to, node, 1, 3)) {
    const std::int64_t columns = (*to.type(to.in(node, 1)).shape)[1];
    VarId scales = to.emit1("reshape", {to.in(node, 2)}, {{"shape", Ints{-1}}});
    if (to.type(scales).is_scalar() || (*to.type(scales).shape)[0] == 1) scales = to.emit1("expand", {scales, to.literal(Ints{columns})});
    const VarId product = to.emit1("matmul_bytes", {to.in(node, 0), to.in(node, 1), scales});
    return to.give(node, node.has(4) ? "add" : "identity",
                   node.has(4) ? std::vector<VarId>{product, to.in(node, 4)} : std::vector<VarId>{product});
  }
  const VarId b = dequantized(to, to.in(node, 1), to.in(node, 2), to.in_or_none(node, 3), -1);
  const VarId product = to.emit1("matmul", {rounded_to_bytes(to, to.in(node, 0)), b});
  if (!node.has(4)) return to.give(node, "identity", {product});
  to.give(node, "add", {product, to.in(node, 4)});
}

/// A, B of 8 bits, their scales, their zero points; + bias.
void matmul_to_float(Importer& to, const Node& node, const char*) {
  const VarId sums = integer_product(to, node, 0, 4, 1, 5);
  const Formula f(to, to.type(to.in(node, 2)).dtype);
  const auto scale = [&](std::size_t input) {
    const VarId given = to.in(node, input);
    return to.type(given).is_scalar() ? f.reshaped(given, {}) : given;
  };
  const VarId made = f.times(f.taken(sums), f.times(scale(2), scale(3)));
  if (!node.has(6)) return to.give(node, "identity", {made});
  to.give(node, "add", {made, to.in(node, 6)});
}

/// W or R [directions, inputs, gates] of 8 bits, a scale for each direction, and perhaps for each gate's unit: [directions, gates, inputs].
VarId recurrent_weights(Importer& to, const Node& node, std::size_t weights, std::size_t scale) {
  const Formula f(to, DType::f32);
  const auto per_direction = [&](VarId given) { return to.rank(given) == 2 ? f.unsqueezed(given, {1}) : f.reshaped(given, {-1, 1, 1}); };
  VarId made = f.taken(to.in(node, weights));
  if (node.has(scale + 1)) made = f.minus(made, f.taken(per_direction(to.in(node, scale + 1))));
  return to.emit1("transpose", {f.times(made, per_direction(to.in(node, scale)))}, {{"perm", Ints{0, 2, 1}}});
}

/// x [T, …] with zeros behind the longest sequence: zero is in every range that rounding takes.
VarId without_padding(Importer& to, VarId x, VarId lengths) {
  const VarId all =
      to.emit1("concat", {to.literal(Ints{0}), to.emit1("cast", {lengths}, {{"to", DType::i64}})}, {{"axis", std::int64_t{0}}});
  const VarId longest = to.emit1("reduce", {all}, {{"kind", std::string("max")}, {"axes", Ints{0}}, {"keepdims", false}});
  const VarId count = to.emit1("range", {number(to, 0), extent_of(to, x, 0), number(to, 1)});
  Ints along(static_cast<std::size_t>(to.rank(x)), 1);
  along[0] = -1;
  const VarId inside = to.emit1("less", {to.emit1("reshape", {count}, {{"shape", along}}), longest});
  return to.emit1("where", {inside, x, to.literal(scalar_of(to.type(x).dtype, 0))});
}

/// An LSTM over X in 8 bits with weights in 8 bits; its h is rounded so in each step (`quantized_lstm`). Weights that `matmul_bytes` takes stand behind
/// the inputs that an LSTM has, with their scales.
void dynamic_lstm(Importer& to, const Node& node, const char*) {
  const bool bytes = are_centred_bytes(to, node, 1, 9) && are_centred_bytes(to, node, 2, 11);
  VarId x = to.in(node, 0);
  if (node.has(4) && to.type(x).shape) x = without_padding(to, x, to.in(node, 4));
  const std::pair<const char*, VarId> inputs[] = {
      {" X", bytes ? x : rounded_to_bytes(to, x)}, {" W", recurrent_weights(to, node, 1, 8)}, {" R", recurrent_weights(to, node, 2, 10)}};
  onnx::NodeProto made, plain = node.proto();
  for (const auto& [ending, var] : inputs) *made.add_output() = node.label() + ending;
  for (std::size_t i = 0; i < 3; ++i) {
    to.bind(Node(made), i, inputs[i].second);
    plain.set_input(static_cast<int>(i), made.output(static_cast<int>(i)));
  }
  while (plain.input_size() > 8) plain.mutable_input()->RemoveLast();
  while (bytes && plain.input_size() < 8) plain.add_input("");
  for (const int given : {1, 8, 2, 10})
    if (bytes) plain.add_input(node.input(static_cast<std::size_t>(given)));
  const Node inner(plain);
  find_rule("LSTM")->apply(to, inner, "");
  node.read_as(inner);
}

constexpr Rule quantized_table[] = {
    {"QuantizeLinear", quantize},
    {"DequantizeLinear", dequantize},
    {"DynamicQuantizeLinear", quantize_dynamically},
    {"MatMulInteger", matmul_integer},
    {"ConvInteger", conv_integer},
    {"QLinearMatMul", qlinear_matmul},
    {"QLinearConv", qlinear_conv},
    {"com.microsoft.QuantizeLinear", quantize},
    {"com.microsoft.DequantizeLinear", dequantize},
    {"com.microsoft.QLinearConv", qlinear_conv, "own"},
    {"com.microsoft.DynamicQuantizeMatMul", dynamic_matmul},
    {"com.microsoft.MatMulIntegerToFloat", matmul_to_float},
    {"com.microsoft.DynamicQuantizeLSTM", dynamic_lstm},
};

}  // namespace

bool is_byte(DType dtype) { return dtype == DType::i8 || dtype == DType::u8; }

void expect_bytes(Importer& to, VarId x) {
  if (!is_byte(to.type(x).dtype)) throw UnsupportedError("expected u8 or i8, found " + to.type(x).to_string());
}

VarId along_axis(Importer& to, VarId per, VarId x, std::int64_t axis) {
  if (to.rank(per) == 0 || to.type(per).is_scalar()) return to.emit1("reshape", {per}, {{"shape", Ints{}}});
  if (to.rank(per) != 1) throw UnsupportedError("expected one scale, or one for each index of an axis, found " + to.type(per).to_string());
  const int rank = to.rank(x);
  Ints shape(static_cast<std::size_t>(rank), 1);
  shape[static_cast<std::size_t>(axis_of("attribute axis", axis, rank))] = -1;
  return to.emit1("reshape", {per}, {{"shape", shape}});
}

VarId narrowed_to_bytes(Importer& to, const Formula& f, VarId x, VarId zero, DType dtype) {
  if (!is_byte(dtype)) throw UnsupportedError("expected u8 or i8, found " + std::string(name_of(dtype)));
  const VarId rounded = f.op("round", x);
  const VarId moved = zero == no_var ? rounded : f.plus(rounded, f.taken(zero));
  const bool sign = dtype == DType::i8;
  return to.emit1("cast", {f.limited(moved, sign ? -128 : 0, sign ? 127 : 255)}, {{"to", dtype}});
}

VarId dequantized(Importer& to, VarId x, VarId scale, VarId zero, std::int64_t axis) {
  const DType dtype = to.type(scale).dtype;
  const Formula f(to, DType::f32);
  const VarId from = f.taken(x);
  const VarId centred = zero == no_var ? from : f.minus(from, f.taken(along_axis(to, zero, x, axis)));
  return f.cast(f.times(centred, f.taken(along_axis(to, scale, x, axis))), dtype);
}

bool are_centred_bytes(Importer& to, const Node& node, std::size_t weights, std::size_t zero) {
  const Tensor* const values = to.known(node, weights);
  if (values == nullptr || values->dtype() != DType::i8) return false;
  if (values->rank() < 2 || values->rank() > 3 || values->dim(-2) > most_bytes_k) return false;
  if (!node.has(zero)) return true;
  const Tensor* const zeros = to.known(node, zero);
  if (zeros == nullptr || zeros->dtype() != DType::i8) return false;
  const std::vector<std::int8_t> numbers = zeros->to_vector<std::int8_t>();
  return std::all_of(numbers.begin(), numbers.end(), [](std::int8_t number) { return number == 0; });
}

ByteFactor byte_factor(Importer& to, const Node& node, std::size_t bytes, std::size_t zero) {
  return {to.in(node, bytes), to.in_or_none(node, zero), to.known(node, bytes), node.has(zero) ? to.known(node, zero) : nullptr, false};
}
ByteFactor byte_factor(const Importer::Dequantized& from) {
  return {from.bytes, from.zero, from.known_bytes ? &*from.known_bytes : nullptr, from.known_zero ? &*from.known_zero : nullptr, false};
}

VarId byte_sums(Importer& to, const ByteFactor& a, const ByteFactor& b, VarId added) {
  // Sums of bytes less a zero, of one side or of both, that stay in i32.
  constexpr std::int64_t most_centred_k = 32768;
  const DType dtype = to.type(a.bytes).dtype;
  if (to.type(a.bytes).rank() < 1 || !is_byte(dtype) || (a.zero != no_var && !to.type(a.zero).is_scalar())) return no_var;
  if (b.known_bytes == nullptr || b.known_bytes->rank() != 2 || !is_byte(b.known_bytes->dtype())) return no_var;
  if (b.zero != no_var && (b.known_zero == nullptr || b.known_zero->dtype() != b.known_bytes->dtype())) return no_var;
  const std::int64_t k = b.known_bytes->dim(b.turned ? 1 : 0), n = b.known_bytes->dim(b.turned ? 0 : 1);
  const bool has_sign = b.known_bytes->dtype() == DType::i8;
  std::vector<std::int32_t> zeros(1, 0);
  if (b.known_zero != nullptr) {
    if (b.known_zero->elements() != 1 && (b.known_zero->rank() != 1 || b.known_zero->dim(0) != n)) return no_var;
    zeros.clear();
    visit_dtype(b.known_zero->dtype(), [&]<class T>(std::type_identity<T>) {
      if constexpr (std::is_same_v<T, std::int8_t> || std::is_same_v<T, std::uint8_t>)
        for (const T zero : b.known_zero->to_vector<T>()) zeros.push_back(zero);
    });
  }
  if (!has_sign)
    for (std::int32_t& zero : zeros) zero -= 128;
  if (zeros.size() == 1) zeros.resize(static_cast<std::size_t>(n), zeros.front());
  const bool centred = std::all_of(zeros.begin(), zeros.end(), [](std::int32_t zero) { return zero == 0; });
  if (k > (centred ? most_bytes_k : most_centred_k)) return no_var;
  VarId weights = b.bytes;
  if (!has_sign) {
    const Formula f(to, DType::i32);
    weights = f.cast(f.minus(f.taken(weights), 128.0), DType::i8);
  }
  if (b.turned) weights = to.emit1("transpose", {weights}, {{"perm", Ints{1, 0}}});
  const VarId zero = a.zero == no_var ? to.literal(scalar_of(dtype, 0)) : to.emit1("reshape", {a.zero}, {{"shape", Ints{}}});
  std::vector<VarId> inputs{a.bytes, zero, weights};
  if (!centred || added != no_var) inputs.push_back(centred ? no_var : to.literal(Tensor::from<std::int32_t>(zeros, DDim{n})));
  if (added != no_var) inputs.push_back(added);
  return to.emit1("matmul_integer", inputs);
}

VarId dequantized_product(Importer& to, VarId a, VarId b, bool turned) {
  const Importer::Dequantized *const rows = to.dequantized(a), *const columns = to.dequantized(b);
  if (rows == nullptr || columns == nullptr || !columns->known_bytes || columns->known_bytes->rank() != 2) return no_var;
  const VarType& scale = to.type(columns->scale);
  const bool by_column = scale.rank() == 1 && axis_of("attribute axis", columns->axis, 2) == (turned ? 0 : 1);
  if (!to.type(rows->scale).is_scalar() || (!scale.is_scalar() && !by_column) || !product_fits_f32(*rows, *columns)) return no_var;
  ByteFactor factor = byte_factor(*columns);
  factor.turned = turned;
  const VarId sums = byte_sums(to, byte_factor(*rows), factor);
  if (sums == no_var) return no_var;
  const Formula f(to, DType::f32);
  const auto flat = [&](VarId given) { return to.type(given).is_scalar() ? f.reshaped(given, {}) : given; };
  return f.times(f.taken(sums), f.times(flat(rows->scale), flat(columns->scale)));
}

VarId dequantized_convolution(Importer& to, const Node& node) {
  const Importer::Dequantized *const x = to.dequantized(to.in(node, 0)), *const w = to.dequantized(to.in(node, 1));
  if (x == nullptr || w == nullptr || !w->known_bytes || w->known_bytes->rank() < 3 || (w->zero != no_var && !w->known_zero)) return no_var;
  const VarType& scale = to.type(w->scale);
  if (!to.type(x->scale).is_scalar() || (x->zero != no_var && !to.type(x->zero).is_scalar())) return no_var;
  if ((!scale.is_scalar() && (scale.rank() != 1 || w->axis != 0)) || !product_fits_f32(*x, *w)) return no_var;
  const bool narrow = sums_fit_f32(&*w->known_bytes, w->zero != no_var, w->known_zero ? &*w->known_zero : nullptr, false, nullptr);
  if (!narrow && !conv_integer_is_fast()) return no_var;  // sums in f64 would take twice as long
  const Formula exact(to, narrow ? DType::f32 : DType::f64), f(to, DType::f32);
  const auto less = [&](VarId bytes, VarId zero, std::int64_t axis) {
    return zero == no_var ? exact.taken(bytes) : exact.minus(exact.taken(bytes), exact.taken(along_axis(to, zero, bytes, axis)));
  };
  const VarId sums = convolved(to, node, less(x->bytes, x->zero, 1), less(w->bytes, w->zero, 0), no_var, true);
  const auto factor = [&](VarId given) { return along_axis(to, given, sums, 1); };
  const VarId made = f.times(f.taken(sums), f.times(factor(x->scale), factor(w->scale)));
  return node.has(2) ? f.plus(made, along_axis(to, to.in(node, 2), sums, 1)) : made;
}

VarId dequantized_mean(Importer& to, VarId x) {
  constexpr double most_sum = 1 << 24;
  const Importer::Dequantized* const from = to.dequantized(x);
  if (from == nullptr || to.rank(from->bytes) < 3 || !to.type(from->scale).is_scalar() ||
      (from->zero != no_var && !to.type(from->zero).is_scalar()))
    return no_var;
  const DDim& shape = *to.type(from->bytes).shape;
  Ints axes;
  double count = 1;
  for (int axis = 2; axis < shape.rank(); ++axis) {
    if (shape[axis] < 1) return no_var;
    axes.push_back(axis);
    count *= static_cast<double>(shape[axis]);
  }
  if (count * 510 >= most_sum) return no_var;
  const Formula f(to, DType::f32);
  const VarId bytes = f.taken(from->bytes);
  const VarId centred = from->zero == no_var ? bytes : f.minus(bytes, f.taken(along_axis(to, from->zero, from->bytes, from->axis)));
  return f.over(f.times(f.reduced("sum", centred, axes, true), f.taken(along_axis(to, from->scale, from->bytes, from->axis))),
                f.number(count));
}

DType exact_sums(std::int64_t terms) { return terms >= 0 && terms <= most_in_f32 ? DType::f32 : DType::f64; }

VarId rounded_to_bytes(Importer& to, VarId x, std::int64_t axis) { return to.emit1("round_to_bytes", {x}, {{"axis", axis}}); }

std::span<const Rule> quantized_rules() { return quantized_table; }

}  // namespace millrace::importing
