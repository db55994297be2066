// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/row_group.h>

#include <algorithm>
#include <set>

#include <millrace/runtime/lowering/passes.h>
#include <millrace/runtime/program/internal/few.h>
#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/program/vectorize.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

constexpr std::size_t few_ports = 12;

/// Bool and integers are numbers beside those of the plan.
bool is_aside(DType dtype) { return dtype == DType::boolean || dtype == DType::i64 || dtype == DType::i32; }
bool is_held(DType dtype) { return dtype == DType::f32 || dtype == DType::f64 || is_aside(dtype); }

/// Whether all integers of a tensor that is there can be given to a kernel of rows.
bool fit_in_rows(const Tensor& integers) {
  if (!integers.is_contiguous() || !integers.ready().reached()) return false;
  const auto small = [](std::int64_t value) { return -RowKernel::most_given <= value && value <= RowKernel::most_given; };
  const auto fit = [&](const auto* values) { return std::all_of(values, values + integers.elements(), small); };
  return integers.dtype() == DType::i64 ? fit(integers.data<std::int64_t>()) : fit(integers.data<std::int32_t>());
}

/// Scratch of the calling thread, aligned to 64 bytes.
std::byte* scratch(std::int64_t bytes) {
  thread_local std::vector<std::byte> held;
  if (std::cmp_less(held.size(), bytes + 64)) held.resize(static_cast<std::size_t>(bytes) + 64);
  const auto address = reinterpret_cast<std::uintptr_t>(held.data());
  return held.data() + (64 - address % 64) % 64;
}

/// The ops as a program of their own: `inputs` become its inputs, constants its parameters.
Program straight(const Program& program, std::span<const Op* const> ops, const std::vector<VarId>& inputs,
                 const std::vector<VarId>& outputs) {
  Program made(program.shared_registry());
  std::map<VarId, VarId> to;
  for (const VarId var : inputs) to[var] = made.add_input(program.var(var).name, program.var(var).type);
  for (const Op* op : ops) {
    Op copied{op->type, {}, {}, op->attributes, op->label};
    for (const VarId input : op->inputs) {
      if (input != no_var && !to.contains(input)) to[input] = made.add_parameter(program.var(input).name, *program.constant(input));
      copied.inputs.push_back(input == no_var ? no_var : to.at(input));
    }
    std::vector<std::string> names;
    for (const VarId output : op->outputs) names.push_back(program.var(output).name);
    const std::vector<VarId> own = made.append(0, std::move(copied), names);
    for (std::size_t i = 0; i < own.size(); ++i) to[op->outputs[i]] = own[i];
  }
  for (const VarId var : outputs) made.add_output(program.var(var).name, to.at(var));
  return made;
}

RowGroup::Form form_of(const VarType& type) {
  using Form = RowGroup::Form;
  if (!type.is_tensor() || !type.shape || type.lod_depth != 0 || !is_held(type.dtype)) return Form::none;
  const DDim& shape = *type.shape;
  const bool rows = shape.rank() > 0 && shape[0] == DDim::unknown;
  if (!rows && shape.rank() == max_rank) return Form::none;
  std::int64_t elements = 1;
  for (int axis = rows ? 1 : 0; axis < shape.rank(); ++axis) {
    if (shape[axis] <= 0 || shape[axis] > RowGroup::most_elements) return Form::none;
    elements *= shape[axis];
    if (elements > (is_integer(type.dtype) ? RowGroup::most_integers : RowGroup::most_elements)) return Form::none;
  }
  return rows ? Form::rows : Form::one;
}

}  // namespace

RowGroup::Form RowGroup::form_of(const Program& program, const Op& op) {
  std::optional<Form> found;
  for (const auto* vars : {&op.inputs, &op.outputs})
    for (const VarId var : *vars) {
      if (var == no_var || program.constant(var) != nullptr) continue;
      const Form form = millrace::form_of(program.var(var).type);
      if (form == Form::none || (found && *found != form)) return Form::none;
      found = form;
    }
  return found.value_or(Form::none);
}

RowGroup::RowGroup(const Program& program, std::span<const Op* const> ops, Form form, const std::vector<VarId>& outputs) : form_(form) {
  std::set<VarId> known;
  for (const Op* op : ops) {
    for (const VarId input : op->inputs)
      if (input != no_var && program.constant(input) == nullptr && known.insert(input).second) inputs_.push_back(input);
    known.insert(op->outputs.begin(), op->outputs.end());
  }
  Program rows = straight(program, ops, inputs_, outputs);
  if (form == Form::one) rows = vectorize(rows);
  kernel_.emplace(passes::merge_products(passes::share_expressions(rows)), RowKernel::Truth::integers, form == Form::one);
  if (kernel_->packs_inputs()) throw UnsupportedError("a weight is an input");
  for (const RowWeights::Matrix& matrix : kernel_->known().matrices)
    if (matrix.plan.desc().n * matrix.plan.desc().k > most_products)
      throw UnsupportedError("a product is large enough for several threads");
  weights_ = kernel_->known();
  for (const VarId input : inputs_) in_.push_back(port_of(program.var(input).type));
  for (const VarId output : outputs) out_.push_back(port_of(program.var(output).type));
}

RowGroup::Port RowGroup::port_of(const VarType& type) {
  Port made{type.dtype, form_ == Form::rows ? type.shape->erased(0) : *type.shape};
  made.width = made.dims.elements();
  if (is_aside(type.dtype)) {
    made.aside = aside_;
    aside_ += made.width;
  }
  return made;
}

