// SPDX-License-Identifier: Apache-2.0
// x[…] of a Var, as NumPy and PyTorch have it: numbers, slices, `...` and None; a Var or an array picks along the first axis.
#include <limits>

#include <fmt/format.h>

#include <millrace/runtime/builder/ops.h>

#include "build.h"

namespace millrace::python {
namespace {

constexpr std::int64_t most = std::numeric_limits<std::int64_t>::max();

/// The effect of an index on the axes of a Var.
struct Cuts {
  std::vector<std::int64_t> starts, ends, axes, steps;
  std::vector<std::int64_t> squeezed;    ///< axes of the Var that go
  std::vector<std::int64_t> unsqueezed;  ///< axes of the result that come
};

std::int64_t bound(nb::handle x, std::int64_t otherwise) {
  if (x.is_none()) return otherwise;
  if (PyIndex_Check(x.ptr()) == 0)
    throw ArgumentError("builder: expected numbers that are known now as the bounds of a slice; mr.call('slice_by', …) takes others");
  return index_from(x);
}

void add_slice(Cuts& cuts, std::int64_t axis, nb::handle slice) {
  const std::int64_t step = bound(slice.attr("step"), 1);
  if (step == 0) throw ArgumentError("builder: expected a slice with a step other than 0");
  const std::int64_t start = bound(slice.attr("start"), step > 0 ? 0 : most);
  const std::int64_t end = bound(slice.attr("stop"), step > 0 ? most : std::numeric_limits<std::int64_t>::min());
  if (start == 0 && end == most && step == 1) return;
  cuts.starts.push_back(start);
  cuts.ends.push_back(end);
  cuts.axes.push_back(axis);
  cuts.steps.push_back(step);
}

void add_number(Cuts& cuts, const Var& x, std::int64_t axis, std::int64_t index) {
  const std::int64_t extent = x.type().shape ? (*x.type().shape)[static_cast<int>(axis)] : DDim::unknown;
  if (extent != DDim::unknown && (index < -extent || index >= extent))
    throw IndexError(fmt::format("builder: expected an index in [{}, {}) of axis {} of '{}' of {}, found {}", -extent, extent, axis,
                                 x.name(), x.type().to_string(), index));
  cuts.starts.push_back(index);
  cuts.ends.push_back(index == -1 ? most : index + 1);
  cuts.axes.push_back(axis);
  cuts.steps.push_back(1);
  cuts.squeezed.push_back(axis);
}

Cuts cuts_of(const Var& x, const nb::tuple& index) {
  std::int64_t named = 0;
  for (const nb::handle one : index) named += one.is_none() || one.ptr() == Py_Ellipsis ? 0 : 1;
  if (x.type().shape && named > x.type().rank())
    throw ShapeError(fmt::format("builder: expected at most {} indices of '{}' of {}, found {}", x.type().rank(), x.name(),
                                 x.type().to_string(), named));
  Cuts cuts;
  std::int64_t axis = 0, made = 0;
  bool open = false;
  for (const nb::handle one : index) {
    if (one.ptr() == Py_Ellipsis) {
      if (open || !x.type().shape) throw ArgumentError("builder: expected one '...', of a Var of known rank");
      open = true;
      const std::int64_t skipped = x.type().rank() - named;
      axis += skipped;
      made += skipped;
    } else if (one.is_none()) {
      cuts.unsqueezed.push_back(made++);
    } else if (PySlice_Check(one.ptr()) != 0) {
      add_slice(cuts, axis++, one);
      ++made;
    } else if (PyIndex_Check(one.ptr()) != 0 && PyBool_Check(one.ptr()) == 0 && !is_array_of_indices(one)) {
      add_number(cuts, x, axis++, bound(one, 0));
    } else {
      throw ArgumentError(
          fmt::format("builder: expected numbers, slices, '...' and None as indices, found a {}: mr.gather picks by a Var", kind_of(one)));
    }
  }
  return cuts;
}

Var at(const Var& x, nb::handle index) {
  const bool alone = PyTuple_Check(index.ptr()) == 0;
  if (alone &&
      (nb::isinstance<Var>(index) || nb::isinstance<Tensor>(index) || PyList_Check(index.ptr()) != 0 || is_array_of_indices(index)))
    return build::gather(x, var_from(index), 0);
  const Cuts cuts = cuts_of(x, alone ? nb::make_tuple(index) : nb::borrow<nb::tuple>(index));
  Var made = x;
  if (!cuts.axes.empty()) {
    Attributes attributes;
    attributes.set("starts", cuts.starts);
    attributes.set("ends", cuts.ends);
    attributes.set("axes", cuts.axes);
    attributes.set("steps", cuts.steps);
    made = build::call("slice", {x}, attributes, {}).at(0);
  }
  if (!cuts.squeezed.empty()) made = build::squeeze(made, cuts.squeezed);
  if (!cuts.unsqueezed.empty()) made = build::unsqueeze(made, cuts.unsqueezed);
  return made;
}

}  // namespace

void bind_indexing(nb::module_& m) {
  const nb::object held = m.attr("Var");
  auto var = nb::borrow<nb::class_<Var>>(held);
  var.def("__getitem__", &at, "index"_a.none(), nb::sig("def __getitem__(self, index: typing.Any) -> Var"),
          "Numbers, slices, `...` and None, as of an array; a Var or a list of numbers picks along the first axis.");
}

}  // namespace millrace::python
