// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/internal/lstm_gates.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <utility>

#include <millrace/kernels/cpu/lstm_gate_kernels.h>

namespace millrace::internal {
namespace {

using Kind = RowOp::Kind;
using Lstm = RowPlan::State::Lstm;
namespace gate = cpu::lstm_gates;
namespace gradient = cpu::lstm_gate_gradients;

bool same(const RowOperand& a, const RowOperand& b) { return a.reg == b.reg && a.begin == b.begin; }

class Finder {
 public:
  explicit Finder(const RowDesc& desc) : desc_(desc), uses_(desc.registers.size(), 0), writers_(desc.registers.size(), 0) {
    for (const RowOp& op : desc.ops) {
      for (const RowOperand& in : op.in)
        if (in.reg >= 0) ++uses_[static_cast<std::size_t>(in.reg)];
      for (const RowOperand* out : {&op.out, &op.out2})
        if (out->reg >= 0) ++writers_[static_cast<std::size_t>(out->reg)];
    }
  }

  /// The gates that end in op `sum`, which adds both parts of the next cell state.
  std::optional<FoundGates> gates(std::size_t sum) {
    const RowOp& op = desc_.ops[sum];
    if (op.kind != Kind::binary || op.binary != Binary::add || !begin(op)) return std::nullopt;
    Lstm cell{false, hidden_, std::vector<RowOperand>(gate::count)};
    if (!match_cell(op, cell)) return std::nullopt;
    add(sum);
    cell.operands[gate::c_out] = op.out;
    const std::vector<std::size_t> of_cell = ops_;
    Lstm whole = cell;
    if (match_output(op.out, whole)) {
      const std::vector<std::size_t> of_whole = ops_;
      Lstm summed = whole;
      if (match_terms(summed, 4))
        if (auto found = closed(std::move(summed))) return found;
      ops_ = of_whole;
      if (auto found = closed(std::move(whole))) return found;
    }
    ops_ = of_cell;
    Lstm four = cell;
    if (match_fourth(four) && match_terms(four, 4))
      if (auto found = closed(std::move(four))) return found;
    ops_ = of_cell;
    Lstm summed = cell;
    if (match_terms(summed, 3))
      if (auto found = closed(std::move(summed))) return found;
    ops_ = of_cell;
    return closed(std::move(cell));
  }

  /// The gradients around op `tanh`, which gives the gradient of gate g; with that of the output gate where it stands in front.
  std::optional<FoundGates> cell_gradients(std::size_t tanh) {
    for (const int k : {0, 1}) {
      Lstm cell{true, hidden_, std::vector<RowOperand>(gradient::count)};
      const RowOp* const product = begin_gradients(tanh);
      if (product == nullptr) return std::nullopt;
      const RowOperand d = product->in[k];
      if (!match_pair(tanh, d, product->in[1 - k], cell, {gradient::i, gradient::g, gradient::d_i, gradient::d_g})) continue;
      if (!match_forget(d, cell)) continue;
      const std::vector<std::size_t> of_cell = ops_;
      Lstm whole = cell;
      if (match_above(d, whole))
        if (auto found = closed(std::move(whole))) return found;
      ops_ = of_cell;
      cell.operands[gradient::d] = d;
      if (auto found = closed(std::move(cell))) return found;
    }
    return std::nullopt;
  }

  /// The gradients around op `tanh`, which gives the gradient of the tanh behind an output gate.
  std::optional<FoundGates> output_gradients(std::size_t tanh) {
    for (const int k : {0, 1}) {
      Lstm output{true, hidden_, std::vector<RowOperand>(gradient::count)};
      const RowOp* const product = begin_gradients(tanh);
      if (product == nullptr) return std::nullopt;
      if (!match_output_pair(tanh, product->in[k], product->in[1 - k], output)) continue;
      output.operands[gradient::d_a] = desc_.ops[tanh].out;
      if (auto found = closed(std::move(output))) return found;
    }
    return std::nullopt;
  }

 private:
  static constexpr std::size_t none = static_cast<std::size_t>(-1);
  /// The two gates of a product, and their gradients.
  struct Pair {
    int sigmoid, tanh, d_sigmoid, d_tanh;
  };

  void add(std::size_t op) { ops_.push_back(op); }
  bool begin(const RowOp& op) {
    ops_.clear();
    hidden_ = op.outer * op.inner;
    return hidden_ > 0 && plain(op, hidden_);
  }
  const RowOp* begin_gradients(std::size_t tanh) {
    const RowOp& op = desc_.ops[tanh];
    if (!begin(op) || !is(op, Binary::tanh_gradient)) return nullptr;
    const std::size_t product = inner(op.in[0], Binary::mul, 1, hidden_);
    return product == none ? nullptr : &desc_.ops[product];
  }

