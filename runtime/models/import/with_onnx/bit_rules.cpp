// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>

#include <millrace/runtime/models/import/with_onnx/element_types.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>
#include <millrace/runtime/models/import/with_onnx/tensor_proto.h>

/// Ops on the bits of integers, as arithmetic: a shift is a product with a power of two, or a division by one.
namespace millrace::importing {
namespace {

/// Bits of the elements of a var, as ONNX has them; whether there is a sign.
struct Width {
  int bits;
  bool is_signed;
};

Width width_of(Importer& to, VarId x) {
  if (const ElementType* type = to.element(x)) return {type->bits, type->is_signed};
  const DType dtype = to.type(x).dtype;
  if (!is_integer(dtype)) throw ProgramError("expected integers, found " + to.type(x).to_string());
  return {static_cast<int>(size_of(dtype)) * 8, dtype != DType::u8};
}

/// BitShift. A shift by as many places as there are bits, or by a negative number, leaves copies of the sign alone.
void shift(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const Width width = width_of(to, x);
  const bool left = node.word("direction", "", {"LEFT", "RIGHT"}) == "LEFT";
  const VarId places = whole_numbers(to, to.in(node, 1)), wide = whole_numbers(to, x);
  const int most = std::min(width.bits, 63);
  Ints powers;
  for (int i = 0; i < most; ++i) powers.push_back(std::int64_t{1} << i);
  const VarId inside =
      to.emit1("logical_and", {to.emit1("greater_equal", {places, number(to, 0)}), to.emit1("less", {places, number(to, most)})});
  const VarId factor =
      to.emit1("gather", {to.literal(powers), to.emit1("where", {inside, places, number(to, 0)})}, {{"axis", std::int64_t{0}}});
  // A division rounds towards −∞ where the remainder with the sign of the divisor is taken off first.
  const VarId shifted =
      left ? to.emit1("mul", {wide, factor}) : to.emit1("div", {to.emit1("sub", {wide, to.emit1("mod", {wide, factor})}), factor});
  VarId beyond = number(to, 0);
  if (!left && width.is_signed) beyond = to.emit1("where", {to.emit1("less", {wide, number(to, 0)}), number(to, -1), number(to, 0)});
  VarId made = to.emit1("where", {inside, shifted, beyond});
  if (left && width.bits == 64) {
    // 2⁶³ is no power of the list.
    const VarId top = to.emit1("mul", {to.emit1("mod", {wide, number(to, 2)}), number(to, INT64_MIN)});
    made = to.emit1("where", {to.emit1("equal", {places, number(to, 63)}), top, made});
  }
  if (!left && width.bits == 64 && width.is_signed) made = to.emit1("where", {to.emit1("equal", {places, number(to, 63)}), beyond, made});
  to.give(node, "cast", {made}, {{"to", to.type(x).dtype}});
}

/// −1 − x, or for numbers without a sign the greatest less x.
void bitwise_not(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const Width width = width_of(to, x);
  const std::int64_t all = width.is_signed || width.bits == 64 ? -1 : (std::int64_t{1} << width.bits) - 1;
  const VarId made = to.emit1("sub", {number(to, all), whole_numbers(to, x)});
  to.give(node, "cast", {made}, {{"to", to.type(x).dtype}});
}

/// The bits of an integer along a new last axis, lowest first: 63 digits and the sign.
VarId bits_of(Importer& to, VarId x) {
  Ints powers;
  for (int i = 0; i < 63; ++i) powers.push_back(std::int64_t{1} << i);
  const VarId wide = to.emit1("unsqueeze", {whole_numbers(to, x)}, {{"axes", Ints{-1}}});
  const VarId units = to.literal(powers);
  const VarId shifted = to.emit1("div", {to.emit1("sub", {wide, to.emit1("mod", {wide, units})}), units});
  const VarId digits = to.emit1("mod", {shifted, number(to, 2)});
  const VarId sign = to.emit1("cast", {to.emit1("less", {wide, number(to, 0)})}, {{"to", DType::i64}});
  const VarId all = to.emit1("concat", {digits, sign}, {{"axis", std::int64_t{-1}}});
  return to.emit1("equal", {all, number(to, 1)});
}

/// And, or and xor of the bits, which are summed up again.
void bitwise(Importer& to, const Node& node, const char* op) {
  const VarId x = to.in(node, 0), y = to.in(node, 1);
  width_of(to, x);
  Ints powers;
  for (int i = 0; i < 63; ++i) powers.push_back(std::int64_t{1} << i);
  powers.push_back(INT64_MIN);
  const VarId bits = to.emit1("cast", {to.emit1(op, {bits_of(to, x), bits_of(to, y)})}, {{"to", DType::i64}});
  const VarId sum = to.emit1("reduce", {to.emit1("mul", {bits, to.literal(powers)})},
                             {{"kind", std::string("sum")}, {"axes", Ints{-1}}, {"keepdims", false}});
  to.give(node, "cast", {sum}, {{"to", to.type(x).dtype}});
}

/// Integers of which one has no dtype: the number is taken with the sign, or without it, of the other type.
void bit_cast_held(Importer& to, const Node& node, VarId x, int wanted) {
  const Width from = width_of(to, x);
  const ElementType* type = held_type(wanted);
  const DType dtype = held_dtype(wanted, "attribute to");
  const int bits = type == nullptr ? static_cast<int>(size_of(dtype)) * 8 : type->bits;
  if (bits != from.bits || !is_integer(dtype))
    throw UnsupportedError("attribute to: expected an integer of " + std::to_string(from.bits) + " bits, found another type");
  VarId made = to.emit1("cast", {x}, {{"to", dtype}});
  if (type != nullptr) made = narrowed(to, made, *type);
  to.set_element(made, type != nullptr && type->onnx == onnx::TensorProto::UINT64 ? held_type(wrapped_uint64) : type);
  to.bind(node, 0, made);
}

void bit_cast(Importer& to, const Node& node, const char* op) {
  const auto wanted = static_cast<int>(node.integer("to", 0));
  if (to.element(to.in(node, 0)) != nullptr || held_type(wanted) != nullptr) return bit_cast_held(to, node, to.in(node, 0), wanted);
  to.give(node, op, {to.in(node, 0)}, {{"to", dtype_of_onnx(static_cast<int>(node.integer("to", 0)), "attribute to")}});
}

constexpr Rule bit_table[] = {
    {"BitShift", shift},
    {"BitwiseNot", bitwise_not},
    {"BitwiseAnd", bitwise, "logical_and"},
    {"BitwiseOr", bitwise, "logical_or"},
    {"BitwiseXor", bitwise, "logical_xor"},
    {"BitCast", bit_cast, "bit_cast"},
};

}  // namespace

std::span<const Rule> bit_rules() { return bit_table; }

}  // namespace millrace::importing
