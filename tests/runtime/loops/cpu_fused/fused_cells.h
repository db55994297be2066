// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/layers/narrow.h>
#include <millrace/runtime/layers/recurrent.h>

#include "support/program_runs.h"
#include "support/random.h"
#include "support/random_tensor.h"

/// Cells as programs, run in both backends.
namespace millrace::testing {

using build::call1, build::cast, build::concat, build::constant, build::Guard, build::input, build::layer_norm, build::matmul,
    build::output, build::parameter, build::reduce, build::reshape, build::slice, build::softmax, build::transpose, build::Var,
    build::where;
using layers::CellState, layers::CellStep;

/// A cell over rows of `c` features, with states of some widths.
struct CellCase {
  std::string name;
  std::int64_t c;
  std::vector<std::int64_t> widths;
  layers::Cell cell;
};

/// Ragged rows through the cell.
inline Program over_rows(const CellCase& each, bool boots, bool reverse, DType dtype = DType::f32) {
  Program program;
  program.set_title(each.name);
  const Guard guard(program);
  const Var x = input("x", VarType(dtype, {DDim::unknown, each.c}, 1));
  std::vector<CellState> states;
  for (std::size_t i = 0; i < each.widths.size(); ++i) {
    states.push_back({each.widths[i]});
    if (boots) states.back().initial = input("boot" + std::to_string(i), VarType(dtype, {DDim::unknown, each.widths[i]}));
  }
  const layers::Unrolled made = layers::unroll(each.cell, {x}, states, reverse);
  output("y", made.output);
  for (std::size_t i = 0; i < made.last.size(); ++i) output("last" + std::to_string(i), made.last[i]);
  return program;
}

/// h := tanh(x · W + h · U) over ragged rows of `c` features, with a boot of `h` units.
inline Program booted_rnn(Random& random, std::int64_t c, std::int64_t h) {
  const Tensor w = random_tensor(random, {c, h}), u = random_tensor(random, {h, h});
  return over_rows({"rnn",
                    c,
                    {h},
                    [w, u](const Var& x, const std::vector<Var>& states) {
                      const Var next = tanh(matmul(x, constant(w)) + matmul(states[0], constant(u)));
                      return CellStep{next, {next}};
                    }},
                   true, false);
}

inline Feeds feeds_for(Random& random, const CellCase& each, const LoD& lod, bool boots, DType dtype = DType::f32) {
  Feeds feeds{{"x", LoDTensor(random_tensor(random, {lod.rows(), each.c}, 1, dtype), lod)}};
  for (std::size_t i = 0; boots && i < each.widths.size(); ++i)
    feeds.emplace("boot" + std::to_string(i), random_tensor(random, {lod.sequences(0), each.widths[i]}, 1, dtype));
  return feeds;
}

/// The bodies of all loops.
inline std::vector<int> bodies(const Program& program) {
  std::vector<int> found;
  for (const Block& block : program.blocks())
    for (const Op& op : block.ops)
      if (op.type == "while") found.push_back(op.attributes.get<BlockId>("sub_block").index);
  return found;
}

inline RunOptions interpreted() {
  RunOptions options;
  options.backend = Backend::interpreted;
  return options;
}

/// Runs in both backends, with one thread and with two: equal bits and iterations. Gives how many loops ran in one piece.
inline std::int64_t compare(const Program& program, const Feeds& feeds) {
  const RunResult wanted = on_cpu(program, feeds, interpreted());
  CHECK(wanted.fused_loops == 0);
  std::int64_t fused = 0;
  for (const int threads : {1, 2}) {
    INFO("threads ", threads);
    const RunResult found = run_fifo(run(Executable(program, make_cpu_device(threads)), feeds));
    CHECK(bits(found) == bits(wanted));
    CHECK(found.iterations == wanted.iterations);
    fused = found.fused_loops;
  }
  return fused;
}

/// Weights for cells: parameters of the program that is being built, drawn anew in each.
struct Weights {
  Random random;
  DType dtype = DType::f32;
  explicit Weights(std::uint64_t seed, DType of = DType::f32) : random(seed), dtype(of) {}
  Var operator()(const DDim& dims) { return parameter("w", random_tensor(random, dims, 1, dtype)); }
};

/// A cell drawn at random: a few dozen ops over what there is, then a product for each next state.
class RandomCell {
 public:
  RandomCell(std::uint64_t seed, std::vector<std::int64_t> widths) : weights_(seed), widths_(std::move(widths)) {}

  CellStep operator()(const Var& x, const std::vector<Var>& states) {
    made_ = states;
    made_.push_back(x);
    const std::int64_t ops = random().between(3, 25);
    for (std::int64_t i = 0; i < ops; ++i) made_.push_back(draw());
    std::vector<Var> next;
    for (const std::int64_t width : widths_) next.push_back(tanh(sized(any(), width)));
    return {sized(any(), random().between(1, 7)), next};
  }