  /// Each row's `count` elements lie side by side in all operands.
  static bool plain(const RowOp& op, std::int64_t count) {
    const auto fits = [&](const RowOperand& x) { return x.reg < 0 || (x.inner_step == 1 && cpu::lies_whole(op, x)); };
    return op.outer * op.inner == count && fits(op.out) && std::all_of(std::begin(op.in), std::end(op.in), fits);
  }
  static bool is(const RowOp& op, Binary kind) { return op.kind == Kind::binary && op.binary == kind; }
  static bool is(const RowOp& op, Unary kind) { return op.kind == Kind::unary && op.unary == kind; }

  /// The op of this function that gives all of `operand`, the only one that writes its register.
  template <class Function>
  std::size_t made(const RowOperand& operand, Function kind, std::int64_t width) const {
    if (writers_[static_cast<std::size_t>(operand.reg)] != 1) return none;
    for (std::size_t i = 0; i < desc_.ops.size(); ++i)
      if (same(desc_.ops[i].out, operand) && is(desc_.ops[i], kind) && plain(desc_.ops[i], width)) return i;
    return none;
  }
  /// The op of this function that gives a scratch register with `uses` readers.
  std::size_t inner(const RowOperand& operand, Binary kind, int uses, std::int64_t width) const {
    const auto reg = static_cast<std::size_t>(operand.reg);
    const bool scratch = desc_.registers[reg].kind == RowRegister::Kind::scratch && desc_.registers[reg].width == width;
    return scratch && uses_[reg] == uses ? made(operand, kind, width) : none;
  }

  bool match_cell(const RowOp& sum, Lstm& lstm) {
    for (int choice = 0; choice < 8; ++choice) {
      const std::size_t kept = inner(sum.in[choice & 1], Binary::mul, 1, hidden_);
      const std::size_t fresh = inner(sum.in[1 - (choice & 1)], Binary::mul, 1, hidden_);
      if (kept == none || fresh == none) return false;
      const int of_f = choice >> 1 & 1, of_i = choice >> 2;
      const RowOperand f = desc_.ops[kept].in[of_f], i = desc_.ops[fresh].in[of_i], g = desc_.ops[fresh].in[1 - of_i];
      const std::size_t gates[3] = {made(i, Unary::sigmoid, hidden_), made(f, Unary::sigmoid, hidden_), made(g, Unary::tanh, hidden_)};
      if (std::find(gates, gates + 3, none) != gates + 3) continue;
      lstm.operands[gate::c] = desc_.ops[kept].in[1 - of_f];
      for (int k = 0; k < 3; ++k) take_gate(k, gates[k], lstm);
      add(kept);
      add(fresh);
      return true;
    }
    return false;
  }
  void take_gate(int k, std::size_t op, Lstm& lstm) {
    lstm.operands[static_cast<std::size_t>(gate::sum + k)] = desc_.ops[op].in[0];
    lstm.operands[static_cast<std::size_t>(gate::activation + k)] = desc_.ops[op].out;
    add(op);
  }

  bool match_output(const RowOperand& cell, Lstm& lstm) {
    for (std::size_t tanh = 0; tanh < desc_.ops.size(); ++tanh) {
      const RowOp& op = desc_.ops[tanh];
      if (!is(op, Unary::tanh) || !plain(op, hidden_) || !same(op.in[0], cell)) continue;
      for (std::size_t product = 0; product < desc_.ops.size(); ++product) {
        const RowOp& h = desc_.ops[product];
        if (!is(h, Binary::mul) || !plain(h, hidden_)) continue;
        const int k = same(h.in[0], op.out) ? 1 : 0;
        if (!same(h.in[1 - k], op.out)) continue;
        const std::size_t o = made(h.in[k], Unary::sigmoid, hidden_);
        if (o == none) continue;
        take_gate(3, o, lstm);
        lstm.operands[gate::cell_activation] = op.out;
        lstm.operands[gate::h_out] = h.out;
        add(tanh);
        add(product);
        return true;
      }
    }
    return false;
  }

  /// The output gate alone, of the same sums: something else than tanh is between the cell state and the product.
  bool match_fourth(Lstm& lstm) {
    const RowOperand* const sums = &lstm.operands[gate::sum];
    const auto taken = [&](const RowOperand& sum) {
      return std::any_of(sums, sums + 3, [&](const RowOperand& each) { return same(each, sum); });
    };
    for (std::size_t i = 0; i < desc_.ops.size(); ++i) {
      const RowOp& op = desc_.ops[i];
      if (!is(op, Unary::sigmoid) || !plain(op, hidden_) || op.in[0].reg != sums->reg || taken(op.in[0])) continue;
      take_gate(3, i, lstm);
      return true;
    }
    return false;
  }

