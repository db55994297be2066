// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/gather.h>

#include <string>

#include <millrace/kernels/broadcast.h>
#include <millrace/kernels/cpu/gather.h>
#include <millrace/kernels/cpu/index.h>
#include <millrace/kernels/cuda/kernels.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

DDim gathered_dims(const DDim& x, int axis, const DDim& index) {
  DDim dims = x.slice(0, axis);
  for (const std::int64_t extent : index) dims = dims.inserted(dims.rank(), extent);
  for (int at = axis + 1; at < x.rank(); ++at) dims = dims.inserted(dims.rank(), x[at]);
  return dims;
}

constexpr internal::Implementations<const Tensor&, const Tensor&, int, const Tensor&> gathers{
    "gather", {{"cuda", cuda::gather}}, cpu::gather};
constexpr internal::Implementations<const Tensor&, const Tensor&, int, const Tensor&> element_gathers{
    "gather_elements", {{"cuda", cuda::gather_elements}}, cpu::gather_elements};

}  // namespace

Tensor gather(const Tensor& x, const Tensor& index, int axis, StreamRef stream) {
  const int at = internal::checked_axis("gather", axis, x.dims());
  internal::check_index_dtype("gather", index);
  Tensor out(x.dtype(), gathered_dims(x.dims(), at, index.dims()), stream.memory());
  internal::check_device_places("gather", stream, {&x, &index, &out});
  launch(TensorRefs<2>{&x, &index}, TensorRefs<1>{&out}, [=](KernelContext& context) { gathers.run(x, index, at, out, context); }, stream);
  return out;
}

Tensor gather_planes(const Tensor& x, const Tensor& rows, const Tensor& columns, StreamRef stream) {
  internal::check_device_places("gather_planes", stream, {&x, &rows, &columns});
  internal::check_host("gather_planes", stream, x);
  for (const Tensor* index : {&rows, &columns}) {
    internal::check_index_dtype("gather_planes", *index);
    if (index->rank() != 1) throw ShapeError("gather_planes: expected indices of one axis, found " + index->to_string());
  }
  if (x.rank() < 2) throw ShapeError("gather_planes: expected two axes or more, found " + x.to_string());
  DDim dims = x.dims();
  dims[x.rank() - 2] = rows.dim(0);
  dims[x.rank() - 1] = columns.dim(0);
  Tensor out(x.dtype(), dims, stream.memory());
  const Tensor from = x.is_contiguous() ? x : internal::row_major("gather_planes", x, stream);
  launch(
      TensorRefs<3>{&from, &rows, &columns}, TensorRefs<1>{&out},
      [from, rows, columns, out = out](ThreadTeam& team) { cpu::gather_planes(from, rows, columns, out, team); }, stream);
  return out;
}

Tensor gather_sum(const Tensor& x, const std::vector<GatherTerm>& terms, int axis, StreamRef stream) {
  constexpr const char* name = "gather_sum";
  const int at = internal::checked_axis(name, axis, x.dims());
  if (terms.empty()) throw ArgumentError(std::string(name) + ": expected at least one term");
  if (x.dtype() != DType::f64) internal::check_dtype(name, "x", x, DType::f32);
  std::vector<GatherTerm> made;
  std::int64_t count = 1;
  for (const GatherTerm& term : terms)
    for (const Tensor* const list : {&term.places, &term.weights})
      if (list->elements() != 1) count = list->elements();
  for (const GatherTerm& term : terms) {
    internal::check_device_places(name, stream, {&x, &term.places, &term.weights});
    internal::check_index_dtype(name, term.places);
    internal::check_same_dtype(name, x, term.weights);
    const auto fits = [count](const Tensor& list) { return list.elements() == count || list.elements() == 1; };
    if (term.places.rank() != 1 || !fits(term.places) || !fits(term.weights))
      throw ShapeError(std::string(name) + ": expected " + std::to_string(count) +
                       " places along one axis and as many weights, or one, found " + term.places.to_string() + " and " +
                       term.weights.to_string());
    made.push_back({term.places, term.weights.is_contiguous() ? term.weights : internal::row_major(name, term.weights, stream)});
  }
  internal::check_host(name, stream, x);
  DDim dims = x.dims();
  dims[at] = count;
  const Tensor out(x.dtype(), dims, stream.memory());
  const Tensor from = x.is_contiguous() ? x : internal::row_major(name, x, stream);
  for (const GatherTerm& term : made) detail::order(TensorRefs<2>{&term.places, &term.weights}, TensorRefs<0>{}, stream);
  launch(
      TensorRefs<1>{&from}, TensorRefs<1>{&out}, [from, made, at, out](ThreadTeam& team) { cpu::gather_sum(from, made, at, out, team); },
      stream);
  return out;
}

