// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/models/import/with_onnx/axes.h>
#include <millrace/runtime/models/import/with_onnx/formula.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>
#include <millrace/tensor/checked.h>

/// Elements of windows that go back to their places in an image.
namespace millrace::importing {
namespace {

/// [extent], i64.
VarId one_of_list(Importer& to, const Extent& extent) {
  return extent.known >= 0 ? to.literal(Ints{extent.known}) : to.emit1("reshape", {extent.var}, {{"shape", Ints{1}}});
}

Extent plus(Importer& to, const Extent& extent, std::int64_t more) {
  if (extent.known < 0) return {-1, to.emit1("add", {extent.var, number(to, more)})};
  if (extent.known + more < 0)
    throw ProgramError("expected pads below the extents, found " + std::to_string(extent.known + more) + " places");
  return {extent.known + more, no_var};
}

VarId joined(Importer& to, const std::vector<VarId>& lists) { return to.emit1("concat", lists, {{"axis", std::int64_t{0}}}); }

/// What a MaxPool took, at the places that it gave, which count through the whole of its input; the rest is 0. A larger output_shape adds zeros behind.
void max_unpool(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const int rank = to.rank(x);
  if (rank < 3) throw ProgramError("expected [N, C, D1, …], found " + to.type(x).to_string());
  const std::vector<Window> windows = windows_of(node, rank - 2, Ints(static_cast<std::size_t>(rank - 2), -1));
  std::vector<Extent> extents{extent_at(to, x, 0), extent_at(to, x, 1)};
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const Window& window = windows[i];
    const Extent steps = times(to, extent_at(to, x, static_cast<int>(i) + 2), {window.stride, no_var});
    extents.push_back(plus(to, steps, window.kernel - window.stride - window.before - window.after));
  }
  Extent count{1, no_var};
  for (const Extent& extent : extents) count = times(to, count, extent);
  const Formula f(to, to.type(x).dtype);
  const VarId zeros = to.emit1("expand", {f.number(0), one_of_list(to, count)});
  const VarId places = f.reshaped(whole_numbers(to, to.in(node, 1)), {-1});
  const VarId made =
      to.emit1("scatter_elements", {zeros, places, f.reshaped(x, {-1})}, {{"axis", std::int64_t{0}}, {"reduction", std::string("none")}});
  const VarId image = reshaped(to, made, extents);
  if (!node.has(2)) return to.give(node, "identity", {image});
  const VarId behind = to.emit1("sub", {list_input(to, node, 2), to.emit1("shape", {image})});
  const VarId pads = joined(to, {to.literal(Ints(static_cast<std::size_t>(rank), 0)), behind});
  to.give(node, "pad_by", {image, pads}, {{"mode", std::string("constant")}});
}

/// The sums of the windows [N, C·k1·…, places] of an image, where they overlap: what takes an Unfold back.
void col2im(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  if (to.rank(x) != 3) throw ProgramError("expected [N, C, places], found " + to.type(x).to_string());
  const Ints image = to.needed_integers(node, 1, {}), block = to.needed_integers(node, 2, {});
  const std::size_t spatial = image.size();
  if (spatial < 1 || spatial + 2 > max_rank || block.size() != spatial)
    throw ProgramError("expected as many extents of the image as of a block, found " + std::to_string(spatial) + " and " +
                       std::to_string(block.size()));
  const std::vector<Window> windows = windows_of(node, static_cast<int>(spatial), block);
  // The place of each element of a window in the padded image, which is a row: one term for each axis, broadcast.
  std::int64_t elements = 1, row = 1;
  VarId places = number(to, 0);
  Ints padded(spatial);
  for (std::size_t i = spatial; i-- > 0;) {
    const Window& window = windows[i];
    padded[i] = checked_add(checked_add(image[i], window.before), window.after);
    const std::int64_t count = image[i] < 1 ? 0 : (padded[i] - window.span()) / window.stride + 1;
    if (padded[i] < window.span() || count < 1)
      throw ProgramError("expected an image of at least a block along each axis, found " + std::to_string(image[i]));
    const auto term = [&](std::int64_t length, std::int64_t step, std::size_t axis) {
      Ints shape(2 * spatial, 1);
      shape[axis] = -1;
      const VarId counted = to.emit1("mul", {count_to(to, number(to, length)), number(to, checked_mul(step, row))});
      places = to.emit1("add", {places, to.emit1("reshape", {counted}, {{"shape", shape}})});
    };
    term(window.kernel, window.dilation, i);
    term(count, window.stride, spatial + i);
    elements = checked_mul(elements, window.kernel);
    row = checked_mul(row, padded[i]);
  }
  const Formula f(to, to.type(x).dtype);
  const Extent n = extent_at(to, x, 0), channels = divided(to, x, 1, elements);
  const VarId leading = joined(to, {one_of_list(to, n), one_of_list(to, channels)});
  const VarId all = joined(to, {leading, to.literal(Ints{-1})});
  const VarId updates = to.emit1("reshape_to", {x, all}, {{"allowzero", false}});
  const VarId flat = to.emit1("expand", {f.reshaped(places, {1, 1, -1}), to.emit1("shape", {updates})});
  const VarId zeros = to.emit1("expand", {f.number(0), joined(to, {leading, to.literal(Ints{row})})});
  const VarId sums = to.emit1("scatter_elements", {zeros, flat, updates}, {{"axis", std::int64_t{2}}, {"reduction", std::string("add")}});
  std::vector<Extent> extents{n, channels};
  Ints starts, ends, axes;
  for (std::size_t i = 0; i < spatial; ++i) {
    extents.push_back({padded[i], no_var});
    starts.push_back(windows[i].before);
    ends.push_back(windows[i].before + image[i]);
    axes.push_back(static_cast<std::int64_t>(i) + 2);
  }
  to.give(node, "slice", {reshaped(to, sums, extents)}, {{"starts", starts}, {"ends", ends}, {"axes", axes}, {"steps", Ints(spatial, 1)}});
}

constexpr Rule fold_table[] = {
    {"MaxUnpool", max_unpool},
    {"Col2Im", col2im},
};

}  // namespace

std::span<const Rule> fold_rules() { return fold_table; }

}  // namespace millrace::importing
