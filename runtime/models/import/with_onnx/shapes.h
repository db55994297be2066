// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <vector>

#include <millrace/runtime/models/import/with_onnx/importer.h>

namespace millrace::importing {

/// Whole numbers that rules compute with: i64 of no axes.
VarId number(Importer& to, std::int64_t value);
/// 0, 1, and so on below `n` (i64 of no axes).
VarId count_to(Importer& to, VarId n);
/// `x` as i64.
VarId whole_numbers(Importer& to, VarId x);
/// `x`, or its bytes as i32, which `top_k` takes.
VarId sortable(Importer& to, VarId x);
/// Extent of an axis as i64 of no axes: a literal where it is known. Negative axes count from the end. UnsupportedError where the rank is
/// not known, ProgramError where there is no such axis.
VarId extent_of(Importer& to, VarId x, int axis);
/// An axis counted from 0. ProgramError where there is none.
int axis_of(const std::string& what, std::int64_t axis, int rank);
/// The dtype that an attribute names by ONNX's number of an element type.
DType dtype_attribute(const Node& node, const std::string& name);

/// An extent that is known, or a value (i64 of no axes) that a run computes.
struct Extent {
  std::int64_t known = -1;
  VarId var = no_var;
};
Extent extent_at(Importer& to, VarId x, int axis);
/// An extent as i64 of no axes.
VarId value_of(Importer& to, const Extent& extent);
/// A number of no axes, or an extent, as a list of one (i64 for an extent).
VarId as_list(Importer& to, VarId number);
VarId as_list(Importer& to, const Extent& extent);
/// The extent of an axis of `x` as a number, or as the place that it comes from.
Element element_at(Importer& to, VarId x, int axis);
/// The list of these numbers and extents; `no_var` without any.
VarId list_of(Importer& to, const std::vector<Element>& elements);
Extent times(Importer& to, const Extent& a, const Extent& b);
/// Extent `axis` of `x` over a number that must divide it: ProgramError where it is known and does not. Of one that a run finds the rest is cut off,
/// so that a reshape to the result refuses it.
Extent divided(Importer& to, VarId x, int axis, std::int64_t by);
/// The product of the extents of axes [begin, end).
Extent product(Importer& to, VarId x, int begin, int end);
/// Heads beyond which an attribute is refused.
inline constexpr std::int64_t most_heads = 1 << 16;
/// [N, S, heads·D] with the heads apart: the axes N, S, heads, D in the order `perm`.
VarId with_heads(Importer& to, VarId x, std::int64_t heads, const std::vector<std::int64_t>& perm);
/// `x` with these extents: an attribute as far as they are known, else the shape is computed in the run. `exact`: a run computes all of them, and refuses
/// another number of elements, also where one open extent would follow from the others.
VarId reshaped(Importer& to, VarId x, const std::vector<Extent>& extents, bool exact = false);
/// `made`, whose extents are `list`: its type says those that are known.
VarId with_extents(Importer& to, VarId made, VarId list);

/// The windows of one axis: how many elements they take and where they lie. As Conv and the pools have it.
struct Window {
  std::int64_t kernel = 1;
  std::int64_t stride = 1;
  std::int64_t dilation = 1;
  std::int64_t before = 0;  ///< pads
  std::int64_t after = 0;
  bool ceiling = false;     ///< a last window may reach beyond the pads
  bool same_upper = false;  ///< pads as the extent wants them, the odd one behind
  bool same_lower = false;  ///< the odd one in front
  bool trivial() const noexcept { return kernel == 1 && stride == 1 && before == 0 && after == 0 && !same_upper && !same_lower; }
  std::int64_t span() const noexcept { return (kernel - 1) * dilation + 1; }
};

/// The windows of a node along each of `spatial` axes, from its attributes; `kernel`: extents that the weights say, or none. ParseError for
/// numbers that are no window's.
std::vector<Window> windows_of(const Node& node, int spatial, const Ints& kernel);

/// Settles pads that the extent decides: `window` has them where the extent is known, else the result is `x` with them.
VarId settled(Importer& to, VarId x, int axis, Window& window, double pad);

/// Place i of every window along `axis`, for each i: as many slices [.., windows, ..] as the kernel has places. Pads are `pad`; what a last window of
/// `ceiling` finds beyond them is `beyond`. Nothing for large kernels and for windows of `ceiling` that are not those of wider pads, which `unfold`
/// gathers.
std::vector<VarId> window_slices(Importer& to, VarId x, int axis, const Window& window, double pad, double beyond);

/// `x` with the elements of axis `axis` taken apart into windows: [.., L, ..] gives [.., windows, kernel, ..]. Pads are `pad`; what a last
/// window of `ceiling` finds beyond them is `beyond`.
VarId unfold(Importer& to, VarId x, int axis, const Window& window, double pad, double beyond);

/// `unfold` where a run may find the size and the stride of the windows. Elements of a window are `dilation` apart, and no window reaches beyond `x`.
VarId unfold_by(Importer& to, VarId x, int axis, const Extent& kernel, const Extent& stride, std::int64_t dilation = 1);
/// The number of such windows over `length` elements.
VarId windows_over(Importer& to, VarId length, VarId kernel, VarId stride, std::int64_t dilation);

/// The convolution of `x` [N, C, D1, …] with `w` [M, C/group, k1, …] and a bias [M] or `no_var`, as a Conv with the attributes of `node`.
/// `exact`: integers stay integers, which a sum in another form (kernels/winograd.h) does not keep.
VarId convolved(Importer& to, const Node& node, VarId x, VarId w, VarId bias, bool exact = false);
/// That convolution with these windows.
VarId convolved(Importer& to, VarId x, VarId w, VarId bias, std::int64_t group, const std::vector<Window>& windows);

/// The means of the windows of `x` [N, C, D1, …], as an AveragePool with the attributes of `node`.
VarId averaged(Importer& to, const Node& node, VarId x);

/// [N, D1, …, C] as [N, C, D1, …], and back.
VarId channels_first(Importer& to, VarId x);
VarId channels_last(Importer& to, VarId x);

/// `x` [N, C, D1, …] with its windows behind each other: [N, C, places1, …, elements of a window].
VarId window_elements(Importer& to, VarId x, const std::vector<Window>& windows, double pad);

}  // namespace millrace::importing