  /// One or two sums that give all pre-activations.
  bool match_terms(Lstm& lstm, int gates) {
    const RowOperand whole{lstm.operands[gate::sum].reg, 0, 0, 1};
    const std::int64_t width = desc_.registers[static_cast<std::size_t>(whole.reg)].width;
    for (int k = 0; k < gates; ++k)
      if (lstm.operands[static_cast<std::size_t>(gate::sum + k)].reg != whole.reg) return false;
    const std::size_t outer = inner(whole, Binary::add, gates, width);
    if (outer == none) return false;
    add(outer);
    const RowOp& op = desc_.ops[outer];
    RowOperand terms[3] = {op.in[0], op.in[1], {}};
    for (const int k : {0, 1}) {
      const std::size_t sum = inner(op.in[k], Binary::add, 1, width);
      if (sum == none) continue;
      terms[0] = desc_.ops[sum].in[0];
      terms[1] = desc_.ops[sum].in[1];
      terms[2] = op.in[1 - k];
      add(sum);
      break;
    }
    for (int k = 0; k < gates; ++k) {
      const std::int64_t begin = lstm.operands[static_cast<std::size_t>(gate::sum + k)].begin;
      for (int term = 0; term < 3; ++term)
        if (terms[term].reg >= 0)
          lstm.operands[static_cast<std::size_t>(gate::sum + 4 * term + k)] = {terms[term].reg, terms[term].begin + begin, 0, 1};
    }
    return true;
  }

  /// d_tanh = tanh_gradient(d·sigmoid, tanh), which is op `last`, and d_sigmoid = sigmoid_gradient(d·tanh, sigmoid).
  bool match_pair(std::size_t last, const RowOperand& d, const RowOperand& sigmoid, Lstm& lstm, const Pair& pair) {
    const RowOp& op = desc_.ops[last];
    const RowOperand tanh = op.in[1];
    const std::size_t other = gradient_of(sigmoid, d, &tanh, none);
    if (other == none) return false;
    lstm.operands[static_cast<std::size_t>(pair.sigmoid)] = sigmoid;
    lstm.operands[static_cast<std::size_t>(pair.tanh)] = tanh;
    lstm.operands[static_cast<std::size_t>(pair.d_sigmoid)] = desc_.ops[other].out;
    lstm.operands[static_cast<std::size_t>(pair.d_tanh)] = op.out;
    add(last);
    add(inner(op.in[0], Binary::mul, 1, hidden_));
    add(other);
    add(inner(desc_.ops[other].in[0], Binary::mul, 1, hidden_));
    return true;
  }
  /// An op sigmoid_gradient(d·by, y) other than `but`; null for `by`: any.
  std::size_t gradient_of(std::optional<RowOperand> y, const RowOperand& d, const RowOperand* by, std::size_t but) const {
    for (std::size_t i = 0; i < desc_.ops.size(); ++i) {
      const RowOp& op = desc_.ops[i];
      if (i == but || !is(op, Binary::sigmoid_gradient) || !plain(op, hidden_) || (y && !same(op.in[1], *y))) continue;
      const std::size_t product = inner(op.in[0], Binary::mul, 1, hidden_);
      if (product == none) continue;
      const RowOp& mul = desc_.ops[product];
      for (const int k : {0, 1})
        if (same(mul.in[k], d) && (by == nullptr || same(mul.in[1 - k], *by))) return i;
    }
    return none;
  }

  bool match_forget(const RowOperand& d, Lstm& lstm) {
    std::size_t of_i = none;
    for (std::size_t i = 0; i < desc_.ops.size(); ++i)
      if (same(desc_.ops[i].out, lstm.operands[gradient::d_i])) of_i = i;
    const std::size_t of_f = gradient_of(std::nullopt, d, nullptr, of_i);
    if (of_f == none) return false;
    const RowOperand f = desc_.ops[of_f].in[1];
    const std::size_t product = inner(desc_.ops[of_f].in[0], Binary::mul, 1, hidden_);
    const RowOp& mul = desc_.ops[product];
    for (std::size_t i = 0; i < desc_.ops.size(); ++i) {
      const RowOp& op = desc_.ops[i];
      if (i == product || !is(op, Binary::mul) || !plain(op, hidden_)) continue;
      if (!(same(op.in[0], d) && same(op.in[1], f)) && !(same(op.in[1], d) && same(op.in[0], f))) continue;
      if (std::find(ops_.begin(), ops_.end(), i) != ops_.end()) continue;
      lstm.operands[gradient::f] = f;
      lstm.operands[gradient::c] = mul.in[same(mul.in[0], d) ? 1 : 0];
      lstm.operands[gradient::d_f] = desc_.ops[of_f].out;
      lstm.operands[gradient::dc_out] = op.out;
      add(of_f);
      add(product);
      add(i);
      return true;
    }
    return false;
  }

