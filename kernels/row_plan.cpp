// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/row_plan.h>

#include <algorithm>
#include <map>
#include <string>
#include <type_traits>

#include <millrace/kernels/cpu/fold_kernels.h>
#include <millrace/kernels/cpu/gemm_kernels.h>
#include <millrace/kernels/cpu/row_plan.h>
#include <millrace/kernels/internal/lstm_gates.h>
#include <millrace/kernels/internal/row_sections.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

using Kind = RowOp::Kind;

/// The memory of a block, beside its views, should stay in the second cache; the memory that a tile touches, in the first.
constexpr std::int64_t block_bytes = 384 << 10;
constexpr std::int64_t tile_bytes = 48 << 10;
constexpr std::int64_t line = 16;  // elements

/// Ops that run over a whole block.
bool is_heavy(const RowOp& op) {
  return op.kind == Kind::matmul || op.kind == Kind::matmul_int8 || op.kind == Kind::lstm_cell || op.kind == Kind::function;
}
/// Ops that only f32 has.
bool is_narrow(const RowOp& op) { return op.kind == Kind::round_bf16 || op.kind == Kind::quantize || op.kind == Kind::matmul_int8; }

std::int64_t lines(std::int64_t elements) { return (elements + line - 1) / line * line; }

/// Lays registers out so that two whose lives overlap never share an element.
class Layout {
 public:
  std::int64_t place(std::int64_t size, std::int64_t from, std::int64_t to) {
    std::vector<Held> near = alive(from, to);
    std::sort(near.begin(), near.end(), [](const Held& a, const Held& b) { return a.offset < b.offset; });
    std::int64_t offset = 0;
    for (const Held& held : near) {
      if (offset + size <= held.offset) break;
      offset = std::max(offset, held.offset + held.size);
    }
    held_.push_back({offset, size, from, to});
    size_ = std::max(size_, offset + size);
    return offset;
  }
  /// Puts it exactly where one lies that ends when it begins. False when something else lives there.
  bool follow(std::int64_t offset, std::int64_t size, std::int64_t from, std::int64_t to) {
    for (const Held& held : alive(from, to)) {
      const bool ends = held.offset == offset && held.size == size && held.to == from + 1;
      if (!ends && held.offset < offset + size && offset < held.offset + held.size) return false;
    }
    held_.push_back({offset, size, from, to});
    return true;
  }
  std::int64_t size() const { return size_; }

 private:
  struct Held {
    std::int64_t offset, size, from, to;
  };
  std::vector<Held> alive(std::int64_t from, std::int64_t to) const {
    std::vector<Held> found;
    for (const Held& held : held_)
      if (held.from <= to && from <= held.to) found.push_back(held);
    return found;
  }
  std::vector<Held> held_;
  std::int64_t size_ = 0;
};

/// Operands that an op reads, in `in` alone.
std::size_t operands(const RowOp& op) {
  switch (op.kind) {
    case Kind::binary:
    case Kind::matmul_int8: return 2;
    case Kind::where:
    case Kind::lstm_cell:
    case Kind::layer_norm_gradient: return 3;
    case Kind::layer_norm: return op.in[2].reg >= 0 ? 3 : 2;
    case Kind::function:
      return static_cast<std::size_t>(std::find_if(op.in, op.in + RowOp::most_inputs, [](const RowOperand& in) { return in.reg < 0; }) -
                                      op.in);
    default: return 1;
  }
}

/// Reads the gates of a GRU back out of the ops that spell them (cpu/gru_kernels.h).
class GruFinder {
 public:
  explicit GruFinder(const RowDesc& desc) : desc_(desc), written_(desc.registers.size(), -1), uses_(desc.registers.size(), 0) {
    for (std::size_t i = 0; i < desc.ops.size(); ++i) {
      const RowOp& op = desc.ops[i];
      for (const RowOperand* out : {&op.out, &op.out2})
        if (out->reg >= 0)
          written_[static_cast<std::size_t>(out->reg)] = written_[static_cast<std::size_t>(out->reg)] == -1 ? static_cast<int>(i) : -2;
      for (std::size_t k = 0; k < operands(op); ++k) ++uses_[static_cast<std::size_t>(op.in[k].reg)];
    }
  }

