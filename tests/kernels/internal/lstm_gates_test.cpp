// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/internal/lstm_gates.h>

#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include <millrace/kernels/row_plan.h>

using namespace millrace;

namespace {

/// Writes ops down; a register is a number.
struct Writer {
  RowDesc desc{DType::f32, {}, {}};
  std::int64_t hidden = 0;
  std::size_t inputs = 0, outputs = 0;

  int reg(RowRegister::Kind kind, std::int64_t width, std::size_t place = 0) {
    desc.registers.push_back({kind, width, place});
    return static_cast<int>(desc.registers.size()) - 1;
  }
  int input(std::int64_t width) { return reg(RowRegister::Kind::input, width, inputs++); }
  int output(std::int64_t width) { return reg(RowRegister::Kind::output, width, outputs++); }
  int scratch(std::int64_t width) { return reg(RowRegister::Kind::scratch, width); }

  RowOp& op(RowOp::Kind kind, RowOperand a, RowOperand b, RowOperand out, std::int64_t width) {
    RowOp made;
    made.kind = kind;
    made.inner = width;
    made.in[0] = a;
    if (kind == RowOp::Kind::binary) made.in[1] = b;
    made.out = out;
    return desc.ops.emplace_back(made);
  }
  RowOperand unary(Unary kind, RowOperand a, RowOperand out) {
    op(RowOp::Kind::unary, a, {}, out, hidden).unary = kind;
    return out;
  }
  RowOperand binary(Binary kind, RowOperand a, RowOperand b, RowOperand out, std::int64_t width = 0) {
    op(RowOp::Kind::binary, a, b, out, width > 0 ? width : hidden).binary = kind;
    return out;
  }
  RowOperand made(Binary kind, RowOperand a, RowOperand b) { return binary(kind, a, b, {scratch(hidden)}); }
};

/// Something else than a gate reads the sums of o; a gate does; and its product with the tanh of the cell state is there.
enum class Fourth : std::uint8_t { other, gate, product };

/// The gates behind `terms` sums, in the order i, f, g, o; `turned`: operands and gates the other way round. `shows`: a product is the last output too,
/// so that the ops stay what they are.
RowDesc gates(std::int64_t hidden, int terms, Fourth fourth, bool turned, bool shows) {
  Writer w;
  w.hidden = hidden;
  RowOperand pre{w.input(4 * hidden)};
  const auto pair = [&](RowOperand a, RowOperand b) { return turned ? std::pair(b, a) : std::pair(a, b); };
  const RowOperand c{w.input(hidden)};
  for (int term = 0; term < terms; ++term) {
    const auto [a, b] = pair(pre, {w.input(4 * hidden)});
    pre = w.binary(Binary::add, a, b, {w.scratch(4 * hidden)}, 4 * hidden);
  }
  const auto of = [&](std::int64_t gate) { return RowOperand{pre.reg, (turned ? 3 - gate : gate) * hidden}; };
  const RowOperand i = w.unary(Unary::sigmoid, of(0), {w.output(hidden)});
  const RowOperand f = w.unary(Unary::sigmoid, of(1), {w.scratch(hidden)});
  const RowOperand g = w.unary(Unary::tanh, of(2), {w.output(hidden)});
  const auto [f_a, f_b] = pair(f, c);
  const RowOperand kept = w.made(Binary::mul, f_a, f_b);
  const auto [i_a, i_b] = pair(i, g);
  const RowOperand fresh = w.made(Binary::mul, i_a, i_b);
  const auto [sum_a, sum_b] = pair(kept, fresh);
  const RowOperand next = w.binary(Binary::add, sum_a, sum_b, {w.output(hidden)});
  if (fourth == Fourth::product) {
    const RowOperand o = w.unary(Unary::sigmoid, of(3), {w.output(hidden)});
    const RowOperand a = w.unary(Unary::tanh, next, {w.output(hidden)});
    const auto [h_a, h_b] = pair(o, a);
    w.binary(Binary::mul, h_a, h_b, {w.output(hidden)});
  } else {
    w.unary(fourth == Fourth::gate ? Unary::sigmoid : Unary::neg, of(3), {w.output(hidden)});
  }
  if (shows) w.unary(Unary::identity, kept, {w.output(hidden)});
  return w.desc;
}

/// The gradients of gates, those of i, f, g and o side by side.
RowDesc gradients(std::int64_t hidden, bool output, bool cell, bool turned, bool shows) {
  Writer w;
  w.hidden = hidden;
  const auto pair = [&](RowOperand a, RowOperand b) { return turned ? std::pair(b, a) : std::pair(a, b); };
  const auto product = [&](RowOperand a, RowOperand b) {
    const auto [x, y] = pair(a, b);
    return w.made(Binary::mul, x, y);
  };
  const int dz = w.output(4 * hidden);
  RowOperand d{};
  std::vector<RowOperand> shown;
  if (output) {
    const RowOperand dh{w.input(hidden)}, o{w.input(hidden)}, a{w.input(hidden)};
    const RowOperand of_o = product(dh, a), of_a = product(dh, o);
    shown.push_back(of_a);
    const RowOperand through = cell ? w.made(Binary::tanh_gradient, of_a, a) : w.binary(Binary::tanh_gradient, of_a, a, {w.output(hidden)});
    w.binary(Binary::sigmoid_gradient, of_o, o, {dz, 3 * hidden});
    if (cell) {
      const auto [x, y] = pair({w.input(hidden)}, through);
      d = w.made(Binary::add, x, y);
    }
  } else {
    d = {w.input(hidden)};
  }
  if (cell) {
    const RowOperand i{w.input(hidden)}, g{w.input(hidden)}, f{w.input(hidden)}, c{w.input(hidden)};
    const RowOperand of_i = product(d, g), of_g = product(d, i), of_f = product(d, c);
    shown.push_back(of_g);
    const auto [x, y] = pair(d, f);
    w.binary(Binary::mul, x, y, {w.output(hidden)});
    w.binary(Binary::tanh_gradient, of_g, g, {dz, 2 * hidden});
    w.binary(Binary::sigmoid_gradient, of_f, f, {dz, hidden});
    w.binary(Binary::sigmoid_gradient, of_i, i, {dz});
  }
  for (const RowOperand& each : shown)
    if (shows) w.unary(Unary::identity, each, {w.output(hidden)});
  return w.desc;
}

/// The outputs of so many rows, which lie apart.
std::vector<std::vector<float>> run_rows(const RowPlan& plan, std::int64_t rows) {
  std::vector<std::vector<float>> given, made;
  std::vector<RowView> from, to;
  for (const RowRegister& reg : plan.desc().registers) {
    if (reg.kind != RowRegister::Kind::input && reg.kind != RowRegister::Kind::output) continue;
    const std::int64_t stride = reg.width + 3;
    std::vector<float>& elements =
        (reg.kind == RowRegister::Kind::input ? given : made).emplace_back(static_cast<std::size_t>(rows * stride), -7.0f);
    for (std::size_t i = 0; i < elements.size() && reg.kind == RowRegister::Kind::input; ++i)
      elements[i] = static_cast<float>(static_cast<int>((i + given.size()) * 7) % 41 - 20) / 11;
  }
  std::size_t in = 0, out = 0;
  for (const RowRegister& reg : plan.desc().registers) {
    if (reg.kind == RowRegister::Kind::input) from.push_back({given[in++].data(), reg.width + 3});
    if (reg.kind == RowRegister::Kind::output) to.push_back({made[out++].data(), reg.width + 3});
  }
  std::vector<std::byte> memory(static_cast<std::size_t>(plan.workspace_bytes()) + 64);
  run(plan, {}, from, to, rows, memory.data() + (64 - reinterpret_cast<std::uintptr_t>(memory.data()) % 64) % 64);
  return made;
}

void check_bits(const RowDesc& together, const RowDesc& apart) {
  const RowPlan one(together), parts(apart);
  CHECK(one.state().lstm.size() == 1);
  CHECK(parts.state().lstm.empty());
  for (const std::int64_t rows : {1, 3, 70}) {
    const auto found = run_rows(one, rows);
    auto expected = run_rows(parts, rows);
    expected.resize(found.size());
    CHECK(found == expected);
  }
}

}  // namespace