  bool match_output_pair(std::size_t tanh, const RowOperand& dh, const RowOperand& o, Lstm& lstm) {
    if (!match_pair(tanh, dh, o, lstm, {gradient::o, gradient::a, gradient::d_o, gradient::d_a})) return false;
    lstm.operands[gradient::dh] = dh;
    return true;
  }
  /// The gradient of the cell state as the sum of one that is given and of one that comes through the output gate.
  bool match_above(const RowOperand& d, Lstm& lstm) {
    constexpr int reads = 4;  // by the gradients of i, g, f and of the cell state before
    const std::size_t sum = inner(d, Binary::add, reads, hidden_);
    if (sum == none) return false;
    const std::vector<std::size_t> before = ops_;
    for (int choice = 0; choice < 4; ++choice) {
      ops_ = before;
      const RowOperand through = desc_.ops[sum].in[choice & 1];
      const std::size_t tanh = inner(through, Binary::tanh_gradient, 1, hidden_);
      if (tanh == none) continue;
      const std::size_t product = inner(desc_.ops[tanh].in[0], Binary::mul, 1, hidden_);
      if (product == none) continue;
      const RowOp& mul = desc_.ops[product];
      if (!match_output_pair(tanh, mul.in[choice >> 1], mul.in[1 - (choice >> 1)], lstm)) continue;
      lstm.operands[gradient::d_a] = {};
      lstm.operands[gradient::dc] = desc_.ops[sum].in[1 - (choice & 1)];
      add(sum);
      return true;
    }
    return false;
  }

  /// The pattern, if its ops stand together and read nothing that they write, but for what is theirs alone.
  std::optional<FoundGates> closed(Lstm lstm) {
    std::sort(ops_.begin(), ops_.end());
    if (std::adjacent_find(ops_.begin(), ops_.end()) != ops_.end() || ops_.back() - ops_.front() + 1 != ops_.size()) return std::nullopt;
    const int outputs = lstm.gradients ? int{gradient::outputs} : int{gate::outputs};
    const auto written = [&](const RowOperand& operand) {
      return operand.reg >= 0 &&
             std::any_of(ops_.begin(), ops_.end(), [&](std::size_t op) { return desc_.ops[op].out.reg == operand.reg; });
    };
    if (std::any_of(lstm.operands.begin(), lstm.operands.begin() + outputs, written)) return std::nullopt;
    for (auto out = lstm.operands.begin() + outputs; out != lstm.operands.end(); ++out)
      if (out->reg >= 0 && !lstm.gradients && is_dropped(*out)) *out = {};
    return FoundGates{std::move(lstm), ops_.front(), ops_.back()};
  }
  /// Whether a result is read by the ops of the pattern alone.
  bool is_dropped(const RowOperand& out) const {
    const auto reg = static_cast<std::size_t>(out.reg);
    int uses = 0;
    for (const std::size_t op : ops_)
      for (const RowOperand& in : desc_.ops[op].in) uses += in.reg == out.reg ? 1 : 0;
    return desc_.registers[reg].kind == RowRegister::Kind::scratch && uses == uses_[reg];
  }

  const RowDesc& desc_;
  std::vector<int> uses_;     // by register: operands that read it
  std::vector<int> writers_;  // by register: operands that write it
  std::vector<std::size_t> ops_;
  std::int64_t hidden_ = 0;
};

}  // namespace

std::vector<FoundGates> find_lstm_gates(const RowDesc& desc) {
  std::vector<FoundGates> found;
  Finder finder(desc);
  const auto take = [&](std::optional<FoundGates> each) {
    const auto shares = [&](const FoundGates& other) { return each->first <= other.last && other.first <= each->last; };
    if (each && std::none_of(found.begin(), found.end(), shares)) found.push_back(std::move(*each));
  };
  for (std::size_t i = 0; i < desc.ops.size(); ++i) {
    take(finder.gates(i));
    take(finder.cell_gradients(i));
  }
  for (std::size_t i = 0; i < desc.ops.size(); ++i) take(finder.output_gradients(i));
  std::sort(found.begin(), found.end(), [](const FoundGates& a, const FoundGates& b) { return a.first < b.first; });
  return found;
}

}  // namespace millrace::internal