  /// The gates whose last op is `last`, and their first op: all ops between are theirs.
  std::optional<std::pair<RowPlan::State::Gru, std::size_t>> ending_at(std::size_t last) {
    ops_.assign(1, last);
    const RowOp& sum = desc_.ops[last];
    hidden_ = sum.outer * sum.inner;
    if (hidden_ == 0 || sum.kind != Kind::binary || sum.binary != Binary::add || !plain(sum, hidden_) || sum.out.reg == sum.in[0].reg ||
        sum.out.reg == sum.in[1].reg)
      return std::nullopt;
    const RowOp* const old = made(sum.in[0], Kind::binary, Binary::mul, 1);
    const RowOp* const fresh = made(sum.in[1], Kind::binary, Binary::mul, 1);
    if (old == nullptr || fresh == nullptr) return std::nullopt;
    RowPlan::State::Gru gru;
    gru.hidden = hidden_;
    gru.out = sum.out;
    gru.h = old->in[1];
    gru.turned = complement(fresh->in[0]) == nullptr;
    const RowOp* const rest = complement((gru.turned ? old : fresh)->in[0]);
    const RowOperand z = (gru.turned ? fresh : old)->in[0];
    const RowOp* const n = made(fresh->in[1], Kind::unary, Unary::tanh, 1);
    if (rest == nullptr || n == nullptr || !same(rest->in[1], z)) return std::nullopt;
    gru.one = rest->in[0];
    const RowOp* const inner = made(n->in[0], Kind::binary, Binary::add, 1);
    const RowOp* const reset = inner == nullptr ? nullptr : made(inner->in[1], Kind::binary, Binary::mul, 1);
    if (reset == nullptr) return std::nullopt;
    gru.x_candidate = inner->in[0];
    gru.candidate = reset->in[1];
    if (const RowOp* const biased = with_bias(gru.candidate, hidden_)) {
      gru.candidate_bias = biased->in[1];
      gru.candidate = biased->in[0];
    }
    const RowOperand r = reset->in[0];
    const RowOp* const gates = made({r.reg, 0, 0, 1}, Kind::unary, Unary::sigmoid, 3, 2);
    if (gates == nullptr || r.begin != 0 || z.reg != r.reg || z.begin != hidden_) return std::nullopt;
    const RowOp* const outer = made(gates->in[0], Kind::binary, Binary::add, 1, 2);
    if (outer == nullptr) return std::nullopt;
    gru.x = outer->in[1];
    gru.sums = outer->in[0];
    if (const RowOp* const biased = with_bias(gru.sums, 2 * hidden_)) {
      gru.gates_bias = biased->in[1];
      gru.sums = biased->in[0];
    }
    std::sort(ops_.begin(), ops_.end());
    ops_.erase(std::unique(ops_.begin(), ops_.end()), ops_.end());
    if (ops_.back() - ops_.front() + 1 != ops_.size() || ops_.back() != last) return std::nullopt;
    for (const RowOperand* in : {&gru.sums, &gru.candidate, &gru.x, &gru.x_candidate, &gru.h})
      if (std::any_of(ops_.begin(), ops_.end(), [&](std::size_t op) { return desc_.ops[op].out.reg == in->reg; })) return std::nullopt;
    return std::pair(gru, ops_.front());
  }