bool RowGroup::fits(std::span<const Value* const> values) const {
  std::int64_t rows = -1;
  for (std::size_t i = 0; i < in_.size(); ++i) {
    if (values[i] == nullptr || !values[i]->is_tensor()) return false;
    const SlotValue& value = values[i]->tensor();
    const DDim& dims = value.dims();
    const DDim& wanted = in_[i].dims;
    const int first = form_ == Form::rows ? 1 : 0;
    if (!value.tensor().host_accessible() || value.dtype() != in_[i].dtype || value.lod().depth() != 0 ||
        dims.rank() != wanted.rank() + first || !std::equal(wanted.begin(), wanted.end(), dims.begin() + first))
      return false;
    if (is_integer(value.dtype()) && !fit_in_rows(value.tensor())) return false;
    if (first == 0) continue;
    if (rows >= 0 && rows != *dims.begin()) return false;
    rows = *dims.begin();
    if (rows * in_[i].width > most_elements) return false;
  }
  return form_ == Form::one || rows > 0;
}

/// The work of one run, which may be later: it holds the storage that it touches.
struct RowGroup::Job {
  Job(std::shared_ptr<const RowGroup> owner, std::size_t ports, std::int64_t count)
      : group(std::move(owner)), views(ports), storage(ports), rows(count) {}

  std::shared_ptr<const RowGroup> group;
  Few<RowView, few_ports> views;
  Few<std::shared_ptr<Allocation>, few_ports> storage;
  std::int64_t rows;

  void operator()(KernelContext&) { group->run_rows(views.span(), rows); }
};

void RowGroup::run(OpContext& context) const {
  const StreamRef stream = context.stream();
  const std::int64_t rows = form_ == Form::one ? 1 : context.tensor(0).dim(0);
  Job job(shared_from_this(), in_.size() + out_.size(), rows);
  for (std::size_t i = 0; i < in_.size(); ++i) {
    const Tensor& given = context.tensor(i);
    const Tensor input = given.is_contiguous() ? given : clone(given, stream);
    detail::order_read(input, stream);
    job.views[i] = {input.raw_mutable(), in_[i].width};
    job.storage[i] = input.storage();
  }
  Few<std::shared_ptr<Allocation>, 4> made(out_.size());
  for (std::size_t i = 0; i < out_.size(); ++i) {
    const DDim dims = form_ == Form::one ? out_[i].dims : out_[i].dims.inserted(0, rows);
    Tensor output(out_[i].dtype, dims, stream.memory());
    made[i] = output.storage();
    job.views[in_.size() + i] = {output.raw_mutable(), out_[i].width};
    job.storage[in_.size() + i] = made[i];
    context.set(i, std::move(output));
  }
  stream.enqueue(std::move(job));
  const Point done = stream.position();
  for (std::size_t i = 0; i < out_.size(); ++i) {
    made[i]->set_ready(done);
    made[i]->mark_written();
  }
}

void RowGroup::run_rows(std::span<RowView> views, std::int64_t rows) const {
  if (kernel_->plan().desc().dtype == DType::f64) return run_rows_in<double>(views, rows);
  run_rows_in<float>(views, rows);
}

/// Truth is 1 or 0 in a register, and an integer the number of its value.
template <class T>
void RowGroup::read_numbers(const Port& port, const RowView& from, T* numbers, std::int64_t count) {
  visit_dtype(port.dtype, [&]<class E>(std::type_identity<E>) {
    if constexpr (std::is_integral_v<E>) {
      const E* const given = from.row<E>(0);
      for (std::int64_t k = 0; k < count; ++k) numbers[k] = static_cast<T>(given[k]);
    }
  });
}

template <class T>
void RowGroup::write_numbers(const Port& port, const T* numbers, const RowView& to, std::int64_t count) {
  visit_dtype(port.dtype, [&]<class E>(std::type_identity<E>) {
    if constexpr (std::is_integral_v<E>) {
      E* const wanted = to.row<E>(0);
      for (std::int64_t k = 0; k < count; ++k) wanted[k] = static_cast<E>(numbers[k]);
    }
  });
}

template <class T>
void RowGroup::run_rows_in(std::span<RowView> views, std::int64_t rows) const {
  const std::int64_t workspace = (kernel_->plan().workspace_bytes() + 63) / 64 * 64;
  std::byte* const memory = scratch(workspace + aside_ * rows * static_cast<std::int64_t>(sizeof(T)));
  T* const aside = reinterpret_cast<T*>(memory + workspace);
  const std::span<RowView> inputs = views.first(in_.size());
  const std::span<RowView> outputs = views.subspan(in_.size());
  for (std::size_t i = 0; i < in_.size() && aside_ > 0; ++i) {
    if (in_[i].aside < 0) continue;
    T* const numbers = aside + in_[i].aside * rows;
    read_numbers(in_[i], inputs[i], numbers, in_[i].width * rows);
    inputs[i].first = numbers;
  }
  Few<RowView, 4> wanted(out_.size());
  for (std::size_t i = 0; i < out_.size() && aside_ > 0; ++i) {
    if (out_[i].aside < 0) continue;
    wanted[i] = outputs[i];
    outputs[i].first = aside + out_[i].aside * rows;
  }
  kernel_->run(weights_, inputs, outputs, rows, memory);
  for (std::size_t i = 0; i < out_.size() && aside_ > 0; ++i)
    if (out_[i].aside >= 0) write_numbers(out_[i], aside + out_[i].aside * rows, wanted[i], out_[i].width * rows);
}

}  // namespace millrace
