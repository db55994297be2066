// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cell_sequence.h>

#include <algorithm>
#include <bit>
#include <map>
#include <numeric>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <millrace/tensor/copy.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

using Kind = RowOp::Kind;

/// Limits of recurrent/cell.cuh, and of code that is still worth compiling.
constexpr std::size_t most_vectors = 16, most_products = 8, most_inputs = 24, most_outputs = 32, most_states = 8, most_shared = 32;
constexpr std::int64_t most_parts = 32, most_narrow = 16;
constexpr int most_asked = 32, most_stages = 24;

[[noreturn]] void refuse(const std::string& why) { throw UnsupportedError("the cell " + why); }

/// An operand of a statement: an element of a register, as a function of the lane's unit where `wide`, else always the same one.
struct Read {
  int reg = -1;
  std::int64_t begin = 0, step = 0;  // element begin + step · unit
  std::string index;                 // where that is no such element
};

/// One value of a lane: an element of a narrow register, or the lane's unit in one part of a wide one.
struct Statement {
  int reg = -1;
  std::int64_t part = 0;  // of a wide register; of a narrow one the element
  std::string text;       // {0}, {1}, …: the reads; {s}: the stage
  std::vector<Read> reads;
  int vector = -1;  // that has to be staged: of a sum or fold, or of elements that other lanes made
  int stage = -1;
};

std::string bits(double value) { return fmt::format("bits_as<float>(0x{:08x}u)", std::bit_cast<std::uint32_t>(static_cast<float>(value))); }

/// f({0}), by the function of its name in recurrent/elementary.cuh; as `apply` of with_cuda/functions.cuh.
std::string unary_text(const RowOp& op) {
  const std::string alpha = bits(op.params.alpha), beta = bits(op.params.beta);
  const auto unless_nan = [](const std::string& text) { return "({0} != {0} ? {0} : " + text + ")"; };
  switch (op.unary) {
    case Unary::identity: return "{0}";
    case Unary::neg: return "-{0}";
    case Unary::abs: return "magnitude({0})";
    case Unary::sign: return "({0} != {0} ? {0} : {0} == 0.0f ? 0.0f : signed_as(1.0f, {0}))";
    case Unary::square: return "{0} * {0}";
    case Unary::sqrt: return "root_of({0})";
    case Unary::reciprocal: return "1.0f / {0}";
    case Unary::exp: return "exp_of({0})";
    case Unary::log: return "log_of({0})";
    case Unary::erf: return "erf_of({0})";
    case Unary::sin: return "sin_of({0})";
    case Unary::cos: return "cos_of({0})";
    case Unary::atan: return "atan_of({0})";
    case Unary::floor: return "floor_of({0})";
    case Unary::ceil: return "ceil_of({0})";
    case Unary::round: return "rounded({0})";
    case Unary::tanh: return "tanh_of({0})";
    case Unary::sigmoid: return "sigmoid_of({0})";
    case Unary::relu: return unless_nan("greatest_of({0}, 0.0f)");
    case Unary::leaky_relu: return "({0} < 0.0f ? " + alpha + " * {0} : {0})";
    case Unary::thresholded_relu: return "({0} != {0} || {0} > " + alpha + " ? {0} : 0.0f)";
    case Unary::elu: return "elu_of({0}, " + alpha + ", 1.0f)";
    case Unary::selu: return beta + " * elu_of({0}, " + alpha + ", 1.0f)";
    case Unary::celu: return "elu_of({0}, " + alpha + ", " + alpha + ")";
    case Unary::gelu: return "0.5f * {0} * (1.0f + erf_of({0} / " + bits(1.41421356237309504880) + "))";
    case Unary::gelu_tanh: return "gelu_tanh_of({0})";
    case Unary::hard_sigmoid: return unless_nan("hard_sigmoid_of({0}, " + alpha + ", " + beta + ")");
    case Unary::hard_swish: return unless_nan("{0} * hard_sigmoid_of({0}, " + bits(1.0 / 6) + ", 0.5f)");
    case Unary::mish: return "{0} * tanh_of(softplus_of({0}))";
    case Unary::softplus: return "softplus_of({0})";
    case Unary::softsign: return "{0} / (1.0f + magnitude({0}))";
    case Unary::affine: return alpha + " * {0} + " + beta;
    case Unary::scaled_tanh: return alpha + " * tanh_of(" + beta + " * {0})";
    case Unary::swish: return "{0} * sigmoid_of(" + alpha + " * {0})";
    case Unary::clip: return unless_nan("least_of(greatest_of({0}, " + alpha + "), " + beta + ")");
    default: refuse("has the function " + std::string(name_of(op.unary)) + ", which no generated kernel has");
  }
}

