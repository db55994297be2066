// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/internal/row_sections.h>

#include <algorithm>

#include <millrace/tensor/dtype.h>

namespace millrace::internal {
namespace {

using Kind = RowOp::Kind;
using Sections = RowPlan::State::Sections;

/// Bytes of the states of all sections, before and behind a step, that leave room for little else in a first cache.
constexpr std::int64_t first_cache = 32 << 10;
/// The most elements of a result that each section computes for itself.
constexpr std::int64_t few = 16;

/// The section that an element belongs to.
enum Owner : int { nobody = -1, everybody = -2, several = -3 };

class Finder {
 public:
  explicit Finder(const RowDesc& desc) : desc_(desc), owners_(desc.registers.size()), readers_(desc.registers.size()) {
    for (std::size_t reg = 0; reg < desc.registers.size(); ++reg) {
      const RowRegister& each = desc.registers[reg];
      const bool given = each.kind == RowRegister::Kind::input || each.kind == RowRegister::Kind::constant;
      owners_[reg].assign(static_cast<std::size_t>(each.width), given ? everybody : nobody);
      if (each.kind == RowRegister::Kind::input) readers_[reg].assign(static_cast<std::size_t>(each.width), nobody);
    }
  }

  std::optional<Sections> find() {
    if (!find_count()) return std::nullopt;
    Sections made;
    made.ops.resize(static_cast<std::size_t>(count_));
    for (const RowOp& op : desc_.ops) {
      const bool parted = falls_apart(op);
      // Two threads may run two sections: results that all sections compute lie in scratch, which each thread has for itself.
      const bool for_all = is_pointwise(op) && op.outer * op.inner <= few && is_scratch(op.out);
      if (!parted && !for_all) return std::nullopt;
      for (std::int64_t s = 0; s < count_; ++s) {
        RowOp part = parted ? part_of(op, s) : op;
        if (!reads(part, s)) return std::nullopt;
        made.ops[static_cast<std::size_t>(s)].push_back(part);
      }
      for (std::int64_t s = 0; s < count_; ++s)
        if (!writes(made.ops[static_cast<std::size_t>(s)].back(), parted ? static_cast<int>(s) : everybody)) return std::nullopt;
    }
    for (std::size_t input = 0; input < desc_.registers.size(); ++input)
      for (std::size_t output = 0; output < desc_.registers.size(); ++output)
        if (is_handed(input, output)) made.handed.push_back({input, output, in_place(input, output)});
    return made;
  }

 private:
  bool find_count() {
    std::int64_t most = 0;
    for (const RowOp& op : desc_.ops) {
      if (op.kind != Kind::function || op.outer == 1) continue;
      if (count_ != 0 && op.outer != count_) return false;
      count_ = op.outer;
      most = std::max(most, op.outer * op.in[0].outer_step);
    }
    return count_ > 1 && 2 * most * static_cast<std::int64_t>(size_of(desc_.dtype)) > first_cache;
  }

  bool is_scratch(const RowOperand& operand) const {
    return desc_.registers[static_cast<std::size_t>(operand.reg)].kind == RowRegister::Kind::scratch;
  }
  static bool is_pointwise(const RowOp& op) { return is_elementwise(op) || op.kind == Kind::copy; }

  bool falls_apart(const RowOp& op) const {
    const bool has_rows = op.kind == Kind::reduce || op.kind == Kind::softmax || op.kind == Kind::log_softmax || op.kind == Kind::function;
    if (!has_rows && !is_pointwise(op)) return false;
    if (op.outer == 1 && is_pointwise(op)) return op.inner % count_ == 0;
    return op.outer % count_ == 0;
  }

  RowOp part_of(const RowOp& op, std::int64_t section) const {
    RowOp part = op;
    const bool rows = op.outer != 1;
    (rows ? part.outer : part.inner) /= count_;
    const auto move = [&](RowOperand& operand) {
      if (operand.reg >= 0) operand.begin += section * (rows ? part.outer * operand.outer_step : part.inner * operand.inner_step);
    };
    std::for_each(std::begin(part.in), std::end(part.in), move);
    move(part.out);
    move(part.out2);
    return part;
  }

