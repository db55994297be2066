// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/lowering/join_windows.h>

#include <algorithm>
#include <limits>
#include <map>
#include <optional>
#include <set>
#include <utility>
#include <vector>

#include <millrace/runtime/lowering/internal/reads.h>
#include <millrace/runtime/program/op_registry.h>

namespace millrace {
namespace {

/// Places of an output from which on they fill vectors better than its channels do.
constexpr std::int64_t many_places = 32;
/// The lanes of a wide vector. Places that leave more than 3 in 10 of them empty fill it worse than as many channels do.
constexpr std::int64_t lanes = 16;

/// An extent as a product: of a number, and of extents that a run knows, by var and axis.
struct Extent {
  std::int64_t number = 1;
  std::multiset<std::pair<VarId, int>> unknown;
  bool operator==(const Extent&) const = default;
};

/// Windows of axis 1 of `x` turned: x [N, C, L1, …] → [N, windows, C, taps, …].
struct Windows {
  VarId x = no_var;
  std::int64_t stride = 1, dilation = 1, before = 0, after = 0, taps = 1;
};

using Ints = std::vector<std::int64_t>;

class Joiner {
 public:
  Joiner(Program& program, int block) : program_(program), ops_(program.block(block).ops) {}

  /// The body of a loop: a fused loop takes folds, products and activations in parts.
  void run_body() {
    body_ = true;
    read();
    for (std::size_t i = 0; i < ops_.size(); ++i)
      if (ops_[i].type == "transpose") join(i);
    drop();
  }

  void run() {
    read();
    for (std::size_t i = 0; i < ops_.size(); ++i) {
      if (ops_[i].type == "conv1d") widen(ops_[i]);
      if (ops_[i].type == "transpose") join(i);
    }
    for (std::size_t i = 0; i < ops_.size(); ++i)
      if (ops_[i].type == "conv") take_relu(i);
    for (Op& op : ops_)
      if (is_fold(op.type)) join_fold(op);
    drop();
    read();  // what is left
    for (std::size_t i = 0; i < ops_.size(); ++i)
      if (ops_[i].type == "pool") take_pool(i);
    if (program_.registry().find("matmul_bias") != nullptr)
      for (Op& op : ops_)
        if (op.type == "matmul") take_bias(op);
    drop();
  }

 private:
  void read() {
    makers_.clear();
    gone_.clear();
    for (std::size_t i = 0; i < ops_.size(); ++i)
      for (const VarId output : ops_[i].outputs) makers_[output] = i;
    readers_ = lowering::reads_of(program_);
  }

  const Op* maker(VarId var, const char* type) const {
    const auto found = makers_.find(var);
    return found == makers_.end() || ops_[found->second].type != type ? nullptr : &ops_[found->second];
  }
  const VarType& type(VarId var) const { return program_.var(var).type; }
  bool known_rank(VarId var, int rank) const { return type(var).shape && type(var).rank() == rank; }
  static Ints ints(const Op& op, const char* name) { return op.attributes.get_or(name, Ints{}); }

  Extent extent(VarId var, int axis) const {
    const std::int64_t known = (*type(var).shape)[axis];
    return known >= 0 ? Extent{known, {}} : Extent{1, {{var, axis}}};
  }
  static Extent times(Extent a, const Extent& b) {
    a.number *= b.number;
    a.unknown.insert(b.unknown.begin(), b.unknown.end());
    return a;
  }

  /// The extent that a var of the program holds.
  std::optional<Extent> value_of(VarId var) const {
    if (const Tensor* value = program_.constant(var))
      return value->elements() == 1 && value->dtype() == DType::i64 ? std::optional(Extent{static_cast<std::int64_t>(value->item()), {}})
                                                                    : std::nullopt;
    if (const Op* op = maker(var, "reshape")) return value_of(op->inputs[0]);
    if (const Op* op = maker(var, "mul")) {
      const auto a = value_of(op->inputs[0]), b = value_of(op->inputs[1]);
      return a && b ? std::optional(times(*a, *b)) : std::nullopt;
    }
    const Op* op = maker(var, "shape");
    if (op == nullptr || !type(op->inputs[0]).shape) return std::nullopt;
    const std::int64_t start = op->attributes.get_or("start", std::int64_t{0}), end = op->attributes.get_or("end", std::int64_t{0});
    if (start < 0 || end != start + 1 || end > type(op->inputs[0]).rank()) return std::nullopt;
    return extent(op->inputs[0], static_cast<int>(start));
  }