 private:
  static bool same(const RowOperand& a, const RowOperand& b) { return a.reg == b.reg && a.begin == b.begin; }
  /// Each row's `count` elements lie side by side in all operands.
  static bool plain(const RowOp& op, std::int64_t count) {
    const auto fits = [&](const RowOperand& x) { return x.inner_step == 1 && cpu::lies_whole(op, x); };
    return op.outer * op.inner == count && fits(op.out) && std::all_of(op.in, op.in + operands(op), fits);
  }
  /// The op that gives all of a scratch register, `operand`, which `uses` operands read.
  const RowOp* giving(const RowOperand& operand, int uses, std::int64_t width) {
    const auto reg = static_cast<std::size_t>(operand.reg);
    if (desc_.registers[reg].kind != RowRegister::Kind::scratch || desc_.registers[reg].width != width || written_[reg] < 0 ||
        uses_[reg] != uses)
      return nullptr;
    const RowOp& op = desc_.ops[static_cast<std::size_t>(written_[reg])];
    if (op.out.reg != operand.reg || op.out.begin != 0 || op.outer * op.inner != width) return nullptr;
    ops_.push_back(static_cast<std::size_t>(written_[reg]));
    return &op;
  }
  template <class Function>
  const RowOp* made(const RowOperand& operand, Kind kind, Function function, int uses, std::int64_t times = 1) {
    if (operand.begin != 0) return nullptr;
    const RowOp* const op = giving(operand, uses, times * hidden_);
    if (op == nullptr || op->kind != kind || !plain(*op, times * hidden_)) return nullptr;
    if constexpr (std::is_same_v<Function, Unary>)
      return op->unary == function ? op : nullptr;
    else
      return op->binary == function ? op : nullptr;
  }
  /// One number less something.
  const RowOp* complement(const RowOperand& operand) {
    const auto ops = ops_.size();
    const RowOp* const op = operand.begin == 0 ? giving(operand, 1, hidden_) : nullptr;
    if (op != nullptr && op->kind == Kind::binary && op->binary == Binary::sub && op->in[0].inner_step == 0 && op->in[1].inner_step == 1 &&
        cpu::lies_whole(*op, op->in[0]) && cpu::lies_whole(*op, op->in[1]))
      return op;
    ops_.resize(ops);
    return nullptr;
  }
  /// Sums with a bias, the same for all rows, behind them.
  const RowOp* with_bias(const RowOperand& operand, std::int64_t width) {
    const auto ops = ops_.size();
    const RowOp* const op = operand.begin == 0 ? giving(operand, 1, width) : nullptr;
    if (op != nullptr && op->kind == Kind::binary && op->binary == Binary::add && plain(*op, width)) return op;
    ops_.resize(ops);
    return nullptr;
  }

  const RowDesc& desc_;
  std::vector<int> written_;  // by register: the op that alone writes it; -1: none, -2: several
  std::vector<int> uses_;
  std::vector<std::size_t> ops_;
  std::int64_t hidden_ = 0;
};

class Planner {
 public:
  explicit Planner(RowPlan::State& state) : state_(state), desc_(state.desc) {}

  void run() {
    check();
    find_groups();
    find_lives();
    place_block();
    place_tiles();
    find_functions(desc_.ops, state_.functions);
    const auto is_pattern = [](const RowPlan::State::Group& group) { return group.is_pattern(); };
    if (std::none_of(state_.groups.begin(), state_.groups.end(), is_pattern)) state_.sections = internal::find_sections(desc_);
    if (state_.sections) find_functions(state_.sections->ops[0], state_.sections->functions);
    for (std::size_t i = 0; i < desc_.registers.size(); ++i)
      if (desc_.registers[i].kind == RowRegister::Kind::input || desc_.registers[i].kind == RowRegister::Kind::output)
        state_.given.push_back(i);
    const auto registers = static_cast<std::int64_t>(desc_.registers.size());
    state_.table_bytes = lines(registers * 3) * 8;
    state_.machine_bytes = state_.table_bytes + lines(state_.elements) * element_bytes();
  }

 private:
  struct Life {
    std::int64_t first = -1;  // 2·op of the first write
    std::int64_t last = -1;   // 2·op + 1 of the last read
    std::int64_t first_group = -1;
    std::int64_t last_group = -1;
    bool used = false;
  };

  [[noreturn]] static void refuse(std::size_t op, const std::string& why) {
    throw ArgumentError("row plan: op " + std::to_string(op) + ": " + why);
  }

