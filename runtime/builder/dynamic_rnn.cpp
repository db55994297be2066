// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/dynamic_rnn.h>

#include <millrace/runtime/builder/ops.h>

namespace millrace::build {

DynamicRNN::DynamicRNN(Options options) : RnnBlock("DynamicRNN", {.parallel_iterations = options.parallel_iterations}), options_(options) {}

Var DynamicRNN::step_input(const Var& input) {
  expect_inside("step_input");
  const Var x = outer("step_input", input);
  const auto [steps, order] = outside([&] {
    const std::int64_t level = options_.level;
    const Var agreed = has_steps() ? call1("same_steps", {x, source_}, {{"level", level}}, x.name()) : x;
    const std::vector<Var> made =
        call("unpack", {agreed}, {{"level", level}, {"sort_by_length", options_.sort_by_length}, {"reverse", options_.reverse}},
             {"steps", "order"});
    return std::pair(ArrayVar::of(made[0]), Order(made[1]));
  });
  if (!has_steps()) {
    source_ = Var::of(x.id());
    order_ = order;
    input_slots_ = steps;
  }
  return this_step(steps);
}

Var DynamicRNN::step_slot(const ArrayVar& slots) {
  expect_behind("step_slot");
  return this_step(slots);
}

const Order& DynamicRNN::order() const {
  if (!order_) refuse("order: expected a step_input before it");
  return *order_;
}
const ArrayVar& DynamicRNN::input_slots() const {
  if (!input_slots_) refuse("input_slots: expected a step_input before it");
  return *input_slots_;
}

Var DynamicRNN::static_input(const Var& input) {
  expect_behind("static_input");
  const Var x = outer("static_input", input);
  return shrink(outside([&] { return call1("reorder", {x, order_->var()}, {}, x.name()); }), first_input());
}

ArrayVar DynamicRNN::make_array(const std::string& name) const { return ArrayVar(steps(), *order_, name); }
Var DynamicRNN::alive(const Var& state) const { return call1("shrink", {state, first_input()}, {}, state.name()); }
Var DynamicRNN::boot_rows(DType dtype, const std::vector<std::int64_t>& row_shape, double value) const {
  return call1("constant_rows", {order_->var()}, {{"dtype", dtype}, {"shape", row_shape}, {"value", value}}, "boot");
}
Var DynamicRNN::joined(const ArrayVar& array) const { return pack(array, options_.level, *order_); }
Var DynamicRNN::last_of(const Memory& memory) const {
  return call1("last_rows", {memory.states.var(), order_->var(), memory.boot}, {}, "last");
}

}  // namespace millrace::build
