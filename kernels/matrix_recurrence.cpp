// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/matrix_recurrence.h>

#include <string>

#include <millrace/kernels/cpu/matrix_recurrence.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

constexpr const char* name = "matrix_recurrence";

std::int64_t row_elements(const Tensor& x) { return x.dims().slice(2, x.rank()).elements(); }

void expect_steps(const char* role, const Tensor& x, const Tensor& like) {
  internal::check_same_dtype(name, like, x);
  if (x.rank() < 3 || x.dim(0) != like.dim(0) || x.dim(1) != like.dim(1))
    throw ShapeError(std::string(name) + ": expected as many steps and sequences in " + role + " as in " + like.to_string() + ", found " +
                     x.to_string());
}

[[noreturn]] void refuse_width(const char* role, const std::string& wanted, const Tensor& found) {
  throw ShapeError(std::string(name) + ": expected " + wanted + " in a row of " + role + ", found " + found.to_string());
}

void check(const MatrixRecurrence& call) {
  if (call.heads < 1 || call.steps < 0 || call.steps > 1)
    throw ArgumentError(std::string(name) + ": expected at least one head, and steps along axis 0 or 1, found " +
                        std::to_string(call.heads) + " and " + std::to_string(call.steps));
  if (call.rate && !call.corrects)
    throw ArgumentError(std::string(name) + ": expected no rate without a correction, found " + call.rate->to_string());
  if (call.key.dtype() != DType::f64) internal::check_dtype(name, "key", call.key, DType::f32);
  if (call.key.rank() < 3) throw ShapeError(std::string(name) + ": expected a key of rank 3 or more, found " + call.key.to_string());
  expect_steps("value", call.value, call.key);
  expect_steps("query", call.query, call.key);
  const std::int64_t heads = call.heads, keys = row_elements(call.key), values = row_elements(call.value);
  const std::string of_heads = " for each of " + std::to_string(heads) + " heads";
  if (keys < 1 || keys % heads != 0) refuse_width("key", "as many elements" + of_heads, call.key);
  if (values < 1 || values % heads != 0) refuse_width("value", "as many elements" + of_heads, call.value);
  if (row_elements(call.query) < 1 || row_elements(call.query) % keys != 0)
    refuse_width("query", "the elements of one or more keys" + of_heads, call.query);
  if (call.decay) {
    expect_steps("decay", *call.decay, call.key);
    if (row_elements(*call.decay) != heads && row_elements(*call.decay) != keys)
      refuse_width("decay", std::to_string(heads) + " or " + std::to_string(keys) + " elements", *call.decay);
  }
  if (call.rate) {
    expect_steps("rate", *call.rate, call.key);
    if (row_elements(*call.rate) != 1 && row_elements(*call.rate) != heads)
      refuse_width("rate", "1 or " + std::to_string(heads) + " elements", *call.rate);
  }
  internal::check_same_dtype(name, call.key, call.past);
  const std::int64_t sequences = call.key.dim(1 - call.steps), elements = keys / heads * values;
  if (call.past.rank() < 1 || (call.past.dim(0) != sequences && call.past.dim(0) != 1) ||
      call.past.dims().slice(1, call.past.rank()).elements() != elements)
    throw ShapeError(std::string(name) + ": expected a state of " + std::to_string(elements) + " elements for each of " +
                     std::to_string(sequences) + " sequences, found " + call.past.to_string());
}

}  // namespace

MatrixReads matrix_recurrence(const MatrixRecurrence& call, StreamRef stream) {
  const auto given = [](const std::optional<Tensor>& x) { return x ? &*x : nullptr; };
  internal::check_device_places(name, stream, {&call.key, &call.value, &call.query, &call.past, given(call.decay), given(call.rate)});
  internal::check_host(name, stream, call.key);
  check(call);
  const auto rows = [&](const Tensor& x) { return x.is_contiguous() ? x : internal::row_major(name, x, stream); };
  MatrixRecurrence made = call;
  for (Tensor* const x : {&made.key, &made.value, &made.query, &made.past}) *x = rows(*x);
  for (std::optional<Tensor>* const x : {&made.decay, &made.rate})
    if (*x) *x = rows(**x);
  const std::int64_t queries = row_elements(call.query) / row_elements(call.key);
  const Tensor out(call.key.dtype(), DDim{call.key.dim(0), call.key.dim(1), queries * row_elements(call.value)}, stream.memory());
  DDim states = call.past.dims();
  if (call.key.dim(call.steps) > 0) states[0] = call.key.dim(1 - call.steps);
  const Tensor last(call.key.dtype(), states, stream.memory());
  launch(
      TensorRefs<6>{&made.key, &made.value, &made.query, &made.past, given(made.decay), given(made.rate)}, TensorRefs<2>{&out, &last},
      std::tuple<const MatrixRecurrence&, const Tensor&, const Tensor&>(made, out, last),
      [](KernelContext& context, const MatrixRecurrence& operands, const Tensor& reads, const Tensor& behind) {
        cpu::matrix_recurrence(operands, reads, behind, context);
      },
      stream);
  return {out, last};
}

}  // namespace millrace