 private:
  Random& random() { return weights_.random; }
  Var any() { return made_[static_cast<std::size_t>(random().between(0, static_cast<std::int64_t>(made_.size()) - 1))]; }
  static std::int64_t width(const Var& x) { return (*x.type().shape)[1]; }
  /// Weights of any kind: of f32, of bf16 under rows of f32 or of bf16, of i8.
  Var sized(const Var& x, std::int64_t columns) {
    const std::int64_t kind = random().between(0, 7);
    if (kind > 2) return matmul(x, weights_({width(x), columns}));
    const Tensor whole = random_tensor(random(), {width(x), columns});
    const layers::Matrix narrow = layers::matrix("narrow", whole, kind == 2 ? DType::i8 : DType::bf16);
    return kind == 1 ? matmul(cast(x, DType::bf16), narrow.values, DType::f32) : layers::product(x, narrow);
  }
  /// Another of the same width, or one column, or weights.
  Var beside(const Var& x) {
    Var other = any();
    if (width(other) == width(x)) return other;
    switch (random().between(0, 3)) {
      case 0: return weights_({width(x)});
      case 1: return reduce(other, random().coin() ? "sum" : "max", {-1}, true);
      case 2: return weights_({1});
      default: return sized(other, width(x));
    }
  }
  /// A product of matrices that each row brings itself, of several heads perhaps, or with a matrix for each head that all rows share.
  Var matrices(const Var& x) {
    const std::int64_t heads = width(x) % 2 == 0 ? random().between(1, 2) : 1, inner = width(x) / heads, columns = random().between(1, 20);
    const bool shared = random().coin(), turned = random().coin();
    const Var left = reshape(x, {-1, heads, 1, inner});
    const Var right =
        shared ? weights_({heads, inner, columns}) : reshape(sized(any(), heads * inner * columns), {-1, heads, inner, columns});
    if (!turned || shared) return reshape(matmul(left, right), {-1, heads * columns});
    return reshape(matmul(transpose(right, {0, 1, 3, 2}), reshape(x, {-1, heads, inner, 1})), {-1, heads * columns});
  }
  /// A value that no other op reads, whole and a stretched part of it, in one op.
  Var stretched(const Var& x) {
    const std::int64_t n = width(x), rows = n % 3 == 0 ? 3 : n % 2 == 0 ? 2 : 1, axis = random().between(1, 2);
    const Var whole = reshape(tanh(x), {-1, rows, n / rows});
    const std::int64_t begin = random().between(0, (axis == 1 ? rows : n / rows) - 1);
    const Var part = slice(whole, axis, begin, begin + 1);
    switch (random().between(0, 3)) {
      case 0: return reshape(whole - part, {-1, n});
      case 1: return reshape(part - whole, {-1, n});
      case 2: return reshape(where(greater(whole, part), part, whole), {-1, n});
      default: return reshape(maximum(part, whole) * 0.5f, {-1, n});
    }
  }
  Var draw() {
    static const std::vector<std::string> unaries{"sigmoid", "tanh", "relu", "abs", "neg", "softsign", "hard_sigmoid", "floor"};
    static const std::vector<std::string> binaries{"add", "sub", "mul", "minimum", "maximum"};
    const auto one_of = [this](const std::vector<std::string>& names) {
      return names[static_cast<std::size_t>(random().between(0, static_cast<std::int64_t>(names.size()) - 1))];
    };
    const Var x = any();
    const std::int64_t n = width(x);
    switch (random().between(0, 13)) {
      case 10: return matrices(x);
      case 11: return n % 2 != 0 ? -x : reduce(reshape(x, {-1, 2, n / 2}), random().coin() ? "sum" : "max", {1});
      case 12: return where(cast(maximum(x, constant(0.0f)), DType::boolean), x, beside(x));
      case 13: return stretched(x);
      case 0: return call1(one_of(unaries), {x});
      case 1: {
        const Var other = beside(x);
        return random().coin() ? call1(one_of(binaries), {x, other}) : call1(one_of(binaries), {other, x});
      }
      case 2: return sized(x, random().between(1, 20));
      case 3: {
        const std::int64_t begin = random().between(0, n - 1);
        return slice(x, -1, begin, random().between(begin + 1, n));
      }
      case 4: return concat({x, tanh(any())}, 1);
      case 5: return softmax(x);
      case 6: return layer_norm(x, weights_({n}), weights_({n}));
      case 7: return where(greater(x, beside(x)), x, beside(x));
      case 8: return n % 2 != 0 ? exp(-abs(x)) : reshape(transpose(reshape(x, {-1, 2, n / 2}), {0, 2, 1}), {-1, n});
      default: return n % 2 != 0 ? x * 0.5f : reduce(reshape(x, {-1, n / 2, 2}) * weights_({n / 2, 1}), "mean", {-1});
    }
  }

  Weights weights_;
  std::vector<std::int64_t> widths_;
  std::vector<Var> made_;
};

/// A cell drawn at random, with one to three states.
inline CellCase random_cell(Random& random, std::uint64_t seed) {
  CellCase each{"random", random.between(1, 9), {}, {}};
  for (std::int64_t states = random.between(1, 3); states > 0; --states) each.widths.push_back(random.between(1, 18));
  each.cell = [widths = each.widths, seed](const Var& x, const std::vector<Var>& states) { return RandomCell(seed, widths)(x, states); };
  return each;
}

}  // namespace millrace::testing