  /// The value that `var` is a reshape of to `wanted`; none where that is not sure.
  VarId reshaped_from(VarId var, const std::vector<Extent>& wanted) const {
    if (const Op* op = maker(var, "reshape")) {
      const Ints shape = ints(*op, "shape");
      if (shape.size() != wanted.size()) return no_var;
      std::size_t open = 0;
      for (std::size_t i = 0; i < shape.size(); ++i) {
        if (shape[i] == -1 || (shape[i] == 0 && !wanted[i].unknown.empty()))
          ++open;
        else if (!wanted[i].unknown.empty() || shape[i] != wanted[i].number)
          return no_var;
      }
      const bool copies = std::count(shape.begin(), shape.end(), std::int64_t{0}) > 0;
      if (copies) return reshaped_from(op->inputs[0], wanted);  // says what is known of a `reshape_to`
      return open <= 1 ? op->inputs[0] : no_var;
    }
    const Op* op = maker(var, "reshape_to");
    const Op* dims = op == nullptr ? nullptr : maker(op->inputs[1], "concat");
    if (dims == nullptr || dims->inputs.size() != wanted.size()) return no_var;
    for (std::size_t i = 0; i < wanted.size(); ++i)
      if (value_of(dims->inputs[i]) != wanted[i]) return no_var;
    return op->inputs[0];
  }

  /// Swaps axes 1 and 2 and nothing else.
  static bool swaps(const Op& op) {
    Ints perm = ints(op, "perm");
    if (perm.size() < 4 || perm[1] != 2 || perm[2] != 1) return false;
    std::swap(perm[1], perm[2]);
    for (std::size_t i = 0; i < perm.size(); ++i)
      if (std::cmp_not_equal(perm[i], i)) return false;
    return true;
  }

  /// Reads [N, windows, C, taps, …] back to x.
  std::optional<Windows> windows_of(VarId apart) const {
    std::vector<VarId> parts{apart};
    if (const Op* joined = maker(apart, "concat")) {
      if (joined->attributes.get_or("axis", std::int64_t{0}) != 3) return std::nullopt;
      parts = joined->inputs;
    }
    Windows found;
    found.taps = static_cast<std::int64_t>(parts.size());
    if (parts.size() > 1) found.dilation = begin_of(parts[1]);
    VarId wide = no_var;
    for (std::size_t tap = 0; tap < parts.size(); ++tap) {
      const Op* apart_op = maker(parts[tap], "unsqueeze");
      if (apart_op == nullptr || ints(*apart_op, "axes") != Ints{3}) return std::nullopt;
      const Op* slice = maker(apart_op->inputs[0], "slice");
      if (slice == nullptr) {  // one tap, and no element is skipped
        if (parts.size() > 1) return std::nullopt;
        wide = apart_op->inputs[0];
        break;
      }
      const Ints starts = ints(*slice, "starts"), ends = ints(*slice, "ends"), steps = ints(*slice, "steps");
      if (ints(*slice, "axes") != Ints{1} || starts.size() != 1 || ends.size() != 1 || steps.size() != 1 || steps[0] < 1)
        return std::nullopt;
      if (tap == 0) {
        wide = slice->inputs[0];
        found.stride = steps[0];
      }
      const auto place = static_cast<std::int64_t>(tap);
      const std::int64_t behind = (found.taps - 1 - place) * found.dilation;
      const std::int64_t end = behind == 0 ? std::numeric_limits<std::int64_t>::max() : -behind;
      if (slice->inputs[0] != wide || steps[0] != found.stride || starts[0] != place * found.dilation || ends[0] != end)
        return std::nullopt;
    }
    if (found.dilation < 1) return std::nullopt;
    if (const Op* pad = maker(wide, "pad")) {
      if (!pads_alone(*pad, 1, 0.0)) return std::nullopt;
      const Ints pads = ints(*pad, "pads");
      found.before = pads[1];
      found.after = pads[1 + pads.size() / 2];
      wide = pad->inputs[0];
    }
    const Op* turned = maker(wide, "transpose");
    if (turned == nullptr || !swaps(*turned)) return std::nullopt;
    found.x = turned->inputs[0];
    return found;
  }
  /// Where a tap's elements begin, or −1.
  std::int64_t begin_of(VarId part) const {
    const Op* apart = maker(part, "unsqueeze");
    const Op* slice = apart == nullptr ? nullptr : maker(apart->inputs[0], "slice");
    const Ints starts = slice == nullptr ? Ints{} : ints(*slice, "starts");
    return starts.size() == 1 ? starts[0] : -1;
  }