  /// Calls f for the place of each element of an operand. An operand of a function without steps between its rows has an element at least.
  template <class F>
  void each_element(const RowOp& op, const RowOperand& operand, F f) const {
    const bool folded = op.kind == Kind::reduce && (&operand == &op.out);
    const bool row = op.kind == Kind::function;
    const std::int64_t inner = row ? std::max<std::int64_t>(1, operand.outer_step) : folded ? 1 : op.inner;
    const std::int64_t step = row ? 1 : operand.inner_step;
    if (desc_.registers[static_cast<std::size_t>(operand.reg)].width == 0) return;
    for (std::int64_t o = 0; o < op.outer; ++o)
      for (std::int64_t i = 0; i < inner; ++i) f(static_cast<std::size_t>(operand.begin + o * operand.outer_step + i * step));
  }

  /// Whether a section's part of an op reads nothing that another section wrote.
  bool reads(const RowOp& part, std::int64_t section) {
    bool own = true;
    for (const RowOperand& in : part.in) {
      if (in.reg < 0) continue;
      const auto reg = static_cast<std::size_t>(in.reg);
      std::vector<int>& readers = readers_[reg];
      each_element(part, in, [&](std::size_t at) {
        own = own && (owners_[reg][at] == everybody || owners_[reg][at] == section);
        if (!readers.empty()) readers[at] = readers[at] == nobody || readers[at] == section ? static_cast<int>(section) : several;
      });
    }
    return own;
  }

  /// Whether no element of an output is written by two sections, of which the later one in the order of ops has to win.
  bool writes(const RowOp& part, int owner) {
    bool alone = true;
    for (const RowOperand* const out : {&part.out, &part.out2}) {
      if (out->reg < 0) continue;
      const bool given = !is_scratch(*out);
      each_element(part, *out, [&](std::size_t at) {
        int& of = owners_[static_cast<std::size_t>(out->reg)][at];
        alone = alone && (!given || of == nobody || of == owner);
        of = owner;
      });
    }
    return alone;
  }

  bool is_handed(std::size_t input, std::size_t output) const {
    const std::vector<int>&readers = readers_[input], &owners = owners_[output];
    if (desc_.registers[output].kind != RowRegister::Kind::output || readers.size() != owners.size() || readers.empty()) return false;
    for (std::size_t at = 0; at < readers.size(); ++at)
      if (readers[at] != nobody && readers[at] != owners[at]) return false;
    return true;
  }

  /// The rows of the function that writes all of `output` where it read `input`, and is the last op that reads it; none: there is no such function.
  std::optional<RowOperand> in_place(std::size_t input, std::size_t output) const {
    const auto is = [](const RowOperand& operand, std::size_t reg) { return operand.reg == static_cast<int>(reg); };
    const auto last = std::find_if(desc_.ops.rbegin(), desc_.ops.rend(), [&](const RowOp& op) {
      return std::any_of(std::begin(op.in), std::end(op.in), [&](const RowOperand& in) { return is(in, input); });
    });
    if (last == desc_.ops.rend()) return std::nullopt;
    const RowOperand &from = last->in[0], &to = last->out2;
    const bool rows = last->kind == Kind::function && last->in_place && is(from, input) && is(to, output) && from.begin == 0 &&
                      to.begin == 0 && from.outer_step == to.outer_step && last->outer * to.outer_step == desc_.registers[output].width;
    const auto writers =
        std::count_if(desc_.ops.begin(), desc_.ops.end(), [&](const RowOp& op) { return is(op.out, output) || is(op.out2, output); });
    const auto reads = std::count_if(std::begin(last->in), std::end(last->in), [&](const RowOperand& in) { return is(in, input); });
    return rows && writers == 1 && reads == 1 ? std::optional(to) : std::nullopt;
  }

  const RowDesc& desc_;
  std::int64_t count_ = 0;
  std::vector<std::vector<int>> owners_;   // by register and element: the section that has written it last
  std::vector<std::vector<int>> readers_;  // of inputs
};

}  // namespace

std::optional<Sections> find_sections(const RowDesc& desc) { return Finder(desc).find(); }

}  // namespace millrace::internal