TEST_CASE("the gates of an LSTM that stand together have the bits of their ops, whatever the spelling and the number of rows") {
  for (const std::int64_t hidden : {1, 7, 16, 20, 33})
    for (const int terms : {0, 1, 2})
      for (const Fourth fourth : {Fourth::other, Fourth::gate, Fourth::product})
        for (const bool turned : {false, true}) {
          CAPTURE(hidden);
          CAPTURE(terms);
          CAPTURE(static_cast<int>(fourth));
          CAPTURE(turned);
          // Without the output gate another op reads the sums, which then stay ops of their own.
          check_bits(gates(hidden, terms, fourth, turned, false), gates(hidden, terms, fourth, turned, true));
        }
}

TEST_CASE("sums of an LSTM's gates are part of them where the output gate is not multiplied with the tanh of the cell state") {
  const RowDesc desc = gates(8, 2, Fourth::gate, false, false);
  const auto found = internal::find_lstm_gates(desc);
  REQUIRE(found.size() == 1);
  CHECK(found[0].first == 0);
  CHECK(found[0].last + 1 == desc.ops.size());
  CHECK(internal::find_lstm_gates(gates(8, 2, Fourth::other, false, false)).at(0).first == 2);
}

TEST_CASE("the gradients of an LSTM's gates that stand together have the bits of their ops") {
  for (const std::int64_t hidden : {1, 7, 16, 20, 33})
    for (const auto& [output, cell] : {std::pair(true, true), std::pair(true, false), std::pair(false, true)})
      for (const bool turned : {false, true}) {
        CAPTURE(hidden);
        CAPTURE(output);
        CAPTURE(cell);
        CAPTURE(turned);
        check_bits(gradients(hidden, output, cell, turned, false), gradients(hidden, output, cell, turned, true));
      }
}

TEST_CASE("gates of an LSTM with an op between them stay in their ops") {
  RowDesc desc = gates(8, 1, Fourth::product, false, false);
  const auto sum = std::find_if(desc.ops.begin(), desc.ops.end(), [](const RowOp& op) { return op.kind == RowOp::Kind::unary; });
  RowOp between = *sum;
  desc.registers.push_back({RowRegister::Kind::scratch, 8, 0});
  between.out = {static_cast<int>(desc.registers.size()) - 1};
  desc.ops.insert(sum + 2, between);
  CHECK(internal::find_lstm_gates(desc).empty());
}