  void check_operand(std::size_t at, const RowOperand& operand, std::int64_t outer, std::int64_t inner) const {
    if (operand.reg < 0 || std::cmp_greater_equal(operand.reg, desc_.registers.size())) refuse(at, "expected a register");
    const std::int64_t out = std::max<std::int64_t>(outer - 1, 0) * operand.outer_step;
    const std::int64_t in = std::max<std::int64_t>(inner - 1, 0) * operand.inner_step;
    const std::int64_t first = operand.begin + std::min<std::int64_t>(out, 0) + std::min<std::int64_t>(in, 0);
    const std::int64_t last = operand.begin + std::max<std::int64_t>(out, 0) + std::max<std::int64_t>(in, 0);
    if (operand.begin < 0 || (outer * inner > 0 && (first < 0 || last >= desc_.registers[static_cast<std::size_t>(operand.reg)].width)))
      refuse(at, "an operand leaves its register of " + std::to_string(desc_.registers[static_cast<std::size_t>(operand.reg)].width));
  }

  void check() const {
    if (desc_.dtype != DType::f32 && desc_.dtype != DType::f64)
      throw DTypeError("row plan: expected f32 or f64, found " + std::string(name_of(desc_.dtype)));
    std::vector<bool> written;
    for (const RowRegister& reg : desc_.registers)
      written.push_back(reg.kind == RowRegister::Kind::input || reg.kind == RowRegister::Kind::constant);
    for (std::size_t i = 0; i < desc_.ops.size(); ++i) {
      const RowOp& op = desc_.ops[i];
      for (std::size_t k = 0; k < operands(op); ++k) {
        // Scales and biases have the elements of one row.
        const bool norm = (op.kind == Kind::layer_norm && k > 0) || (op.kind == Kind::layer_norm_gradient && k == 1);
        const bool whole = !is_heavy(op) && !norm;
        check_operand(i, op.in[k], whole || op.kind == Kind::function ? op.outer : 1, whole || norm ? op.inner : 1);
        if (!written[static_cast<std::size_t>(op.in[k].reg)]) refuse(i, "reads a register that nothing wrote");
        const bool columns = op.kind == Kind::reduce && op.in[0].inner_step != 1;
        if (columns && (op.in[0].outer_step != 1 || op.out.outer_step != 1 || op.reduction == Reduction::log_sum_exp))
          refuse(i, "expected rows or columns side by side");
        if (is_elementwise(op) && op.in[k].inner_step != 0 && op.in[k].inner_step != 1) refuse(i, "expected elements side by side");
      }
      for (const RowOperand* out : {&op.out, &op.out2}) {
        if (out->reg < 0 && out == &op.out2 && op.kind != Kind::lstm_cell && op.kind != Kind::quantize &&
            op.kind != Kind::layer_norm_gradient)
          continue;
        check_operand(i, *out, op.kind == Kind::function ? op.outer : 1, 1);
        const RowRegister::Kind kind = desc_.registers[static_cast<std::size_t>(out->reg)].kind;
        if (kind != RowRegister::Kind::output && kind != RowRegister::Kind::scratch) refuse(i, "writes what is not its own");
        written[static_cast<std::size_t>(out->reg)] = true;
      }
      if ((op.kind == Kind::unary && !row_plan_has(op.unary)) || (op.kind == Kind::reduce && op.reduction == Reduction::prod) ||
          (is_narrow(op) && desc_.dtype != DType::f32))
        refuse(i, "a function that row plans of that dtype do not have");
    }
  }