  bool can(VarId x, VarId weights) const { return is_floating(type(x).dtype) && program_.constant(weights) != nullptr; }

  /// A conv1d over many places as a `conv`.
  void widen(Op& op) {
    const Tensor* weights = program_.constant(op.inputs[1]);
    if (weights == nullptr || !can(op.inputs[0], op.inputs[1]) || !known_rank(op.outputs[0], 3)) return;
    const std::int64_t places = (*type(op.outputs[0]).shape)[2], units = weights->dim(0) / op.attributes.get_or("group", std::int64_t{1});
    if (places < many_places || (units >= lanes && 10 * ((places + lanes - 1) / lanes * lanes) > 13 * places)) return;
    op = Op{"conv", op.inputs, op.outputs, attributes_of(op), op.label};
  }
  /// The attributes of a conv1d or conv, as those of a `conv`.
  static Attributes attributes_of(const Op& op) {
    if (op.type == "conv") return op.attributes;
    const auto number = [&](const char* name) { return Ints{op.attributes.get_or(name, std::int64_t{1})}; };
    Attributes made{{"group", op.attributes.get_or("group", std::int64_t{1})},
                    {"strides", number("stride")},
                    {"dilations", number("dilation")},
                    {"pads", op.attributes.get_or("pads", Ints{0, 0})}};
    if (op.attributes.get_or("winograd", false)) made.set("winograd", true);
    return made;
  }

