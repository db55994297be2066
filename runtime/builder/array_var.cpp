// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/array_var.h>

#include <millrace/runtime/builder/ops.h>

namespace millrace::build {
namespace {

Var make_array(const std::vector<Var>& inputs, const std::string& name, Attributes attributes = {}) {
  if (!name.empty()) attributes.set("name", name);
  return call1("tensor_array", inputs, attributes, name.empty() ? "array" : name);
}

}  // namespace

ArrayVar::ArrayVar(const Var& size, const std::string& name) : var_(make_array({size}, name)) {}
ArrayVar::ArrayVar(const Var& size, const Order& order, const std::string& name) : var_(make_array({size, order.var()}, name)) {}
ArrayVar ArrayVar::typed(const Var& size, const VarType& slot, const std::string& name) {
  Attributes attributes{{"dtype", slot.dtype}};
  if (slot.shape) attributes.set("shape", std::vector<std::int64_t>(slot.shape->begin(), slot.shape->end()));
  return of(make_array({size}, name, attributes));
}
ArrayVar ArrayVar::with_extents(const Var& size, const Var& extents, const std::string& name) {
  Guard& guard = Guard::current();
  const std::string given = name.empty() ? "array" : name;
  const Op op{"tensor_array", {size.id(), no_var, extents.id()}, {}, {{"name", given}}, {}};
  return of(Var::of(guard.program().append(guard.block(), op, {given}).at(0)));
}
ArrayVar ArrayVar::growable(const std::string& name) { return of(make_array({}, name, {{"growable", true}})); }
ArrayVar ArrayVar::window(std::int64_t capacity, const std::string& name) { return of(make_array({}, name, {{"window", capacity}})); }
ArrayVar ArrayVar::unstack(const Var& x, int axis) {
  return of(call1("tensor_array_unstack", {x}, {{"axis", std::int64_t{axis}}}, "steps"));
}

Var ArrayVar::size() const { return call1("tensor_array_size", {var_}, {}, "size"); }
Var ArrayVar::has(const Var& index) const { return call1("tensor_array_has", {var_, index}, {}, "has"); }
Var ArrayVar::read(const Var& index) const { return call1("tensor_array_read", {var_, index}); }
Var ArrayVar::read(const Var& index, const Var& boot) const { return call1("tensor_array_read", {var_, index, boot}); }
void ArrayVar::write(const Var& index, const Var& value, ::millrace::TensorArray::Mode mode) const {
  call("tensor_array_write", {var_, index, value}, {{"share", mode == share}});
}
void ArrayVar::append(const Var& value, ::millrace::TensorArray::Mode mode) const {
  call("tensor_array_append", {var_, value}, {{"share", mode == share}});
}
Var ArrayVar::stack(int axis) const { return call1("tensor_array_stack", {var_}, {{"axis", std::int64_t{axis}}}); }
Var ArrayVar::concat() const { return call1("tensor_array_concat", {var_}); }
Var ArrayVar::gather(const Var& index) const { return call1("tensor_array_gather", {var_, index}); }
ArrayVar::Element ArrayVar::operator[](const Var& index) const { return Element(*this, index); }

std::pair<ArrayVar, Order> unpack(const Var& x, int level, bool sort) {
  const std::vector<Var> made = call("unpack", {x}, {{"level", std::int64_t{level}}, {"sort_by_length", sort}}, {"steps", "order"});
  return {ArrayVar::of(made[0]), Order(made[1])};
}

ArrayVar reorder_steps(const ArrayVar& array, const Order& from, const Order& to) {
  return ArrayVar::of(call1("reorder_steps", {array.var(), from.var(), to.var()}, {}, array.var().name()));
}

Var pack(const ArrayVar& array, int level, const Order& order) {
  return call1("pack", {array.var(), order.var()}, {{"level", std::int64_t{level}}});
}

}  // namespace millrace::build