  void find_groups() {
    std::map<std::size_t, RowPlan::State::Group> patterns;  // by first op
    GruFinder finder(desc_);
    for (std::size_t i = 0; i < desc_.ops.size(); ++i) {
      if (const auto found = finder.ending_at(i)) {
        patterns.emplace(found->second, RowPlan::State::Group{found->second, i + 1, 1, static_cast<int>(state_.gru.size()), -1});
        state_.gru.push_back(found->first);
      }
    }
    for (internal::FoundGates& found : internal::find_lstm_gates(desc_)) {
      patterns.emplace(found.first, RowPlan::State::Group{found.first, found.last + 1, 1, -1, static_cast<int>(state_.lstm.size())});
      state_.lstm.push_back(std::move(found.lstm));
    }
    for (std::size_t i = 0; i < desc_.ops.size(); ++i) {
      if (const auto found = patterns.find(i); found != patterns.end()) {
        state_.groups.push_back(found->second);
        i = found->second.last - 1;
        continue;
      }
      const bool heavy = is_heavy(desc_.ops[i]);
      const bool goes_on = !heavy && !state_.groups.empty() && state_.groups.back().tile > 0 && !state_.groups.back().is_pattern();
      if (goes_on)
        state_.groups.back().last = i + 1;
      else
        state_.groups.push_back({i, i + 1, heavy ? 0 : 1, -1, -1});
    }
  }

  void find_functions(const std::vector<RowOp>& ops, cpu::RowFunctionTable& table) const {
    desc_.dtype == DType::f64 ? find_functions<double>(ops, table) : find_functions<float>(ops, table);
  }
  template <class T>
  static void find_functions(const std::vector<RowOp>& ops, cpu::RowFunctionTable& table) {
    for (const RowOp& op : ops) {
      cpu::RowFunctions<T> found;
      if (op.kind == Kind::unary) found.unary = cpu::unary_function<T>(op.unary);
      if (op.kind == Kind::binary) found.binary = cpu::span_function<T>(op.binary);
      if (op.kind == Kind::where) found.where = cpu::where_function<T>();
      found.heavy = is_heavy(op);
      found.whole_row = is_elementwise(op) && op.outer * op.inner > 0 && cpu::lies_whole(op, op.out);
      for (std::size_t k = 0; k < operands(op); ++k) found.whole_row = found.whole_row && cpu::lies_whole(op, op.in[k]);
      std::get<std::vector<cpu::RowFunctions<T>>>(table).push_back(found);
    }
  }

  /// An op may write where it reads when each element depends on that one alone.
  static bool in_place(const RowOp& op, const RowOperand& in) {
    const bool flat = in.inner_step == 1 && (op.outer == 1 || in.outer_step == op.inner);
    const bool flat_out = op.out.inner_step == 1 && (op.outer == 1 || op.out.outer_step == op.inner);
    return is_elementwise(op) && flat && flat_out && in.begin == 0 && op.out.begin == 0;
  }

  void find_lives() {
    lives_.resize(desc_.registers.size());
    for (std::size_t g = 0; g < state_.groups.size(); ++g) {
      for (std::size_t i = state_.groups[g].first; i < state_.groups[g].last; ++i) {
        const RowOp& op = desc_.ops[i];
        const auto at = static_cast<std::int64_t>(2 * i);
        const auto touch = [&](const RowOperand& operand, std::int64_t end) {
          if (operand.reg < 0) return;
          Life& life = lives_[static_cast<std::size_t>(operand.reg)];
          if (!life.used) life = {at, at, static_cast<std::int64_t>(g), static_cast<std::int64_t>(g), true};
          life.last = std::max(life.last, end);
          life.last_group = static_cast<std::int64_t>(g);
        };
        for (std::size_t k = 0; k < operands(op); ++k) touch(op.in[k], at + 1);
        touch(op.out, at);
        touch(op.out2, at);
      }
    }
  }

  bool is_scratch(std::size_t reg) const { return desc_.registers[reg].kind == RowRegister::Kind::scratch && lives_[reg].used; }
  bool is_local(std::size_t reg) const {
    const Life& life = lives_[reg];
    return is_scratch(reg) && life.first_group == life.last_group && state_.groups[static_cast<std::size_t>(life.first_group)].tile > 0;
  }
  std::int64_t element_bytes() const { return desc_.dtype == DType::f64 ? 8 : 4; }