  /// Joins the convolution that ends with the transpose at `at`, if one does.
  void join(std::size_t at) {
    const Op& turned = ops_[at];
    if (!swaps(turned) || !type(turned.inputs[0]).shape) return;
    // The value that was reshaped: [N·windows, M, …] to [N, windows, M, …].
    for (const char* kind : {"conv1d", "conv"}) {
      const Op* inner = nullptr;
      for (VarId var = turned.inputs[0]; inner == nullptr;) {
        const auto found = makers_.find(var);
        if (found == makers_.end()) return;
        const Op& op = ops_[found->second];
        if (op.type == kind)
          inner = &op;
        else if (op.type == "reshape" || op.type == "reshape_to")
          var = op.inputs[0];
        else
          break;
      }
      if (inner != nullptr) return join(at, *inner);
    }
  }
  void join(std::size_t at, const Op& inner) {
    const VarId made = inner.outputs[0], rows = inner.inputs[0];
    if (readers_[made] == 0 || !can(rows, inner.inputs[1]) || !type(made).shape || inner.attributes.get_or("relu", false)) return;
    // The rows of the inner convolution: [N·windows, C·taps, …] of [N, windows, C, taps, …].
    VarId apart = no_var;
    for (VarId var = rows; apart == no_var;) {
      const auto found = makers_.find(var);
      if (found == makers_.end()) return;
      const Op& op = ops_[found->second];
      if (op.type == "reshape" || op.type == "reshape_to")
        var = op.inputs[0];
      else
        apart = var;
    }
    if (!known_rank(apart, type(rows).rank() + 2)) return;
    std::vector<Extent> joined{times(extent(apart, 0), extent(apart, 1)), times(extent(apart, 2), extent(apart, 3))};
    for (int axis = 4; axis < type(apart).rank(); ++axis) joined.push_back(extent(apart, axis));
    if (reshaped_from(rows, joined) != apart) return;
    std::vector<Extent> parted{extent(apart, 0), extent(apart, 1)};
    for (int axis = 1; axis < type(made).rank(); ++axis) parted.push_back(extent(made, axis));
    if (reshaped_from(ops_[at].inputs[0], parted) != made) return;
    const std::optional<Windows> windows = windows_of(apart);
    const Tensor& flat = *program_.constant(inner.inputs[1]);
    if (!windows || !known_rank(windows->x, type(rows).rank() + 1) || flat.dim(1) % windows->taps != 0) return;
    DDim dims = flat.dims();
    dims[1] = flat.dim(1) / windows->taps;
    dims = dims.inserted(2, windows->taps);
    const Tensor contiguous = flat.is_contiguous() ? flat : flat.copy_to(CpuPlace{});
    Attributes attributes = attributes_of(inner);
    if (body_) attributes.set("winograd", false);  // a fused loop has the bits of a product
    const auto in_front = [&](const char* name, std::int64_t value) {
      Ints values = attributes.get<Ints>(name);
      values.insert(values.begin(), value);
      attributes.set(name, values);
    };
    in_front("strides", windows->stride);
    in_front("dilations", windows->dilation);
    Ints pads = attributes.get<Ints>("pads");
    pads.insert(pads.begin() + static_cast<std::ptrdiff_t>(pads.size() / 2), windows->after);
    pads.insert(pads.begin(), windows->before);
    attributes.set("pads", pads);
    std::vector<VarId> inputs = inner.inputs;
    inputs[0] = windows->x;
    inputs[1] = program_.add_parameter(program_.var(inner.inputs[1]).name + "_joined", contiguous.reshape(dims).read_only());
    Op conv{"conv", std::move(inputs), ops_[at].outputs, std::move(attributes), inner.label};
    joined_ = true;
    for (const VarId input : conv.inputs)
      if (input != no_var) ++readers_[input];
    ops_[at] = std::move(conv);
  }

  static bool is_fold(const std::string& type) { return type == "maximum" || type == "minimum" || type == "add"; }
  static double padding_of(const std::string& fold) {
    constexpr double infinity = std::numeric_limits<double>::infinity();
    return fold == "maximum" ? -infinity : fold == "minimum" ? infinity : 0.0;
  }

  /// One slice of each window: `start`, `end` and `step` along `axis` of `wide`.
  struct Slice {
    VarId wide = no_var;
    std::int64_t axis = 0, start = 0, end = 0, step = 1;
  };
  std::optional<Slice> slice_of(VarId var) const {
    const Op* slice = maker(var, "slice");
    if (slice == nullptr || !type(slice->inputs[0]).shape) return std::nullopt;
    const Ints axes = ints(*slice, "axes"), starts = ints(*slice, "starts"), ends = ints(*slice, "ends"), steps = ints(*slice, "steps");
    if (axes.size() != 1 || starts.size() != 1 || ends.size() != 1 || steps.size() > 1) return std::nullopt;
    const int rank = type(slice->inputs[0]).rank();
    return Slice{slice->inputs[0], axes[0] < 0 ? axes[0] + rank : axes[0], starts[0], ends[0], steps.empty() ? 1 : steps[0]};
  }