std::string binary_text(Binary kind) {
  switch (kind) {
    case Binary::add: return "{0} + {1}";
    case Binary::sub: return "{0} - {1}";
    case Binary::mul: return "{0} * {1}";
    case Binary::div: return "{0} / {1}";
    case Binary::minimum: return "({0} < {1} || {0} != {0} ? {0} : {1})";
    case Binary::maximum: return "({0} > {1} || {0} != {0} ? {0} : {1})";
    case Binary::sigmoid_gradient: return "{0} * ({1} * (1.0f - {1}))";
    case Binary::tanh_gradient: return "{0} * (1.0f - {1} * {1})";
    case Binary::prelu: return "({0} < 0.0f ? {1} * {0} : {0})";
    case Binary::equal: return "({0} == {1} ? 1.0f : 0.0f)";
    case Binary::not_equal: return "({0} != {1} ? 1.0f : 0.0f)";
    case Binary::less: return "({0} < {1} ? 1.0f : 0.0f)";
    case Binary::less_equal: return "({0} <= {1} ? 1.0f : 0.0f)";
    case Binary::greater: return "({0} > {1} ? 1.0f : 0.0f)";
    case Binary::greater_equal: return "({0} >= {1} ? 1.0f : 0.0f)";
    case Binary::logical_and: return "({0} != 0.0f && {1} != 0.0f ? 1.0f : 0.0f)";
    case Binary::logical_or: return "({0} != 0.0f || {1} != 0.0f ? 1.0f : 0.0f)";
    case Binary::logical_xor: return "(({0} != 0.0f) != ({1} != 0.0f) ? 1.0f : 0.0f)";
    default: refuse("has the function " + std::string(name_of(kind)) + ", which no generated kernel has");
  }
}

std::string replaced(std::string text, const std::string& what, const std::string& with) {
  for (std::size_t at = text.find(what); at != std::string::npos; at = text.find(what, at + with.size()))
    text.replace(at, what.size(), with);
  return text;
}

class Generator {
 public:
  explicit Generator(const CellDesc& desc) : desc_(desc), regs_(desc.rows.registers) {
    plan_.tf32 = desc.tf32;
    plan_.factors = desc.factors;
  }

  CellPlan run() {
    check();
    find_units();
    for (const CellDesc::State& state : desc_.states) {
      plan_.state_widths.push_back(state.width);
      plan_.state_changes.push_back(state.next >= 0);
    }
    for (const int reg : desc_.outputs) plan_.output_widths.push_back(width(reg));
    for (const RowOp& op : desc_.rows.ops) expand(op);
    find_stages();
    find_sinks();
    write();
    return std::move(plan_);
  }

 private:
  struct Fold {
    int vector = 0;
    std::int64_t begin = 0, outer = 1, inner = 1;
    std::string kind;
    double epsilon = 0;
    int stage = -1;
    int first = 0;
  };
  struct Sum {
    int product = 0;
    std::int64_t gate = 0;
  };

  std::int64_t width(int reg) const { return regs_[static_cast<std::size_t>(reg)].width; }
  const RowRegister& of(int reg) const { return regs_[static_cast<std::size_t>(reg)]; }
  bool is_made(int reg) const { return of(reg).kind == RowRegister::Kind::scratch || of(reg).kind == RowRegister::Kind::output; }
  CellDesc::Input input_of(int reg) const { return desc_.inputs[of(reg).place]; }
  bool is_state(int reg) const { return of(reg).kind == RowRegister::Kind::input && input_of(reg).kind == CellDesc::Input::Kind::state; }
  bool is_shared(int reg) const {
    return of(reg).kind == RowRegister::Kind::constant ||
           (of(reg).kind == RowRegister::Kind::input && input_of(reg).kind == CellDesc::Input::Kind::shared);
  }
  bool is_wide(int reg) const { return width(reg) % plan_.units == 0; }
  std::int64_t parts(int reg) const { return is_wide(reg) ? width(reg) / plan_.units : width(reg); }
  bool changes(int reg) const { return desc_.states[input_of(reg).place].next >= 0; }

  void check() const {
    if (desc_.rows.dtype != DType::f32) refuse(fmt::format("computes in {}, and generated kernels in f32", name_of(desc_.rows.dtype)));
    if (desc_.states.empty()) refuse("carries no state");
    if (desc_.states.size() > most_states)
      refuse(fmt::format("carries {} states, and a generated kernel {}", desc_.states.size(), most_states));
    if (desc_.outputs.size() > most_outputs)
      refuse(fmt::format("writes {} values, and a generated kernel {}", desc_.outputs.size(), most_outputs));
  }