  /// Lays out what lives from group to group, for `rows` rows; returns how much it takes.
  std::int64_t lay_block(std::int64_t rows) {
    Layout layout;
    for (std::size_t reg = 0; reg < lives_.size(); ++reg) {
      if (!is_scratch(reg) || is_local(reg)) continue;
      const Life& life = lives_[reg];
      state_.places[reg] = {layout.place(lines(desc_.registers[reg].width * rows), life.first_group, life.last_group), false};
    }
    return layout.size();
  }

  void place_block() {
    state_.places.resize(lives_.size());
    const std::int64_t width = lay_block(1);
    state_.block_rows = std::clamp<std::int64_t>(block_bytes / std::max<std::int64_t>(1, width * element_bytes()), 8, cpu::max_rows);
    state_.elements = lay_block(state_.block_rows);
  }

  void place_tiles() {
    std::int64_t most = 0;
    for (std::size_t g = 0; g < state_.groups.size(); ++g) {
      RowPlan::State::Group& group = state_.groups[g];
      if (group.tile == 0) continue;
      if (group.lstm >= 0) {  // its values stay in registers
        group.tile = state_.block_rows;
        most = std::max(most, place_tile(static_cast<std::int64_t>(g)));
        continue;
      }
      // Local registers share their memory as they come and go.
      std::int64_t width = place_tile(static_cast<std::int64_t>(g));
      for (std::size_t reg = 0; reg < lives_.size(); ++reg)
        if (lives_[reg].used && !is_local(reg) && touches(group, static_cast<int>(reg)) &&
            desc_.registers[reg].kind != RowRegister::Kind::constant)
          width += desc_.registers[reg].width;
      group.tile = std::clamp<std::int64_t>(tile_bytes / std::max<std::int64_t>(1, width * element_bytes()), 1, state_.block_rows);
      if (folds(group)) group.tile = std::clamp<std::int64_t>(cpu::sum_rows, group.tile, state_.block_rows);
      most = std::max(most, place_tile(static_cast<std::int64_t>(g)));
    }
    state_.elements += most;
  }

  /// Sums go side by side, several rows at a time: one chain of additions alone would leave the adder idle.
  bool folds(const RowPlan::State::Group& group) const {
    return std::any_of(desc_.ops.begin() + static_cast<std::ptrdiff_t>(group.first),
                       desc_.ops.begin() + static_cast<std::ptrdiff_t>(group.last),
                       [](const RowOp& op) { return op.kind == Kind::reduce || op.kind >= Kind::softmax; });
  }

  /// The local registers of one group; returns how much they take.
  std::int64_t place_tile(std::int64_t group) {
    const std::int64_t tile = state_.groups[static_cast<std::size_t>(group)].tile;
    std::vector<std::size_t> locals;
    for (std::size_t reg = 0; reg < lives_.size(); ++reg)
      if (is_local(reg) && lives_[reg].first_group == group) locals.push_back(reg);
    std::sort(locals.begin(), locals.end(), [&](std::size_t a, std::size_t b) { return lives_[a].first < lives_[b].first; });
    Layout layout;
    for (const std::size_t reg : locals) {
      const Life& life = lives_[reg];
      const std::int64_t size = lines(desc_.registers[reg].width * tile);
      const std::optional<std::int64_t> same = dying(life.first, reg);
      const bool follows = same && layout.follow(*same, size, life.first, life.last);
      state_.places[reg] = {state_.elements + (follows ? *same : layout.place(size, life.first, life.last)), true};
    }
    return layout.size();
  }
  /// Where a register of the same width lies that the op which first writes `reg` is the last to read, element by element.
  std::optional<std::int64_t> dying(std::int64_t at, std::size_t reg) const {
    const RowOp& op = desc_.ops[static_cast<std::size_t>(at / 2)];
    // A register that the op reads twice may be overwritten where both reads are element by element: `u + u[0:1]` reads row 0 for each row.
    const auto read_in_place = [&op](int operand) {
      for (std::size_t k = 0; k < operands(op); ++k)
        if (op.in[k].reg == operand && !in_place(op, op.in[k])) return false;
      return true;
    };
    for (std::size_t k = 0; k < operands(op); ++k) {
      if (op.in[k].reg < 0 || !read_in_place(op.in[k].reg)) continue;
      const auto in = static_cast<std::size_t>(op.in[k].reg);
      if (is_local(in) && lives_[in].last == at + 1 && desc_.registers[in].width == desc_.registers[reg].width &&
          lives_[in].first_group == lives_[reg].first_group)
        return state_.places[in].offset - state_.elements;
    }
    return std::nullopt;
  }