Tensor gather_elements(const Tensor& x, const Tensor& index, int axis, StreamRef stream) {
  const int at = internal::checked_axis("gather_elements", axis, x.dims());
  internal::check_index_dtype("gather_elements", index);
  bool fits = index.rank() == x.rank();
  for (int i = 0; fits && i < x.rank(); ++i) fits = i == at || index.dim(i) <= x.dim(i);
  if (!fits)
    throw ShapeError("gather_elements: expected indices of the rank and within the extents of " + x.dims().to_string() + ", found " +
                     index.dims().to_string());
  Tensor out(x.dtype(), index.dims(), stream.memory());
  internal::check_device_places("gather_elements", stream, {&x, &index, &out});
  launch(
      TensorRefs<2>{&x, &index}, TensorRefs<1>{&out}, [=](KernelContext& context) { element_gathers.run(x, index, at, out, context); },
      stream);
  return out;
}

namespace {

/// Checks two sides that move rows of axis 0: `planned` has one row for each entry of the plan, `other` is what it
/// points into.
void check_rows(const char* op, const Tensor& planned, const Tensor& other, std::int64_t entries) {
  internal::check_same_dtype(op, planned, other);
  if (planned.rank() == 0 || other.rank() == 0 || planned.dims().erased(0) != other.dims().erased(0) || planned.dim(0) != entries)
    throw ShapeError(std::string(op) + ": expected equal rows, one for each of " + std::to_string(entries) +
                     " entries of the plan, found " + planned.dims().to_string() + " and " + other.dims().to_string());
}

std::int64_t entries_of(const char* op, const Tensor& index) {
  internal::check_index_dtype(op, index);
  if (index.rank() != 1) throw ShapeError(std::string(op) + ": expected a plan of one axis, found " + index.to_string());
  return index.dim(0);
}

Tensor rows_like(const Tensor& x, std::int64_t rows, StreamRef stream) {
  if (x.rank() == 0) throw ShapeError("gather_rows: expected rows, found " + x.to_string());
  DDim dims = x.dims();
  dims[0] = rows;
  return Tensor(x.dtype(), dims, stream.memory());
}

constexpr internal::Implementations<const Tensor&, const std::vector<std::int64_t>&, const Tensor&> row_gathers{
    "gather_rows", {{"cuda", cuda::gather_rows}}, cpu::gather_rows};
constexpr internal::Implementations<const Tensor&, const std::vector<std::int64_t>&, const Tensor&> row_scatters{
    "scatter_rows", {{"cuda", cuda::scatter_rows}}, cpu::scatter_rows};
constexpr internal::Implementations<const Tensor&, const std::vector<std::int64_t>&, const Tensor&, const Tensor&> row_gathers_or{
    "gather_rows", {{"cuda", cuda::gather_rows_or}}, cpu::gather_rows_or};
// A plan that is a tensor is known inside the launch alone.
constexpr internal::Implementations<const Tensor&, const Tensor&, const Tensor&> planned_gathers{
    "gather_rows", {{"cuda", cuda::gather_rows}}, [](const Tensor& x, const Tensor& index, const Tensor& out, ThreadTeam& team) {
      const std::vector<std::int64_t> plan = cpu::index_values(index);
      cpu::check_row_index("gather_rows", plan, x.dims());
      cpu::gather_rows(x, plan, out, team);
    }};
constexpr internal::Implementations<const Tensor&, const Tensor&, const Tensor&> planned_scatters{
    "scatter_rows", {{"cuda", cuda::scatter_rows}}, [](const Tensor& x, const Tensor& index, const Tensor& out, ThreadTeam& team) {
      const std::vector<std::int64_t> plan = cpu::index_values(index);
      cpu::check_row_index("scatter_rows", plan, out.dims());
      cpu::scatter_rows(x, plan, out, team);
    }};

}  // namespace

