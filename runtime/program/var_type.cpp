// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/program/var_type.h>

namespace millrace {

VarType VarType::array_of(DType dtype, std::optional<DDim> slot, bool ordered) {
  VarType type;
  type.kind = VarKind::array;
  type.dtype = dtype;
  type.shape = slot;
  type.ordered = ordered;
  return type;
}

VarType VarType::open_array(bool ordered) {
  VarType type = array_of(DType::f32, std::nullopt, ordered);
  type.open = true;
  return type;
}

VarType VarType::order() {
  VarType type;
  type.kind = VarKind::order;
  type.dtype = DType::i32;
  return type;
}

VarType VarType::unranked(DType dtype) {
  VarType type;
  type.dtype = dtype;
  return type;
}

bool VarType::is_static() const noexcept {
  if (!shape) return false;
  for (const std::int64_t extent : *shape)
    if (extent < 0) return false;
  return true;
}

std::string VarType::to_string() const {
  if (kind == VarKind::order) return "order";
  std::string text = std::string(name_of(dtype)) + (shape ? shape->to_string() : "[*]");
  if (lod_depth > 0) text += " lod=" + std::to_string(lod_depth);
  if (kind == VarKind::array) text = open ? "array<?>" : "array<" + text + ">";
  return ordered ? text + " ordered" : text;
}

bool fits(const VarType& found, const VarType& wanted) {
  if (found.kind == VarKind::array && wanted.kind == VarKind::array && (found.open || wanted.open)) return true;
  if (found.kind != wanted.kind || found.dtype != wanted.dtype || found.lod_depth != wanted.lod_depth) return false;
  if (!found.shape || !wanted.shape) return true;
  if (found.rank() != wanted.rank()) return false;
  for (int axis = 0; axis < found.rank(); ++axis) {
    const std::int64_t a = (*found.shape)[axis];
    const std::int64_t b = (*wanted.shape)[axis];
    if (a != b && a != DDim::unknown && b != DDim::unknown) return false;
  }
  return true;
}

VarType common(const VarType& a, const VarType& b) {
  VarType type = a;
  type.ordered = a.ordered && b.ordered;
  if (!a.shape || !b.shape || a.rank() != b.rank()) {
    type.shape.reset();
    return type;
  }
  for (int axis = 0; axis < a.rank(); ++axis)
    if ((*a.shape)[axis] != (*b.shape)[axis]) (*type.shape)[axis] = DDim::unknown;
  return type;
}

}  // namespace millrace