  /// The greatest number of units that every product and every state is so many parts of.
  void find_units() {
    std::int64_t units = 0;
    for (const RowOp& op : desc_.rows.ops)
      if (op.kind == Kind::matmul && op.inner > 1) units = std::gcd(units, op.inner);
    for (const CellDesc::State& state : desc_.states)
      if (state.width > 1) units = std::gcd(units, state.width);
    plan_.units = std::max<std::int64_t>(units, 1);
    for (std::size_t reg = 0; reg < regs_.size(); ++reg) {
      const int at = static_cast<int>(reg);
      if (!is_made(at) && !is_state(at)) continue;
      if (is_wide(at) && parts(at) > most_parts)
        refuse(fmt::format("has a value of {} elements, which {} units share: more than {} a unit", width(at), plan_.units, most_parts));
      if (!is_wide(at) && width(at) > most_narrow)
        refuse(fmt::format("has a value of {} elements, which {} units do not share evenly", width(at), plan_.units));
    }
  }

  // ---- Statements ----

  int vector_of(int reg, std::int64_t begin, std::int64_t count, bool factors) {
    const std::pair<std::pair<int, bool>, std::pair<std::int64_t, std::int64_t>> key{{reg, factors}, {begin, count}};
    const auto known = vectors_.find(key);
    if (known != vectors_.end()) return known->second;
    if (!is_made(reg) && !is_state(reg)) refuse("multiplies or folds what depends on no state");
    if (plan_.vectors.size() == most_vectors) refuse(fmt::format("exchanges more than {} vectors", most_vectors));
    plan_.vectors.push_back({count, 0, factors, is_state(reg) ? static_cast<int>(input_of(reg).place) : -1, begin});
    vector_regs_.push_back(reg);
    return vectors_[key] = static_cast<int>(plan_.vectors.size()) - 1;
  }
  int row_vector(int reg) { return vector_of(reg, 0, width(reg), false); }

  void add(Statement one) {
    if (!made_.insert({{one.reg, one.part}, statements_.size()}).second) refuse("writes a value twice");
    statements_.push_back(std::move(one));
  }

  /// The statements of an op that gives `count` elements one behind the other from `begin` of `reg` on; `make(first, unit)` gives
  /// that of elements first + unit · (the lane's unit), counted within the op.
  template <class F>
  void for_elements(int reg, std::int64_t begin, std::int64_t count, const F& make) {
    if (!is_wide(reg)) {
      for (std::int64_t i = 0; i < count; ++i) {
        Statement one = make(i, false);
        one.reg = reg;
        one.part = begin + i;
        add(std::move(one));
      }
      return;
    }
    if (begin % plan_.units != 0 || count % plan_.units != 0)
      refuse(fmt::format("moves {} elements to element {}, and has {} units", count, begin, plan_.units));
    for (std::int64_t i = 0; i < count; i += plan_.units) {
      Statement one = make(i, true);
      one.reg = reg;
      one.part = (begin + i) / plan_.units;
      add(std::move(one));
    }
  }

  /// Element `first` (+ the unit) of an operand that has `inner` elements `inner_step` apart, again and again `outer_step` apart.
  Read read(const RowOperand& from, std::int64_t inner, std::int64_t first, bool by_unit) const {
    const std::int64_t o = first / std::max<std::int64_t>(inner, 1), i = first % std::max<std::int64_t>(inner, 1);
    Read made{from.reg, from.begin + o * from.outer_step + i * from.inner_step, 0, {}};
    if (!by_unit) return made;
    const bool straight = i + plan_.units <= inner || from.outer_step == inner * from.inner_step;
    if (straight) {
      made.step = from.inner_step;
    } else {
      made.index = fmt::format("{} + ({} + at.unit) / {} * {} + ({} + at.unit) % {} * {}", from.begin, first, inner, from.outer_step, first,
                               inner, from.inner_step);
    }
    return made;
  }

  void elementwise(const RowOp& op, std::size_t operands, const std::string& text) {
    const bool flat = (op.inner <= 1 || op.out.inner_step == 1) && (op.outer == 1 || op.out.outer_step == op.inner);
    const std::int64_t runs = flat ? 1 : op.outer, count = flat ? op.outer * op.inner : op.inner;
    if (!flat && op.inner > 1 && op.out.inner_step != 1) refuse("turns elements of a row around");
    for (std::int64_t run = 0; run < runs; ++run)
      for_elements(op.out.reg, op.out.begin + run * op.out.outer_step, count, [&](std::int64_t first, bool by_unit) {
        Statement one;
        one.text = text;
        for (std::size_t k = 0; k < operands; ++k) {
          RowOperand from = op.in[k];
          from.begin += run * from.outer_step;
          one.reads.push_back(read(from, op.inner, first, by_unit));
        }
        return one;
      });
  }