void gather_rows(const Tensor& x, const std::vector<std::int64_t>& index, Tensor& out, StreamRef stream) {
  internal::check_device_places("gather_rows", stream, {&x, &out});
  check_rows("gather_rows", out, x, static_cast<std::int64_t>(index.size()));
  cpu::check_row_index("gather_rows", index, x.dims());
  launch(TensorRefs<1>{&x}, TensorRefs<1>{&out}, [=](KernelContext& context) { row_gathers.run(x, index, out, context); }, stream);
}

void gather_rows(const Tensor& x, const Tensor& index, Tensor& out, StreamRef stream) {
  internal::check_device_places("gather_rows", stream, {&x, &index, &out});
  check_rows("gather_rows", out, x, entries_of("gather_rows", index));
  launch(
      TensorRefs<2>{&x, &index}, TensorRefs<1>{&out}, [=](KernelContext& context) { planned_gathers.run(x, index, out, context); }, stream);
}

Tensor gather_rows(const Tensor& x, const std::vector<std::int64_t>& index, StreamRef stream) {
  Tensor out = rows_like(x, static_cast<std::int64_t>(index.size()), stream);
  gather_rows(x, index, out, stream);
  return out;
}

Tensor gather_rows(const Tensor& x, const Tensor& index, StreamRef stream) {
  Tensor out = rows_like(x, entries_of("gather_rows", index), stream);
  gather_rows(x, index, out, stream);
  return out;
}

void gather_rows_or(const Tensor& x, const std::vector<std::int64_t>& index, const Tensor& otherwise, Tensor& out, StreamRef stream) {
  internal::check_device_places("gather_rows", stream, {&x, &otherwise, &out});
  check_rows("gather_rows", out, x, static_cast<std::int64_t>(index.size()));
  internal::check_same_dtype("gather_rows", x, otherwise);
  const Tensor rest = broadcast_view(otherwise, x.dims().erased(0));
  cpu::check_row_index("gather_rows", index, x.dims());
  launch(
      TensorRefs<2>{&x, &otherwise}, TensorRefs<1>{&out}, [=](KernelContext& context) { row_gathers_or.run(x, index, rest, out, context); },
      stream);
}

Tensor gather_rows_or(const Tensor& x, const std::vector<std::int64_t>& index, const Tensor& otherwise, StreamRef stream) {
  Tensor out = rows_like(x, static_cast<std::int64_t>(index.size()), stream);
  gather_rows_or(x, index, otherwise, out, stream);
  return out;
}

void scatter_rows(const Tensor& x, const std::vector<std::int64_t>& index, Tensor& out, StreamRef stream) {
  internal::check_device_places("scatter_rows", stream, {&x, &out});
  check_rows("scatter_rows", x, out, static_cast<std::int64_t>(index.size()));
  cpu::check_row_index("scatter_rows", index, out.dims());
  launch(TensorRefs<1>{&x}, TensorRefs<1>{&out}, [=](KernelContext& context) { row_scatters.run(x, index, out, context); }, stream);
}

void scatter_rows(const Tensor& x, const Tensor& index, Tensor& out, StreamRef stream) {
  internal::check_device_places("scatter_rows", stream, {&x, &index, &out});
  check_rows("scatter_rows", x, out, entries_of("scatter_rows", index));
  launch(
      TensorRefs<2>{&x, &index}, TensorRefs<1>{&out}, [=](KernelContext& context) { planned_scatters.run(x, index, out, context); },
      stream);
}

}  // namespace millrace
