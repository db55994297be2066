// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>
#include <string>

#include <millrace/tensor/ddim.h>
#include <millrace/tensor/dtype.h>

namespace millrace {

/// The kind of value that a var holds.
enum class VarKind : std::uint8_t {
  tensor,        ///< rows, perhaps with LoD
  array,         ///< a TensorArray: `dtype` and `shape` are those of a slot
  order,         ///< what `unpack` remembers for `pack`
  list,          ///< a TensorList: `dtype` and `shape` are those of an element
  optional,      ///< a tensor or nothing
  optional_list  ///< a list or nothing
};

/// The knowledge of inference about a var. An extent of −1 is known only at run time; no `shape` at all means that even the rank is.
struct VarType {
  VarKind kind = VarKind::tensor;
  DType dtype = DType::f32;
  std::optional<DDim> shape;
  int lod_depth = 0;     ///< levels of LoD above the rows (of a slot's value, for an array)
  bool open = false;     ///< an array whose slots are of a kind that nothing has said yet
  bool ordered = false;  ///< an array made with an order, or what was read from one: it carries (order, iteration)
  bool empty = false;    ///< a list or optional that is known to hold no element, so that any shape is right

  VarType() = default;
  VarType(DType of, const DDim& extents, int levels = 0) : dtype(of), shape(extents), lod_depth(levels) {}
  static VarType array_of(DType dtype, std::optional<DDim> slot, bool ordered);
  /// An array that takes dtype and shape from the first write.
  static VarType open_array(bool ordered);
  static VarType order();
  static VarType unranked(DType dtype);
  /// A list of elements like `element`, a tensor without LoD.
  static VarType list_of(const VarType& element);
  static VarType empty_list(DType dtype);
  /// The type of an optional that holds a tensor or a list.
  static VarType optional_of(const VarType& held);

  bool is_tensor() const noexcept { return kind == VarKind::tensor; }
  bool is_array() const noexcept { return kind == VarKind::array; }
  bool is_list() const noexcept { return kind == VarKind::list; }
  bool is_optional() const noexcept { return kind == VarKind::optional || kind == VarKind::optional_list; }
  /// An element of a list, as a tensor; of unknown rank where the list is known to be empty.
  VarType element() const;
  /// The type of the content of an optional.
  VarType held() const;
  /// Rank, or −1 when unknown.
  int rank() const noexcept { return shape ? shape->rank() : -1; }
  /// Known to have one element.
  bool is_scalar() const noexcept { return shape && shape->is_scalar(); }
  /// All extents known.
  bool is_static() const noexcept;

  /// "f32[?, 64] lod=1", "f32[*]" for an unknown rank, "array<f32[?, 64]> ordered", "array<?>", "order", "list<f32[?]>",
  /// "list<f32 empty>", "optional<f32[2]>", "optional<list<f32[2]>>".
  std::string to_string() const;
  friend bool operator==(const VarType&, const VarType&) = default;
};

/// True when a value of type `found` may stand where `wanted` is declared: same kind, dtype and levels, extents equal where both are known.
/// A list or optional that is known to be empty fits whatever elements are wanted, and nothing else fits where it is declared.
bool fits(const VarType& found, const VarType& wanted);
/// The most that is known of both: extents that differ become unknown. Kinds and dtypes must be equal (checked by the caller). What
/// is known to be empty says nothing of the elements.
VarType common(const VarType& a, const VarType& b);

}  // namespace millrace