  /// Vectors of factors are rounded as they are exchanged: the operand of a product that was rounded to bf16 before, as it was then. So it needs no
  /// stage of its own.
  RowOperand before_rounding(RowOperand from, std::int64_t count) const {
    for (bool found = true; found;) {
      found = false;
      for (const RowOp& op : desc_.rows.ops) {
        if (op.kind != Kind::round_bf16 || op.out.reg != from.reg || op.outer != 1) continue;
        if (op.out.inner_step != 1 || op.in[0].inner_step != 1 || from.begin < op.out.begin) continue;
        if (from.begin + count > op.out.begin + op.inner) continue;
        from = {op.in[0].reg, op.in[0].begin + from.begin - op.out.begin, 0, 1};
        found = true;
      }
    }
    return from;
  }

  void product(const RowOp& op) {
    const auto [k, n] = desc_.products[op.weights];
    if (op.outer != 1) refuse(fmt::format("multiplies {} vectors of a row by one matrix", op.outer));
    if (k == 0 || n == 0) refuse("has a product of no elements");
    if (n % plan_.units != 0 || !is_wide(op.out.reg)) refuse(fmt::format("has a product of {} columns and {} units", n, plan_.units));
    if (plan_.products.size() == most_products) refuse(fmt::format("has more than {} products", most_products));
    const RowOperand from = plan_.factors == DType::bf16 ? before_rounding(op.in[0], k) : op.in[0];
    const int vector = vector_of(from.reg, from.begin, k, true);
    const auto which = static_cast<int>(plan_.products.size());
    plan_.products.push_back({-1, vector, static_cast<int>(n / plan_.units), op.weights});
    for_elements(op.out.reg, op.out.begin, n, [&](std::int64_t first, bool) {
      Statement one;
      one.text = fmt::format("sums[{{p{}}} * 2 + {}]", which, first / plan_.units * 2);
      one.vector = vector;
      return one;
    });
  }

  int fold(const RowOp& op, const std::string& kind) {
    const int vector = row_vector(op.in[0].reg);
    folds_.push_back({vector, op.in[0].begin, op.outer, op.inner, kind, op.epsilon, -1, 0});
    return static_cast<int>(folds_.size()) - 1;
  }
  /// Result `j` of the fold that element `first` (+ the unit) is of.
  static std::string result(int fold, std::int64_t inner, std::int64_t first, bool by_unit, std::int64_t units, int j) {
    const bool one = !by_unit || first % inner + units <= inner;
    const std::string which = one ? std::to_string(first / inner) : fmt::format("({} + at.unit) / {}", first, inner);
    return fmt::format("at.template fold<{{s}}>({{f{}}} + ({}) * 2 + {})", fold, which, j);
  }

  void reduce(const RowOp& op) {
    static const std::map<Reduction, std::string> kinds{{Reduction::sum, "sum"},
                                                        {Reduction::mean, "mean"},
                                                        {Reduction::max, "max"},
                                                        {Reduction::min, "min"},
                                                        {Reduction::l1, "l1"},
                                                        {Reduction::l2, "l2"},
                                                        {Reduction::sum_square, "sum_square"}};
    const auto kind = kinds.find(op.reduction);
    if (kind == kinds.end()) refuse("folds by a logarithm");
    const int which = fold(op, kind->second);
    for_elements(op.out.reg, op.out.begin, op.outer, [&](std::int64_t first, bool by_unit) {
      Statement one;
      one.text = result(which, 1, first, by_unit, plan_.units, 0);
      one.vector = folds_[static_cast<std::size_t>(which)].vector;
      return one;
    });
  }

  void normalise(const RowOp& op) {
    const int which = fold(op, op.kind == Kind::layer_norm ? "norm" : op.kind == Kind::softmax ? "softmax" : "log_softmax");
    const int vector = folds_[static_cast<std::size_t>(which)].vector;
    for_elements(op.out.reg, op.out.begin, op.outer * op.inner, [&](std::int64_t first, bool by_unit) {
      Statement one;
      one.vector = vector;
      const std::string x = fmt::format("at.template staged<{{s}}, {}>({}{})", vector, op.in[0].begin + first, by_unit ? " + at.unit" : "");
      const std::string a = result(which, op.inner, first, by_unit, plan_.units, 0),
                        b = result(which, op.inner, first, by_unit, plan_.units, 1);
      if (op.kind == Kind::layer_norm) {
        one.text = fmt::format("({} - {}) * {} * {{0}}", x, a, b);
        for (std::size_t k = 1; k < 3 && op.in[k].reg >= 0; ++k) {
          RowOperand factor = op.in[k];
          factor.outer_step = 0;
          factor.inner_step = 1;
          one.reads.push_back(read(factor, op.inner, first, by_unit));
        }
        if (op.in[2].reg >= 0) one.text += " + {1}";
      } else if (op.kind == Kind::softmax) {
        one.text = fmt::format("exp_of({} - {}) / {}", x, a, b);
      } else {
        one.text = fmt::format("({} - {}) - {}", x, a, b);
      }
      return one;
    });
  }