  /// Makes a `pool` of the last fold of slices, element t of every window, from t = 0 on.
  void join_fold(Op& op) {
    const DType dtype = type(op.outputs[0]).dtype;
    const bool rounds = op.type == "add" && dtype != DType::f32 && dtype != DType::f64;  // each sum of narrow elements
    if (!is_floating(dtype) || rounds) return;
    std::vector<Slice> slices;  // the last first
    VarId total = op.outputs[0];
    for (const Op* fold = &op; fold != nullptr && fold->inputs.size() == 2; fold = maker(total, op.type.c_str())) {
      const std::optional<Slice> next = slice_of(fold->inputs[1]);
      if (!next) return;
      slices.push_back(*next);
      total = fold->inputs[0];
    }
    const std::optional<Slice> first = slice_of(total);
    if (!first) return;
    slices.push_back(*first);
    std::reverse(slices.begin(), slices.end());
    const auto taps = std::ssize(slices);
    const std::int64_t dilation = slices[1].start, stride = first->step, axis = first->axis;
    if (dilation < 1 || stride < 1 || axis == 0) return;  // rows may have LoD, which padded rows have not
    for (std::int64_t tap = 0; tap < taps; ++tap) {
      const Slice& slice = slices[static_cast<std::size_t>(tap)];
      const std::int64_t behind = (taps - 1 - tap) * dilation;
      if (slice.wide != first->wide || slice.axis != axis || slice.step != stride || slice.start != tap * dilation ||
          slice.end != (behind == 0 ? std::numeric_limits<std::int64_t>::max() : -behind))
        return;
    }
    const int rank = type(first->wide).rank();
    const auto folded = static_cast<std::size_t>(rank - axis);
    Ints kernels(folded, 1), strides(folded, 1), dilations(folded, 1), pads(2 * folded, 0);
    kernels[0] = taps;
    strides[0] = stride;
    dilations[0] = dilation;
    VarId x = first->wide;
    if (const Op* pad = maker(x, "pad"); pad != nullptr && pads_alone(*pad, static_cast<std::size_t>(axis), padding_of(op.type))) {
      const Ints around = ints(*pad, "pads");
      pads[0] = around[static_cast<std::size_t>(axis)];
      pads[folded] = around[static_cast<std::size_t>(axis + rank)];
      x = pad->inputs[0];
    }
    op = Op{"pool",
            {x},
            op.outputs,
            {{"fold", op.type}, {"kernels", kernels}, {"strides", strides}, {"dilations", dilations}, {"pads", pads}},
            op.label};
    joined_ = true;
  }

  /// Whether an op `pad` puts this value around one axis and around no other.
  static bool pads_alone(const Op& pad, std::size_t axis, double value) {
    const Ints pads = ints(pad, "pads");
    if (pad.attributes.get_or("mode", std::string("constant")) != "constant" || pad.attributes.get_or("value", 0.0) != value) return false;
    for (std::size_t i = 0; i < pads.size(); ++i)
      if (pads[i] < 0 || (pads[i] != 0 && i % (pads.size() / 2) != axis)) return false;
    return true;
  }

  /// One op of a pool along some axes and of the pool that reads it alone, along axes behind those.
  void take_pool(std::size_t at) {
    const auto made = makers_.find(ops_[at].inputs[0]);
    if (made == makers_.end() || ops_[made->second].type != "pool" || readers_[ops_[at].inputs[0]] != 1) return;
    const Op& inner = ops_[made->second];
    Op& outer = ops_[at];
    if (inner.attributes.get<std::string>("fold") != outer.attributes.get<std::string>("fold")) return;
    const std::size_t all = ints(inner, "kernels").size(), behind = ints(outer, "kernels").size();
    if (all <= behind) return;
    const std::size_t front = all - behind;
    Attributes both = outer.attributes;
    for (const char* name : {"kernels", "strides", "dilations", "pads"}) {
      const Ints first = ints(inner, name), second = ints(outer, name);
      Ints joined;
      for (std::size_t side = 0; side * all < first.size(); ++side) {
        const auto from = first.begin() + static_cast<std::ptrdiff_t>(side * all), to = from + static_cast<std::ptrdiff_t>(front);
        if (std::any_of(to, to + static_cast<std::ptrdiff_t>(behind), [&](auto number) { return number != (first.size() > all ? 0 : 1); }))
          return;
        joined.insert(joined.end(), from, to);
        const auto rest = second.begin() + static_cast<std::ptrdiff_t>(side * behind);
        joined.insert(joined.end(), rest, rest + static_cast<std::ptrdiff_t>(behind));
      }
      both.set(name, joined);
    }
    outer.inputs = inner.inputs;
    outer.attributes = both;
    gone_.insert(made->second);
  }

