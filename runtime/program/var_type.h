// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <millrace/tensor/ddim.h>
#include <millrace/tensor/dtype.h>

namespace millrace {

/// What a var holds.
enum class VarKind : std::uint8_t {
  tensor,  ///< rows, perhaps with LoD
  array,   ///< a TensorArray: `dtype` and `shape` are those of a slot
  order    ///< what `unpack` remembers for `pack`
};

/// What inference knows of a var. An extent of −1 is known only at run time; no `shape` at all means that even the rank is.
struct VarType {
  VarKind kind = VarKind::tensor;
  DType dtype = DType::f32;
  std::optional<DDim> shape;
  int lod_depth = 0;     ///< levels of LoD above the rows (of a slot's value, for an array)
  bool open = false;     ///< an array whose slots are of a kind that nothing has said yet
  bool ordered = false;  ///< an array made with an order, or what was read from one: it carries (order, turn)

  VarType() = default;
  VarType(DType of, const DDim& extents, int levels = 0) : dtype(of), shape(extents), lod_depth(levels) {}
  static VarType array_of(DType dtype, std::optional<DDim> slot, bool ordered);
  /// An array that takes dtype and shape from the first write.
  static VarType open_array(bool ordered);
  static VarType order();
  static VarType unranked(DType dtype);

  bool is_tensor() const noexcept { return kind == VarKind::tensor; }
  bool is_array() const noexcept { return kind == VarKind::array; }
  /// Rank, or −1 when unknown.
  int rank() const noexcept { return shape ? shape->rank() : -1; }
  /// Known to have one element.
  bool is_scalar() const noexcept { return shape && shape->is_scalar(); }
  /// All extents known.
  bool is_static() const noexcept;

  /// "f32[?, 64] lod=1", "f32[*]" for an unknown rank, "array<f32[?, 64]> ordered", "array<?>", "order".
  std::string to_string() const;
  friend bool operator==(const VarType&, const VarType&) = default;
};

/// True when a value of type `found` may stand where `wanted` is declared: same kind, dtype and levels, extents equal where both are known.
bool fits(const VarType& found, const VarType& wanted);
/// The most that is known of both: extents that differ become unknown. Kinds and dtypes must be equal (checked by the caller).
VarType common(const VarType& a, const VarType& b);

}  // namespace millrace
