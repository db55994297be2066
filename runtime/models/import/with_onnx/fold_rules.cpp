// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include <millrace/runtime/models/import/with_onnx/axes.h>
#include <millrace/runtime/models/import/with_onnx/formula.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>
#include <millrace/tensor/checked.h>

/// Elements of windows that go back to their places in an image.
namespace millrace::importing {
namespace {

/// An extent of `steps` strides with the ends of its windows: one whole kernel, without the pads.
Extent unpooled(Importer& to, const Extent& steps, const Window& window) {
  const std::int64_t more = window.kernel - window.stride - window.before - window.after;
  if (steps.known < 0) return {-1, to.emit1("add", {steps.var, number(to, more)})};
  if (steps.known + more < 0)
    throw ProgramError("expected pads of at most " +
                       std::to_string(std::max<std::int64_t>(steps.known + window.kernel - window.stride, 0)) +
                       " places along an axis, found " + std::to_string(window.before + window.after));
  return {steps.known + more, no_var};
}

VarId joined(Importer& to, const std::vector<VarId>& lists) { return to.emit1("concat", lists, {{"axis", std::int64_t{0}}}); }

/// `x`; a run fails where an extent of it is beyond that in the list `most`, since the reshape has fewer elements then.
VarId within(Importer& to, VarId x, VarId most) {
  const VarId least = to.emit1("minimum", {to.emit1("shape", {x}), most});
  return to.emit1("reshape_to", {x, least}, {{"allowzero", true}});
}

/// The places of a MaxUnpool, which are as many along each axis as the elements of `x`: none beyond `x` here, and the scatter refuses fewer.
VarId places_beside(Importer& to, const Node& node, VarId x) {
  const VarId places = whole_numbers(to, to.in(node, 1));
  const VarType &elements = to.type(x), &found = to.type(places);
  bool compared = true;
  for (int axis = 0; axis < elements.rank(); ++axis) {
    const std::int64_t expected = (*elements.shape)[axis];
    const std::int64_t extent = found.rank() == elements.rank() ? (*found.shape)[axis] : found.shape ? -2 : -1;
    compared = compared && expected >= 0 && extent >= 0;
    if (extent == -2 || (expected >= 0 && extent >= 0 && expected != extent))
      throw ProgramError("expected places of the extents of " + elements.to_string() + ", found " + found.to_string());
  }
  return compared ? places : within(to, places, to.emit1("shape", {x}));
}

/// `image` with zeros behind it up to the extents of input 2, which has N and C as they are.
VarId enlarged(Importer& to, const Node& node, VarId image, const std::vector<Extent>& extents) {
  const VarId size = list_input(to, node, 2);
  const auto rank = static_cast<std::int64_t>(extents.size());
  const std::int64_t count = (*to.type(size).shape)[0];
  if (count >= 0 && count != rank)
    throw ProgramError("output_shape: expected " + std::to_string(rank) + " extents, found " + std::to_string(count));
  if (const std::optional<Ints> known = to.known_integers(node, 2)) {
    for (std::size_t i = 0; i < extents.size(); ++i) {
      const std::int64_t least = extents[i].known, found = (*known)[i];
      if (least >= 0 && (found < least || (i < 2 && found > least)))
        throw ProgramError("output_shape: expected " + std::string(i < 2 ? "" : "at least ") + std::to_string(least) + " as extent " +
                           std::to_string(i) + ", found " + std::to_string(found));
    }
  }
  const VarId least = within(to, image, size);
  const VarId more = to.emit1("sub", {size, to.emit1("shape", {least})});
  const VarId behind = to.emit1("slice", {more}, {{"starts", Ints{2}}, {"ends", Ints{rank}}, {"axes", Ints{0}}, {"steps", Ints{1}}});
  const VarId pads = joined(to, {to.literal(Ints(static_cast<std::size_t>(rank) + 2, 0)), behind});
  const VarId made = to.emit1("pad_by", {least, pads}, {{"mode", std::string("constant")}});
  // N and C of another size have other elements: the reshape refuses them.
  return to.emit1("reshape_to", {made, size}, {{"allowzero", true}});
}

/// N, C, and the extents of input 2 behind them. Another N or C is refused where the result takes its extents.
VarId image_of(Importer& to, const Node& node, const std::vector<Extent>& extents) {
  const VarId size = list_input(to, node, 2);
  const Ints rank{static_cast<std::int64_t>(extents.size())};
  const VarId behind = to.emit1("slice", {size}, {{"starts", Ints{2}}, {"ends", rank}, {"axes", Ints{0}}, {"steps", Ints{1}}});
  return joined(to, {as_list(to, extents[0]), as_list(to, extents[1]), behind});
}

/// The elements that a MaxPool took, at the places that it gave, which count through the whole of its input; the rest is 0. Places that the graph makes count
/// through output_shape, the image that a MaxPool of the graph had, as ONNX Runtime and PyTorch have it; those that are fed or known count through the image
/// that the windows say, and a larger output_shape adds zeros behind, as the node tests have it.
void max_unpool(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const int rank = to.rank(x);
  if (rank < 3) throw ProgramError("expected [N, C, D1, …], found " + to.type(x).to_string());
  const std::vector<Window> windows = windows_of(node, rank - 2, Ints(static_cast<std::size_t>(rank - 2), -1));
  std::vector<Extent> extents{extent_at(to, x, 0), extent_at(to, x, 1)};
  for (std::size_t i = 0; i < windows.size(); ++i) {
    const Window& window = windows[i];
    const Extent steps = times(to, extent_at(to, x, static_cast<int>(i) + 2), {window.stride, no_var});
    extents.push_back(unpooled(to, steps, window));
  }
  const Formula f(to, to.type(x).dtype);
  const VarId places = f.reshaped(places_beside(to, node, x), {-1});
  const auto scattered = [&](VarId count) {
    const VarId zeros = to.emit1("expand", {f.number(0), count});
    return to.emit1("scatter_elements", {zeros, places, f.reshaped(x, {-1})},
                    {{"axis", std::int64_t{0}}, {"reduction", std::string("none")}});
  };
  if (node.has(2) && to.maker(to.in(node, 1)) != nullptr && to.maker(to.in(node, 1))->type != "constant") {
    const VarId image = image_of(to, node, extents);
    const VarId count = to.emit1("reduce", {image}, {{"kind", std::string("prod")}, {"axes", Ints{0}}, {"keepdims", true}});
    return to.give(node, "reshape_to", {scattered(count), list_input(to, node, 2)}, {{"allowzero", true}});
  }
  Extent count{1, no_var};
  for (const Extent& extent : extents) count = times(to, count, extent);
  const VarId image = reshaped(to, scattered(as_list(to, count)), extents);
  to.give(node, "identity", {node.has(2) ? enlarged(to, node, image, extents) : image});
}

/// Col2Im where a run finds the extents of the image or of a block.
void col2im_in_run(Importer& to, const Node& node, VarId x) {
  const VarId image = list_input(to, node, 1), block = list_input(to, node, 2);
  const std::int64_t count = (*to.type(image).shape)[0], sizes = (*to.type(block).shape)[0];
  if (count < 0) throw UnsupportedError("input image_shape: expected a list of a known length, found " + to.type(image).to_string());
  if (count < 1 || count + 2 > max_rank || (sizes >= 0 && sizes != count))
    throw ProgramError("expected as many extents of the image as of a block, found " + to.type(image).to_string() + " and " +
                       to.type(block).to_string());
  const auto spatial = static_cast<std::size_t>(count);
  const std::vector<Window> windows = windows_of(node, static_cast<int>(count), Ints(spatial, 1));
  const auto op = [&](const char* name, VarId a, VarId b) { return to.emit1(name, {a, b}); };
  const auto at = [&](VarId list, std::size_t i) {
    return to.emit1("gather", {list, number(to, static_cast<std::int64_t>(i))}, {{"axis", std::int64_t{0}}});
  };
  VarId places = number(to, 0), elements = number(to, 1), windows_of_all = number(to, 1), row = number(to, 1);
  std::vector<VarId> padded(spatial), starts, ends;
  for (std::size_t i = spatial; i-- > 0;) {
    const Window& window = windows[i];
    const VarId kernel = at(block, i);
    padded[i] = op("add", at(image, i), number(to, window.before + window.after));
    const VarId steps = windows_over(to, padded[i], kernel, number(to, window.stride), window.dilation);
    const auto term = [&](VarId length, std::int64_t step, std::size_t axis) {
      Ints shape(2 * spatial, 1);
      shape[axis] = -1;
      const VarId counted = op("mul", count_to(to, length), op("mul", number(to, step), row));
      places = op("add", places, to.emit1("reshape", {counted}, {{"shape", shape}}));
    };
    term(kernel, window.dilation, i);
    term(steps, window.stride, spatial + i);
    elements = op("mul", elements, kernel);
    windows_of_all = op("mul", windows_of_all, steps);
    row = op("mul", row, padded[i]);
  }
  const Formula f(to, to.type(x).dtype);
  const Extent n = extent_at(to, x, 0), all = extent_at(to, x, 1);
  const VarId channels = op("div", value_of(to, all), elements);
  const auto listed = [&](const std::vector<VarId>& each) {
    std::vector<VarId> lists;
    for (const VarId one : each) lists.push_back(as_list(to, one));
    return joined(to, lists);
  };
  const auto shaped = [&](VarId from, const std::vector<VarId>& extents) {
    return to.emit1("reshape_to", {from, listed(extents)}, {{"allowzero", true}});
  };
  // A reshape refuses another number of places than windows, and one more channels that the elements of a block do not divide.
  const VarId columns = shaped(x, {value_of(to, n), value_of(to, all), windows_of_all});
  const VarId updates = shaped(columns, {value_of(to, n), channels, op("mul", elements, windows_of_all)});
  const VarId flat = to.emit1("expand", {f.reshaped(places, {1, 1, -1}), to.emit1("shape", {updates})});
  const VarId zeros = to.emit1("expand", {f.number(0), listed({value_of(to, n), channels, row})});
  const VarId sums = to.emit1("scatter_elements", {zeros, flat, updates}, {{"axis", std::int64_t{2}}, {"reduction", std::string("add")}});
  std::vector<Extent> extents{n, {-1, channels}};
  Ints axes;
  for (std::size_t i = 0; i < spatial; ++i) {
    extents.push_back({-1, padded[i]});
    starts.push_back(number(to, windows[i].before));
    ends.push_back(op("add", at(image, i), starts.back()));
    axes.push_back(static_cast<std::int64_t>(i) + 2);
  }
  to.give(node, "slice_by", {reshaped(to, sums, extents), listed(starts), listed(ends), to.literal(axes)});
}

/// The sums of the windows [N, C·k1·…, places] of an image, where they overlap, as PyTorch's Fold has them.
void col2im(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  if (to.rank(x) != 3) throw ProgramError("expected [N, C, places], found " + to.type(x).to_string());
  if (!to.known_integers(node, 1) || !to.known_integers(node, 2)) return col2im_in_run(to, node, x);
  const Ints image = to.needed_integers(node, 1, {}), block = to.needed_integers(node, 2, {});
  const std::size_t spatial = image.size();
  if (spatial < 1 || spatial + 2 > max_rank || block.size() != spatial)
    throw ProgramError("expected as many extents of the image as of a block, found " + std::to_string(spatial) + " and " +
                       std::to_string(block.size()));
  const std::vector<Window> windows = windows_of(node, static_cast<int>(spatial), block);
  // The place of each element of a window in the padded image, which is a row: one term for each axis, broadcast.
  std::int64_t elements = 1, windows_of_all = 1, row = 1;
  VarId places = number(to, 0);
  Ints padded(spatial);
  for (std::size_t i = spatial; i-- > 0;) {
    const Window& window = windows[i];
    padded[i] = checked_add(checked_add(image[i], window.before), window.after);
    if (image[i] < 1) throw ProgramError("expected extents of the image from 1 on, found " + std::to_string(image[i]));
    if (padded[i] < window.span())
      throw ProgramError("expected an image that holds a block, of " + std::to_string(window.span()) + " places along axis " +
                         std::to_string(i) + " of it, found " + std::to_string(padded[i]) + " with pads");
    const std::int64_t count = (padded[i] - window.span()) / window.stride + 1;
    const auto term = [&](std::int64_t length, std::int64_t step, std::size_t axis) {
      Ints shape(2 * spatial, 1);
      shape[axis] = -1;
      const VarId counted = to.emit1("mul", {count_to(to, number(to, length)), number(to, checked_mul(step, row))});
      places = to.emit1("add", {places, to.emit1("reshape", {counted}, {{"shape", shape}})});
    };
    term(window.kernel, window.dilation, i);
    term(count, window.stride, spatial + i);
    elements = checked_mul(elements, window.kernel);
    windows_of_all = checked_mul(windows_of_all, count);
    row = checked_mul(row, padded[i]);
  }
  const Formula f(to, to.type(x).dtype);
  const Extent n = extent_at(to, x, 0), channels = divided(to, x, 1, elements);
  const VarId leading = joined(to, {as_list(to, n), as_list(to, channels)});
  const std::int64_t found = (*to.type(x).shape)[2];
  if (found >= 0 && found != windows_of_all)
    throw ProgramError("expected [N, C, " + std::to_string(windows_of_all) + "], a place for each window of the image, found " +
                       to.type(x).to_string());
  const VarId columns = found < 0 ? f.reshaped(x, {0, 0, windows_of_all}) : x;  // another number of a run fails
  const VarId all = joined(to, {leading, to.literal(Ints{checked_mul(elements, windows_of_all)})});
  const VarId updates = to.emit1("reshape_to", {columns, all}, {{"allowzero", true}});
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