  void expand(const RowOp& op) {
    switch (op.kind) {
      case Kind::unary: return elementwise(op, 1, unary_text(op));
      case Kind::binary: return elementwise(op, 2, binary_text(op.binary));
      case Kind::where: return elementwise(op, 3, "({0} != 0.0f ? {1} : {2})");
      case Kind::copy: return elementwise(op, 1, "{0}");
      case Kind::round_bf16: return elementwise(op, 1, "rounded_to_bf16({0})");
      case Kind::matmul: return product(op);
      case Kind::reduce: return reduce(op);
      case Kind::softmax:
      case Kind::log_softmax:
      case Kind::layer_norm: return normalise(op);
      case Kind::lstm_cell: refuse("holds an lstm_cell that is not written out");
      case Kind::quantize:
      case Kind::matmul_int8: refuse("multiplies in int8, which no generated kernel does");
      case Kind::layer_norm_gradient: refuse("has the gradient of a layer norm, which no generated kernel has");
      case Kind::function: refuse("has an op from outside, whose arithmetic is on the host");
    }
  }

  // ---- Stages ----

  /// Whether the lane that makes (reg, part) is the one that reads it.
  bool is_local(const Read& read, bool by_unit) const {
    if (!read.index.empty()) return false;
    if (is_state(read.reg)) return is_wide(read.reg) && by_unit && read.step == 1 && read.begin % plan_.units == 0;
    if (!is_wide(read.reg)) return read.step == 0;
    if (plan_.units == 1) return true;
    return by_unit && read.step == 1 && read.begin % plan_.units == 0;
  }
  std::int64_t part_of(const Read& read) const { return is_wide(read.reg) ? read.begin / plan_.units : read.begin; }
  bool by_unit(const Statement& one) const { return is_wide(one.reg); }

  const Statement& maker(int reg, std::int64_t part) const {
    const auto found = made_.find({reg, part});
    if (found == made_.end()) refuse("reads a value that no op makes");
    return statements_[found->second];
  }
  /// The first stage in which a vector can be read.
  int ready(int vector) const {
    const int reg = vector_regs_[static_cast<std::size_t>(vector)];
    if (!is_made(reg)) return 0;
    const CellPlan::Vector& of = plan_.vectors[static_cast<std::size_t>(vector)];
    int stage = 0;
    for (std::int64_t part = 0; part < parts(reg); ++part) {
      const std::int64_t size = is_wide(reg) ? plan_.units : 1;
      if ((part + 1) * size > of.begin && part * size < of.begin + of.width) stage = std::max(stage, maker(reg, part).stage + 1);
    }
    return stage;
  }

  void find_stages() {
    for (Statement& one : statements_) {
      one.stage = 0;
      if (one.vector >= 0) one.stage = ready(one.vector);
      for (const Read& read : one.reads) {
        if (!is_made(read.reg) && !is_state(read.reg)) continue;
        if (is_local(read, by_unit(one))) {
          if (is_made(read.reg)) one.stage = std::max(one.stage, maker(read.reg, part_of(read)).stage);
        } else {
          one.stage = std::max(one.stage, ready(row_vector(read.reg)));
        }
      }
      plan_.stages = std::max(plan_.stages, one.stage + 1);
    }
    // The next value of a state may be read from a vector too.
    if (plan_.stages > most_stages) refuse(fmt::format("takes {} stages", plan_.stages));
    for (const Statement& one : statements_) {
      if (one.vector >= 0) mark(one.vector, one.stage);
      for (const Read& read : one.reads)
        if ((is_made(read.reg) || is_state(read.reg)) && !is_local(read, by_unit(one))) mark(row_vector(read.reg), one.stage);
    }
    for (CellPlan::Product& product : plan_.products) product.stage = ready(product.vector);
    plan_.results.assign(static_cast<std::size_t>(plan_.stages), 0);
    for (Fold& fold : folds_) {
      fold.stage = ready(fold.vector);
      int& results = plan_.results[static_cast<std::size_t>(fold.stage)];
      fold.first = results;
      results += static_cast<int>(2 * fold.outer);
    }
    int first = 0;
    for (int stage = 0; stage < plan_.stages; ++stage) {
      int now = 0;
      for (const CellPlan::Product& product : plan_.products)
        if (product.stage == stage) {
          firsts_[&product - plan_.products.data()] = now;
          now += (product.gates + 1) / 2 * 2;
        }
      first = std::max(first, now);
    }
    sums_ = std::max(first, 2);
  }
  void mark(int vector, int stage) { plan_.vectors[static_cast<std::size_t>(vector)].reads |= 1u << stage; }

  // ---- Where values go ----