  bool touches(const RowPlan::State::Group& group, int reg) const {
    for (std::size_t i = group.first; i < group.last; ++i) {
      const RowOp& op = desc_.ops[i];
      if (op.out.reg == reg || op.out2.reg == reg) return true;
      for (std::size_t k = 0; k < operands(op); ++k)
        if (op.in[k].reg == reg) return true;
    }
    return false;
  }

  RowPlan::State& state_;
  const RowDesc& desc_;
  std::vector<Life> lives_;
};

}  // namespace

RowPlan::RowPlan(RowDesc desc) {
  auto state = std::make_shared<State>();
  state->desc = std::move(desc);
  Planner(*state).run();
  state_ = std::move(state);
}

const RowDesc& RowPlan::desc() const noexcept { return state_->desc; }
std::int64_t RowPlan::block_rows() const noexcept { return state_->block_rows; }
std::int64_t RowPlan::workspace_bytes() const noexcept { return state_->machine_bytes * (sections() > 1 ? 2 : 1); }
std::int64_t RowPlan::sections() const noexcept { return state_->sections ? std::ssize(state_->sections->ops) : 1; }

bool is_elementwise(const RowOp& op) {
  return op.kind == RowOp::Kind::unary || op.kind == RowOp::Kind::binary || op.kind == RowOp::Kind::where ||
         op.kind == RowOp::Kind::round_bf16;
}

bool row_plan_has(Unary kind) { return kind != Unary::is_nan && kind != Unary::is_inf && kind != Unary::logical_not; }

void run(const RowPlan& plan, const RowWeights& weights, std::span<const RowView> inputs, std::span<const RowView> outputs,
         std::int64_t rows, void* workspace, SpinHelper* helper) {
  place(plan, weights, workspace);
  run_placed(plan, weights, inputs, outputs, rows, workspace, helper);
}

void place(const RowPlan& plan, const RowWeights& weights, void* workspace) {
  if (plan.desc().dtype == DType::f64) return cpu::place_registers<double>(plan.state(), weights, workspace);
  cpu::place_registers<float>(plan.state(), weights, workspace);
}

void run_placed(const RowPlan& plan, const RowWeights& weights, std::span<const RowView> inputs, std::span<const RowView> outputs,
                std::int64_t rows, void* workspace, SpinHelper* helper) {
  if (plan.desc().dtype == DType::f64) return cpu::run_rows<double>(plan.state(), weights, inputs, outputs, rows, workspace, helper);
  cpu::run_rows<float>(plan.state(), weights, inputs, outputs, rows, workspace, helper);
}

void run_tracks(const RowPlan& plan, const RowWeights& weights, std::span<const RowTrack> inputs, std::span<const RowTrack> outputs,
                std::int64_t rows, std::int64_t runs, void* workspace, SpinHelper* helper) {
  if (rows > plan.block_rows())
    throw ArgumentError("row plan: expected at most " + std::to_string(plan.block_rows()) + " rows, found " + std::to_string(rows));
  if (plan.desc().dtype == DType::f64)
    return cpu::run_tracks<double>(plan.state(), weights, inputs, outputs, rows, runs, workspace, helper);
  cpu::run_tracks<float>(plan.state(), weights, inputs, outputs, rows, runs, workspace, helper);
}

}  // namespace millrace
