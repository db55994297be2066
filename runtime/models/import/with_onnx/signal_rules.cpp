// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <numbers>

#include <millrace/runtime/models/import/with_onnx/formula.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>
#include <millrace/runtime/models/import/with_onnx/shapes.h>

/// The front ends of speech models: windows, Fourier transforms as products with their bases, mel filters.
namespace millrace::importing {
namespace {

VarId as_number(Importer& to, VarId x) { return to.emit1("reshape", {whole_numbers(to, x)}, {{"shape", Ints{}}}); }

// ---- windows

/// a − b·cos(2πn / N) + c·cos(4πn / N)
void window(Importer& to, const Node& node, double a, double b, double c) {
  const Formula f(to, DType::f64);
  const VarId size = as_number(to, to.in(node, 0));
  const VarId period = node.flag("periodic", true) ? size : to.emit1("sub", {size, number(to, 1)});
  const VarId angle = f.times(f.over(f.taken(count_to(to, size)), f.taken(period)), 2 * std::numbers::pi);
  VarId made = f.minus(f.number(a), f.times(f.op("cos", angle), b));
  if (c != 0) made = f.plus(made, f.times(f.op("cos", f.times(angle, 2.0)), c));
  if (const std::optional<Ints> known = to.known_integers(node, 0); known && known->size() == 1) made = f.reshaped(made, *known);
  const DType dtype = node.has_attribute("output_datatype") ? dtype_attribute(node, "output_datatype") : DType::f32;
  to.give(node, "cast", {made}, {{"to", dtype}});
}

void hann(Importer& to, const Node& node, const char*) { window(to, node, 0.5, 0.5, 0); }
void hamming(Importer& to, const Node& node, const char*) { window(to, node, 25.0 / 46, 21.0 / 46, 0); }
void blackman(Importer& to, const Node& node, const char*) { window(to, node, 0.42, 0.5, 0.08); }

// ---- Fourier transforms

/// A basis has its square.
constexpr std::int64_t longest_transform = 4096;

/// [.., L] of real numbers and, where there are any, imaginary ones.
struct Signal {
  VarId real;
  VarId imaginary = no_var;
};

/// Turns `length` numbers into `results` sums with the angles 2π·(i·k mod period) / period.
struct Bases {
  VarId cosine;
  VarId sine;
};

Bases bases(Importer& to, VarId length, VarId results, VarId period, DType dtype) {
  const Formula f(to, DType::f64);
  const VarId i = to.emit1("unsqueeze", {count_to(to, length)}, {{"axes", Ints{1}}});
  const VarId iterations = to.emit1("mod", {to.emit1("mul", {i, count_to(to, results)}), period});
  const VarId angle = f.times(f.over(f.taken(iterations), f.taken(period)), 2 * std::numbers::pi);
  return {f.cast(f.op("cos", angle), dtype), f.cast(f.op("sin", angle), dtype)};
}

/// Σ x·e^(∓i·angle)
Signal transformed(const Formula& f, const Signal& x, const Bases& by, bool inverse) {
  const auto product = [&](VarId a, VarId b) { return f.op("matmul", a, b); };
  const VarId real = product(x.real, by.cosine), turned = product(x.real, by.sine);
  if (x.imaginary == no_var) return {real, inverse ? turned : f.op("neg", turned)};
  const VarId across = product(x.imaginary, by.sine), along = product(x.imaginary, by.cosine);
  return {f.op(inverse ? "sub" : "add", real, across), f.op(inverse ? "add" : "sub", along, turned)};
}

/// `axis` of the numbers moved to the end, or back from there; `behind` more axes stay where they are.
VarId moved(Importer& to, VarId x, int axis, bool back, int behind) {
  const int last = to.rank(x) - 1 - behind;
  Ints perm;
  for (int i = 0; i <= last; ++i) {
    if (back)
      perm.push_back(i < axis ? i : i == axis ? last : i - 1);
    else
      perm.push_back(i < axis ? i : i == last ? axis : i + 1);
  }
  for (int i = 0; i < behind; ++i) perm.push_back(last + 1 + i);
  return axis == last ? x : to.emit1("transpose", {x}, {{"perm", perm}});
}

/// The parts of x [.., 1 or 2], with `axis` at the end.
Signal signal_of(Importer& to, VarId x, int axis) {
  const std::int64_t parts = (*to.type(x).shape)[to.rank(x) - 1];
  if (parts != 1 && parts != 2) throw UnsupportedError("expected a last axis of 1 or 2 numbers, found " + to.type(x).to_string());
  if (parts == 1) return {moved(to, to.squeezed(x, {-1}), axis, false, 0), no_var};
  const auto part = [&](std::int64_t which) {
    return moved(to, to.emit1("gather", {x, number(to, which)}, {{"axis", std::int64_t{-1}}}), axis, false, 0);
  };
  return {part(0), part(1)};
}

/// `x` with `length` numbers along `axis`: cut, or zeros behind.
VarId of_length(Importer& to, VarId x, int axis, const Extent& length) {
  const int rank = to.rank(x);
  const std::int64_t found = (*to.type(x).shape)[axis];
  if (found >= 0 && length.known >= 0) {
    if (found > length.known) return to.emit1("slice", {x}, {{"starts", Ints{0}}, {"ends", Ints{length.known}}, {"axes", Ints{axis}}});
    if (found == length.known) return x;
    Ints pads(2 * static_cast<std::size_t>(rank), 0);
    pads[static_cast<std::size_t>(axis + rank)] = length.known - found;
    return to.emit1("pad", {x}, {{"pads", pads}, {"mode", std::string("constant")}});
  }
  const VarId wanted = length.known >= 0 ? number(to, length.known) : length.var;
  const VarId lack = to.emit1("maximum", {to.emit1("sub", {wanted, extent_of(to, x, axis)}), number(to, 0)});
  std::vector<VarId> pads(2 * static_cast<std::size_t>(rank), to.literal(Ints{0}));
  pads[static_cast<std::size_t>(axis + rank)] = as_list(to, lack);
  DDim shape = *to.type(x).shape;
  const VarId padded = to.emit1("pad_by", {x, to.emit1("concat", pads, {{"axis", std::int64_t{0}}})}, {{"mode", std::string("constant")}});
  const VarId made = to.emit1("slice_by", {padded, to.literal(Ints{0}), as_list(to, wanted), to.literal(Ints{axis})});
  Ints told;
  for (int i = 0; i < rank; ++i) told.push_back(i == axis ? std::max<std::int64_t>(0, length.known) : std::max<std::int64_t>(0, shape[i]));
  return to.emit1("reshape", {made}, {{"shape", told}});  // 0 copies an extent that a run computes
}

struct Transform {
  int axis;
  bool inverse = false;
  bool onesided = false;
  Extent length = {};  ///< of the numbers that are transformed, where the node says it
  bool has_length() const noexcept { return length.known >= 0 || length.var != no_var; }
};

/// Half of a spectrum, and the other half is its mirror: numbers but the first and the middle one count twice.
VarId mirrored(Importer& to, const Signal& x, VarId n, DType dtype, VarId given) {
  const Formula f(to, dtype);
  const VarId k = count_to(to, given);
  const VarId middle = to.emit1("equal", {to.emit1("mul", {k, number(to, 2)}), n});
  const VarId alone = to.emit1("logical_or", {to.emit1("equal", {k, number(to, 0)}), middle});
  const VarId weight = f.where(alone, f.number(1), f.number(2));
  const Signal weighted{f.times(x.real, weight), x.imaginary == no_var ? no_var : f.times(x.imaginary, weight)};
  return f.over(transformed(f, weighted, bases(to, given, n, n, dtype), true).real, f.taken(n));
}

VarId fourier(Importer& to, VarId x, const Transform& how) {
  const DType dtype = to.type(x).dtype;
  const Formula f(to, dtype);
  const bool mirror = how.inverse && how.onesided;
  const auto half_of = [&](const Extent& all) -> Extent {
    if (all.known >= 0) return {all.known / 2 + 1, no_var};
    return {-1, to.emit1("add", {to.emit1("div", {all.var, number(to, 2)}), number(to, 1)})};
  };
  if (how.has_length()) x = of_length(to, x, how.axis, mirror ? half_of(how.length) : how.length);
  const Signal signal = signal_of(to, x, how.axis);
  if ((*to.type(x).shape)[how.axis] > longest_transform)
    throw UnsupportedError("expected a transform of at most " + std::to_string(longest_transform) + " numbers, found " +
                           to.type(x).to_string());
  const VarId given = extent_of(to, x, how.axis);
  const auto joined = [&](const std::vector<VarId>& parts) {
    std::vector<VarId> each;
    for (const VarId part : parts) each.push_back(f.unsqueezed(part, {-1}));
    const VarId all = each.size() == 1 ? each[0] : to.emit1("concat", each, {{"axis", std::int64_t{-1}}});
    return moved(to, all, how.axis, true, 1);
  };
  if (mirror) {
    const VarId even = to.emit1("mul", {to.emit1("sub", {given, number(to, 1)}), number(to, 2)});
    const VarId all = how.length.known >= 0 ? number(to, how.length.known) : how.has_length() ? how.length.var : even;
    return joined({mirrored(to, signal, all, dtype, given)});
  }
  const VarId half = to.emit1("add", {to.emit1("div", {given, number(to, 2)}), number(to, 1)});
  Signal made = transformed(f, signal, bases(to, given, how.onesided ? half : given, given, dtype), how.inverse);
  if (how.inverse) made = {f.over(made.real, f.taken(given)), f.over(made.imaginary, f.taken(given))};
  return joined({made.real, made.imaginary});
}

std::optional<std::int64_t> length_input(Importer& to, const Node& node, std::size_t input, const char* name) {
  if (!node.has(input)) return std::nullopt;
  const Ints known = to.needed_integers(node, input, {});
  if (known.size() != 1 || known[0] < 1 || known[0] > 1 << 24)
    throw ProgramError(std::string("input ") + name + ": expected one number from 1 to 16777216");
  return known[0];
}

/// A length, as far as the file holds it.
Extent length_of(Importer& to, const Node& node, std::size_t input, const char* name) {
  if (!node.has(input)) return {};
  if (!to.known_integers(node, input)) return {-1, as_number(to, to.in(node, input))};
  return {*length_input(to, node, input, name), no_var};
}

Extent dft_length(Importer& to, const Node& node) { return length_of(to, node, 1, "dft_length"); }

/// The axis that a run names goes to the place before the numbers, and back.
void dft_in_run(Importer& to, const Node& node, VarId x) {
  const int rank = to.rank(x);
  const VarId named = as_number(to, to.in(node, 2));
  const VarId axis = to.emit1("mod", {named, number(to, rank)});
  Ints places;
  for (int i = 0; i < rank; ++i) places.push_back(i);
  const auto is = [&](VarId which) { return to.emit1("equal", {to.literal(places), which}); };
  const VarId target = number(to, rank - 2);
  const VarId moved = to.emit1("where", {is(target), axis, to.literal(places)});
  const VarId perm = to.emit1("where", {is(axis), target, moved});
  // The number of numbers of an element is known, wherever the axis is.
  Ints shape(static_cast<std::size_t>(rank), 0);
  shape.back() = (*to.type(x).shape)[rank - 1] > 0 ? (*to.type(x).shape)[rank - 1] : 0;
  const VarId turned = to.emit1("reshape", {to.emit1("transpose_by", {x, perm})}, {{"shape", shape}});
  const VarId made = fourier(to, turned, {rank - 2, node.flag("inverse", false), node.flag("onesided", false), dft_length(to, node)});
  to.give(node, "transpose_by", {made, perm});
}

/// The axis was an attribute up to opset 19.
void dft(Importer& to, const Node& node, const char*) {
  const VarId x = to.in(node, 0);
  const int rank = to.rank(x);
  if (to.opset() >= 20 && node.has(2) && !to.known_integers(node, 2)) return dft_in_run(to, node, x);
  const Ints said = to.opset() < 20 ? Ints{node.integer("axis", 1)} : to.needed_integers(node, 2, {-2});
  const int axis = axis_of("axis", said.empty() ? -2 : said[0], rank);
  if (rank < 2 || axis == rank - 1) throw ProgramError("expected another axis than the last, found " + std::to_string(axis));
  to.give(node, "identity", {fourier(to, x, {axis, node.flag("inverse", false), node.flag("onesided", false), dft_length(to, node)})});
}

/// [batch, samples, 1 or 2] → [batch, frames, frequencies, 2]
void stft(Importer& to, const Node& node, const char*) {
  VarId x = to.in(node, 0);
  if (to.rank(x) == 2) x = to.emit1("unsqueeze", {x}, {{"axes", Ints{2}}});
  if (to.rank(x) != 3) throw ProgramError("expected [batch, samples] or [batch, samples, 1 or 2], found " + to.type(x).to_string());
  const Extent step = length_of(to, node, 1, "frame_step");
  Extent length = length_of(to, node, 3, "frame_length");
  const VarId window = to.in_or_none(node, 2);
  if (window != no_var && to.rank(window) != 1) throw ProgramError("expected a window [length], found " + to.type(window).to_string());
  if (!node.has(3) && window != no_var) length = extent_at(to, window, 0);
  if (!node.has(1) || (length.known < 1 && length.var == no_var))
    throw ProgramError("expected a frame_step, and a frame_length or a window");
  VarId frames = step.known > 0 && length.known > 0 ? unfold(to, x, 1, {.kernel = length.known, .stride = step.known}, 0, 0)
                                                    : unfold_by(to, x, 1, length, step);
  if (window != no_var) {
    const VarId by = to.emit1("unsqueeze", {reshaped(to, window, {length}, true)}, {{"axes", Ints{1}}});
    frames = to.emit1("mul", {frames, by});
  }
  const bool real = (*to.type(x).shape)[2] == 1;
  to.give(node, "identity", {fourier(to, frames, {.axis = 2, .onesided = node.flag("onesided", true) && real})});
}

// ---- MelWeightMatrix

/// Triangles: from edge i up to 1 at edge i + 1 and down to edge i + 2; edges lie at equal steps of mel.
void mel_weights(Importer& to, const Node& node, const char*) {
  const Formula f(to, DType::f64);
  const VarId bands = as_number(to, to.in(node, 0)), length = as_number(to, to.in(node, 1));
  const auto real = [&](std::size_t input) { return f.reshaped(f.taken(to.in(node, input)), {}); };
  const auto plus = [&](VarId x, std::int64_t more) { return to.emit1("add", {x, number(to, more)}); };
  const double decade = 2595, knee = 700;
  const auto mel = [&](VarId hertz) { return f.times(f.over(f.op("log", f.plus(f.over(hertz, knee), 1.0)), std::numbers::ln10), decade); };
  const VarId low = mel(real(3)), high = mel(real(4));
  const VarId count = plus(bands, 2);
  const VarId step = f.over(f.minus(high, low), f.taken(count));
  const VarId mels = f.plus(f.times(f.taken(count_to(to, count)), step), low);
  const VarId hertz = f.times(f.minus(f.op("exp", f.times(f.over(mels, decade), std::numbers::ln10)), 1.0), knee);
  const VarId edges = f.op("floor", f.over(f.times(hertz, f.taken(plus(length, 1))), real(2)));
  const auto edge = [&](std::int64_t first) {
    return to.emit1("gather", {edges, plus(count_to(to, bands), first)}, {{"axis", std::int64_t{0}}});
  };
  const VarId begin = edge(0), peak = edge(1), end = edge(2);
  const VarId bins = plus(to.emit1("div", {length, number(to, 2)}), 1);
  const VarId at = f.unsqueezed(f.taken(count_to(to, bins)), {1});
  const auto both = [&](VarId a, VarId b) { return f.op("logical_and", a, b); };
  const VarId rise = f.minus(peak, begin), fall = f.minus(end, peak);
  const VarId rising = f.where(f.op("equal", rise, 0.0), f.number(1), f.over(f.minus(at, begin), rise));
  const VarId up = f.where(both(f.op("greater_equal", at, begin), f.op("less_equal", at, peak)), rising, f.number(0));
  const VarId down = both(f.op("greater_equal", at, peak), f.op("less", at, end));
  const DType dtype = node.has_attribute("output_datatype") ? dtype_attribute(node, "output_datatype") : DType::f32;
  to.give(node, "cast", {f.where(down, f.over(f.minus(end, at), fall), up)}, {{"to", dtype}});
}

constexpr Rule signal_table[] = {
    {"HannWindow", hann}, {"HammingWindow", hamming},       {"BlackmanWindow", blackman}, {"DFT", dft},
    {"STFT", stft},       {"MelWeightMatrix", mel_weights},
};

}  // namespace

std::span<const Rule> signal_rules() { return signal_table; }

}  // namespace millrace::importing