  struct Sink {
    std::vector<std::size_t> outputs, next;
    std::vector<int> vectors;  // with what the state of that vector shows behind the step
  };

  void find_sinks() {
    for (std::size_t i = 0; i < desc_.outputs.size(); ++i) sinks_[desc_.outputs[i]].outputs.push_back(i);
    for (std::size_t i = 0; i < desc_.states.size(); ++i)
      if (desc_.states[i].next >= 0) {
        if (width(desc_.states[i].next) != desc_.states[i].width) refuse("carries a state whose extents change");
        sinks_[desc_.states[i].next].next.push_back(i);
      }
    for (std::size_t v = 0; v < plan_.vectors.size(); ++v) {
      const CellPlan::Vector& vector = plan_.vectors[v];
      const int reg = vector_regs_[v];
      if (is_made(reg)) sinks_[reg].vectors.push_back(static_cast<int>(v));
      if (vector.state >= 0 && desc_.states[static_cast<std::size_t>(vector.state)].next >= 0)
        sinks_[desc_.states[static_cast<std::size_t>(vector.state)].next].vectors.push_back(static_cast<int>(v));
    }
  }

  // ---- The source ----

  int input_number(int reg) {
    const std::size_t place = of(reg).place;
    const auto found = std::find(plan_.input_rows.begin(), plan_.input_rows.end(), place);
    if (found != plan_.input_rows.end()) return static_cast<int>(found - plan_.input_rows.begin());
    if (plan_.input_rows.size() == most_inputs) refuse(fmt::format("reads more than {} values of every step", most_inputs));
    plan_.input_rows.push_back(place);
    return static_cast<int>(plan_.input_rows.size()) - 1;
  }
  int shared_number(int reg) {
    const bool constant = of(reg).kind == RowRegister::Kind::constant;
    for (std::size_t i = 0; i < plan_.shared.size(); ++i)
      if (plan_.shared[i].constant == constant && plan_.shared[i].place == of(reg).place) return static_cast<int>(i);
    if (plan_.shared.size() == most_shared) refuse(fmt::format("reads more than {} vectors that all rows share", most_shared));
    plan_.shared.push_back({constant, of(reg).place});
    return static_cast<int>(plan_.shared.size()) - 1;
  }
  static std::string index_of(const Read& read) {
    if (!read.index.empty()) return read.index;
    if (read.step == 0) return std::to_string(read.begin);
    if (read.step == 1) return fmt::format("{} + at.unit", read.begin);
    return fmt::format("{} + {} * at.unit", read.begin, read.step);
  }

  /// Text of one stage.
  struct Stage {
    int number = 0;
    std::vector<std::string> asked;
    std::set<std::pair<int, std::int64_t>> loaded;
    std::string text;
  };

  static std::string name(int reg, std::int64_t part) { return fmt::format("r{}_{}", reg, part); }

  /// Values that no block writes are asked for before the blocks meet, as many as registers hold.
  std::string asked(Stage& stage, const std::string& text) {
    auto found = std::find(stage.asked.begin(), stage.asked.end(), text);
    if (found == stage.asked.end()) {
      if (stage.asked.size() == most_asked) return text;
      stage.asked.push_back(text);
      found = stage.asked.end() - 1;
    }
    return fmt::format("asked[{}]", found - stage.asked.begin());
  }

  std::string value(Stage& stage, const Read& read, bool by_unit) {
    if (is_shared(read.reg)) {
      const RowRegister& reg = of(read.reg);
      if (reg.kind == RowRegister::Kind::constant && reg.width == 1 && read.index.empty())
        return bits(desc_.numbers[reg.place].copy_to(CpuPlace{}).item());
      return asked(stage, fmt::format("at.template shared<{}>({})", shared_number(read.reg), index_of(read)));
    }
    if (is_state(read.reg)) {
      const std::size_t state = input_of(read.reg).place;
      if (is_local(read, by_unit))
        return load(stage, read.reg, part_of(read), fmt::format("at.template state<{}, {}>({})", state, changes(read.reg), index_of(read)));
      return fmt::format("at.template staged<{}, {}>({})", stage.number, row_vector(read.reg), index_of(read));
    }
    if (!is_made(read.reg)) {
      const char* kind = input_of(read.reg).kind == CellDesc::Input::Kind::truth ? "truth" : "input";
      return asked(stage, fmt::format("at.template {}<{}>({})", kind, input_number(read.reg), index_of(read)));
    }
    if (!is_local(read, by_unit)) return fmt::format("at.template staged<{}, {}>({})", stage.number, row_vector(read.reg), index_of(read));
    const std::int64_t part = part_of(read);
    if (maker(read.reg, part).stage < stage.number) return load(stage, read.reg, part, fmt::format("at.kept({})", keep(read.reg, part)));
    return name(read.reg, part);
  }
  std::string load(Stage& stage, int reg, std::int64_t part, const std::string& text) {
    if (stage.loaded.insert({reg, part}).second) stage.text += fmt::format("    const float {} = {};\n", name(reg, part), text);
    return name(reg, part);
  }
  int keep(int reg, std::int64_t part) {
    const auto [found, fresh] = kept_.insert({{reg, part}, plan_.kept});
    if (fresh) ++plan_.kept;
    return found->second;
  }