  /// The only reader of `var`, when that is an op of this type in block 0.
  std::optional<std::size_t> only_reader(VarId var, const char* type) const {
    const auto count = readers_.find(var);
    if (count == readers_.end() || count->second != 1) return std::nullopt;
    for (std::size_t i = 0; i < ops_.size(); ++i)
      if (ops_[i].type == type && ops_[i].inputs[0] == var) return i;
    return std::nullopt;
  }

  void take_relu(std::size_t at) {
    std::set<std::size_t> passed;
    VarId var = ops_[at].outputs[0];
    while (const auto next = only_reader(var, "identity")) {
      passed.insert(*next);
      var = ops_[*next].outputs[0];
    }
    const auto relu = only_reader(var, "relu");
    if (!relu) return;
    for (const std::size_t i : passed) gone_.insert(i);
    gone_.insert(*relu);
    ops_[at].outputs = ops_[*relu].outputs;
    ops_[at].attributes.set("relu", true);
  }

  /// A product with known weights, and a bias of as many elements behind it.
  void take_bias(Op& op) {
    const Tensor* const weights = program_.constant(op.inputs[1]);
    const auto add = only_reader(op.outputs[0], "add");
    if (weights == nullptr || weights->rank() != 2 || !is_floating(weights->dtype()) || !add) return;
    const Tensor* const bias = program_.constant(ops_[*add].inputs[1]);
    const DType dtype = type(op.inputs[0]).dtype;
    if (bias == nullptr || bias->rank() != 1 || bias->dim(0) != weights->dim(1) || bias->dtype() != dtype || !bias->is_contiguous() ||
        type(op.outputs[0]).dtype != dtype || type(ops_[*add].outputs[0]).dtype != dtype || (dtype != DType::f32 && dtype != DType::f64))
      return;
    gone_.insert(*add);
    op = Op{"matmul_bias", {op.inputs[0], op.inputs[1], ops_[*add].inputs[1]}, ops_[*add].outputs, {}, op.label};
  }

  /// Takes out what the replaced results were made of, and the extents that were asked of it, as far as nothing reads them.
  void drop() {
    std::vector<Op> left;
    for (std::size_t i = 0; i < ops_.size(); ++i)
      if (!gone_.contains(i)) left.push_back(std::move(ops_[i]));
    ops_ = std::move(left);
    static const std::set<std::string> parts{"shape",     "reshape", "reshape_to", "mul",    "concat", "unsqueeze", "slice",
                                             "transpose", "pad",     "add",        "conv1d", "conv",   "maximum",   "minimum"};
    for (bool again = joined_; again;) {
      std::set<VarId> read;
      for (const Program::Port& port : program_.outputs()) read.insert(port.var);
      for (const Block& block : program_.blocks()) {
        read.insert(block.results.begin(), block.results.end());
        for (const Op& op : block.ops) read.insert(op.inputs.begin(), op.inputs.end());
      }
      again = std::erase_if(ops_, [&](const Op& op) { return parts.contains(op.type) && !read.contains(op.outputs[0]); }) > 0;
    }
  }

  Program& program_;
  std::vector<Op>& ops_;
  std::map<VarId, std::size_t> makers_;
  std::map<VarId, int> readers_;
  bool body_ = false;
  bool joined_ = false;
  std::set<std::size_t> gone_;
};

}  // namespace

void join_windows(Program& program) {
  if (program.registry().find("conv") == nullptr) return;
  Joiner(program, 0).run();
  for (int block = 1; std::cmp_less(block, program.blocks().size()); ++block) Joiner(program, block).run_body();
}

}  // namespace millrace
