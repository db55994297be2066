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

VarType VarType::list_of(const VarType& element) {
  VarType type = element;
  type.kind = VarKind::list;
  type.ordered = false;
  return type;
}

VarType VarType::empty_list(DType dtype) {
  VarType type = list_of(unranked(dtype));
  type.empty = true;
  return type;
}

VarType VarType::optional_of(const VarType& held) {
  VarType type = held;
  type.kind = held.is_list() ? VarKind::optional_list : VarKind::optional;
  type.ordered = false;
  return type;
}

VarType VarType::element() const {
  VarType type = *this;
  type.kind = VarKind::tensor;
  type.empty = false;
  return type;
}

VarType VarType::held() const {
  if (kind == VarKind::optional) return element();
  VarType type = *this;
  type.kind = VarKind::list;
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
  std::string text = std::string(name_of(dtype)) + (empty ? " empty" : shape ? shape->to_string() : "[*]");
  if (lod_depth > 0) text += " lod=" + std::to_string(lod_depth);
  if (kind == VarKind::array) text = open ? "array<?>" : "array<" + text + ">";
  if (kind == VarKind::list || kind == VarKind::optional_list) text = "list<" + text + ">";
  if (is_optional()) text = "optional<" + text + ">";
  return ordered ? text + " ordered" : text;
}

bool fits(const VarType& found, const VarType& wanted) {
  if (found.kind == VarKind::array && wanted.kind == VarKind::array && (found.open || wanted.open)) return true;
  if (found.kind != wanted.kind || found.dtype != wanted.dtype || found.lod_depth != wanted.lod_depth) return false;
  if (found.empty || wanted.empty) return found.empty;
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
  if (a.empty || b.empty) return a.empty ? b : a;
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