  /// Stores (reg, part), whose value is `value`, where it goes; next states at the end alone, behind the last look at the state before.
  void store(Stage& stage, int reg, std::int64_t part, const std::string& value, bool at_end) {
    const auto sink = sinks_.find(reg);
    if (sink == sinks_.end()) return;
    const bool wide = is_wide(reg);
    const std::int64_t first = wide ? part * plan_.units : part;
    const std::string element = wide ? fmt::format("{} + at.unit", first) : std::to_string(first);
    const std::string once = wide ? "" : "if (at.unit == 0) ";
    if (at_end)
      for (const std::size_t state : sink->second.next)
        stage.text += fmt::format("    {}at.template next<{}>({}, {});\n", once, state, element, value);
    if (at_end && is_made(reg)) return;
    for (const std::size_t output : sink->second.outputs)
      stage.text += fmt::format("    {}at.template output<{}>({}, {});\n", once, output, element, value);
    for (const int v : sink->second.vectors) {
      const CellPlan::Vector& vector = plan_.vectors[static_cast<std::size_t>(v)];
      const std::int64_t begin = vector.begin, end = begin + vector.width, size = wide ? plan_.units : 1;
      if (first >= end || first + size <= begin) continue;
      std::string when = once;
      if (first < begin || first + size > end) when = fmt::format("if ({0} >= {1} && {0} < {2}) ", element, begin, end);
      stage.text += fmt::format("    {}at.template exchange<{}>({} - {}, {});\n", when, v, element, begin, value);
    }
  }

  Stage write_stage(int number) {
    Stage stage;
    stage.number = number;
    for (const Statement& one : statements_) {
      if (one.stage != number) continue;
      std::string text = one.text;
      for (std::size_t i = 0; i < one.reads.size(); ++i)
        text = replaced(text, fmt::format("{{{}}}", i), value(stage, one.reads[i], by_unit(one)));
      text = replaced(text, "{s}", std::to_string(number));
      for (std::size_t p = 0; p < plan_.products.size(); ++p)
        text = replaced(text, fmt::format("{{p{}}}", p), std::to_string(firsts_[static_cast<std::ptrdiff_t>(p)]));
      for (std::size_t f = 0; f < folds_.size(); ++f) text = replaced(text, fmt::format("{{f{}}}", f), std::to_string(folds_[f].first));
      stage.text += fmt::format("    const float {} = {};\n", name(one.reg, one.part), text);
      if (needed_later_.contains({one.reg, one.part}))
        stage.text += fmt::format("    at.kept({}) = {};\n", keep(one.reg, one.part), name(one.reg, one.part));
      store(stage, one.reg, one.part, name(one.reg, one.part), false);
    }
    if (number + 1 == plan_.stages) write_end(stage);
    return stage;
  }

  /// Next states, and what goes out as it came in.
  void write_end(Stage& stage) {
    std::vector<std::pair<std::pair<int, std::int64_t>, std::string>> values;
    for (const auto& [reg, sink] : sinks_) {
      if (is_made(reg) && sink.next.empty()) continue;
      for (std::int64_t part = 0; part < parts(reg); ++part) {
        Read read{reg, is_wide(reg) ? part * plan_.units : part, is_wide(reg) ? 1 : 0, {}};
        values.push_back({{reg, part}, value(stage, read, is_wide(reg))});
      }
    }
    for (const auto& [at, text] : values) store(stage, at.first, at.second, text, true);
  }

  void find_needed_later() {
    for (const Statement& one : statements_)
      for (const Read& read : one.reads)
        if (is_made(read.reg) && is_local(read, by_unit(one)) && maker(read.reg, part_of(read)).stage < one.stage)
          needed_later_.insert({read.reg, part_of(read)});
    for (const auto& [reg, sink] : sinks_) {
      if (!is_made(reg) || sink.next.empty()) continue;
      for (std::int64_t part = 0; part < parts(reg); ++part)
        if (maker(reg, part).stage + 1 < plan_.stages) needed_later_.insert({reg, part});
    }
  }
  /// A narrow state that goes out or on as it is: read from its vector, which must be staged by then.
  void stage_narrow_states() {
    for (const auto& [reg, sink] : sinks_)
      if (is_state(reg) && !is_wide(reg)) narrow_.push_back(reg);
    for (const int reg : narrow_) mark(row_vector(reg), plan_.stages - 1);
    if (!narrow_.empty()) {
      sinks_.clear();
      find_sinks();
    }
  }

  void write() {
    stage_narrow_states();
    find_needed_later();
    std::vector<Stage> stages;
    for (int number = 0; number < plan_.stages; ++number) stages.push_back(write_stage(number));
    std::size_t most = 1;
    for (const Stage& stage : stages) most = std::max(most, stage.asked.size());
    std::string text = "#include <millrace/kernels/cuda/recurrent/cell.cuh>\n\nnamespace millrace::cuda {\nnamespace {\n\nstruct Cell {\n";
    text += fmt::format("  using Factor = {};\n", desc_.factors == DType::bf16 ? "bfloat16" : desc_.tf32 ? "TensorFloat32" : "float");
    text += fmt::format(
        "  static constexpr int units = {}, stages = {}, sums = {}, asked = {}, vector_count = {}, product_count = {}, fold_count = {};\n",
        plan_.units, plan_.stages, sums_, most, plan_.vectors.size(), plan_.products.size(), folds_.size());
    text += "  [[maybe_unused]] static constexpr CellVector vectors[] = {";
    for (const CellPlan::Vector& v : plan_.vectors)
      text += fmt::format("{{{}, {}u, {}, {}, {}, {}}}, ", v.width, v.reads, v.factors, v.state, v.begin,
                          v.state < 0 || desc_.states[static_cast<std::size_t>(v.state)].next >= 0);
    if (plan_.vectors.empty()) text += "{}";
    text += "};\n  [[maybe_unused]] static constexpr CellProduct products[] = {";
    for (std::size_t p = 0; p < plan_.products.size(); ++p)
      text += fmt::format("{{{}, {}, {}, {}}}, ", plan_.products[p].stage, plan_.products[p].vector, plan_.products[p].gates,
                          firsts_[static_cast<std::ptrdiff_t>(p)]);
    if (plan_.products.empty()) text += "{}";
    text += "};\n  [[maybe_unused]] static constexpr CellFoldOf folds[] = {";
    for (const Fold& f : folds_)
      text += fmt::format("{{{}, {}, {}, {}, {}, CellFold::{}, {}, {}}}, ", f.stage, f.vector, f.begin, f.outer, f.inner, f.kind,
                          bits(f.epsilon), f.first);
    if (folds_.empty()) text += "{}";
    text += "};\n\n";
    text += "  template <int S, class At>\n  MILLRACE_DEVICE static void ask(const At& at, float* asked) {\n";
    for (const Stage& stage : stages) {
      text += fmt::format("    if constexpr (S == {}) {{\n", stage.number);
      for (std::size_t i = 0; i < stage.asked.size(); ++i) text += fmt::format("      asked[{}] = {};\n", i, stage.asked[i]);
      text += "    }\n";
    }
    text +=
        "  }\n\n  template <int S, class At>\n  MILLRACE_DEVICE static void pointwise(const At& at, const float* sums, const float* asked) "
        "{\n";
    for (const Stage& stage : stages)
      text += fmt::format("    if constexpr (S == {}) {{\n", stage.number) + replaced(stage.text, "\n    ", "\n      ") + "    }\n";
    text += "  }\n};\n\n}  // namespace\n}  // namespace millrace::cuda\n\nMILLRACE_CELL_KERNEL(millrace::cuda::Cell)\n";
    plan_.source = std::move(text);
  }

  const CellDesc& desc_;
  const std::vector<RowRegister>& regs_;
  CellPlan plan_;
  std::vector<Statement> statements_;
  std::map<std::pair<int, std::int64_t>, std::size_t> made_;
  std::map<std::pair<std::pair<int, bool>, std::pair<std::int64_t, std::int64_t>>, int> vectors_;
  std::vector<int> vector_regs_, narrow_;
  std::vector<Fold> folds_;
  std::map<std::ptrdiff_t, int> firsts_;  // of the sums, by product
  std::map<int, Sink> sinks_;
  std::map<std::pair<int, std::int64_t>, int> kept_;
  std::set<std::pair<int, std::int64_t>> needed_later_;
  int sums_ = 2;
};

}  // namespace

CellPlan make_cell_plan(const CellDesc& desc) { return Generator(desc).run(); }

std::string CellPlan::to_string() const {
  std::string text = fmt::format("{} stage{} of {} unit{}", stages, stages == 1 ? "" : "s", units, units == 1 ? "" : "s");
  for (const Product& product : products)
    text += fmt::format(", a product of {} × {} in stage {}", vectors[static_cast<std::size_t>(product.vector)].width,
                        product.gates * units, product.stage);
  return text;
}

}  // namespace millrace
