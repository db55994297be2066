// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/initialiser.h>

#include <cmath>
#include <numbers>
#include <vector>

#include <millrace/kernels/cpu/philox.h>
#include <millrace/runtime/training/internal/floats.h>
#include <millrace/runtime/training/internal/key.h>

namespace millrace::training {
namespace {

using Kind = Initialiser::Kind;

/// Numbers of one tensor, by place.
struct Numbers {
  std::uint64_t seed = 0;
  std::uint64_t key = 0;

  /// [−1, 1)
  double uniform(std::int64_t place) const { return 2 * cpu::philox_unit(seed, key, static_cast<std::uint64_t>(place) * 2) - 1; }
  /// Box and Muller, 1958.
  double normal(std::int64_t place) const {
    const double u = cpu::philox_unit(seed, key, static_cast<std::uint64_t>(place) * 2);
    const double v = cpu::philox_unit(seed, key, static_cast<std::uint64_t>(place) * 2 + 1);
    return std::sqrt(-2 * std::log1p(-u)) * std::cos(2 * std::numbers::pi * v);
  }
};

/// `columns` orthonormal columns of `rows` ≥ `columns` elements, column by column: Gram and Schmidt, each twice ("twice is enough",
/// Giraud et al., 2005).
std::vector<double> orthonormal(std::vector<double> a, std::int64_t rows, std::int64_t columns) {
  const auto dot = [&](std::int64_t i, std::int64_t j) {
    double sum = 0;
    for (std::int64_t r = 0; r < rows; ++r) sum += a[static_cast<std::size_t>(i * rows + r)] * a[static_cast<std::size_t>(j * rows + r)];
    return sum;
  };
  for (std::int64_t j = 0; j < columns; ++j) {
    for (int pass = 0; pass < 2; ++pass)
      for (std::int64_t i = 0; i < j; ++i) {
        const double part = dot(i, j);
        for (std::int64_t r = 0; r < rows; ++r)
          a[static_cast<std::size_t>(j * rows + r)] -= part * a[static_cast<std::size_t>(i * rows + r)];
      }
    const double length = std::sqrt(dot(j, j));
    for (std::int64_t r = 0; r < rows; ++r) a[static_cast<std::size_t>(j * rows + r)] /= length;
  }
  return a;
}

/// Values of the block of `out` columns that begins at column `first` of `width`, row by row.
std::vector<double> orthogonal_block(const Numbers& numbers, std::int64_t in, std::int64_t out, std::int64_t first, std::int64_t width) {
  const bool tall = in >= out;
  const std::int64_t rows = tall ? in : out, columns = tall ? out : in;
  std::vector<double> a(static_cast<std::size_t>(rows * columns));
  for (std::int64_t c = 0; c < columns; ++c)
    for (std::int64_t r = 0; r < rows; ++r)
      a[static_cast<std::size_t>(c * rows + r)] = numbers.normal(tall ? r * width + first + c : c * width + first + r);
  a = orthonormal(std::move(a), rows, columns);
  std::vector<double> block(static_cast<std::size_t>(in * out));
  for (std::int64_t i = 0; i < in; ++i)
    for (std::int64_t o = 0; o < out; ++o)
      block[static_cast<std::size_t>(i * out + o)] = a[static_cast<std::size_t>(tall ? o * rows + i : i * rows + o)];
  return block;
}

/// in and out of one gate.
struct Fans {
  double in = 1, out = 1;
};

Fans fans_of(const DDim& dims, std::int64_t gates) {
  double taps = 1;
  for (int axis = 0; axis + 2 < dims.rank(); ++axis) taps *= static_cast<double>(dims[axis]);
  return {taps * static_cast<double>(dims[dims.rank() - 2]), taps * static_cast<double>(dims[dims.rank() - 1] / gates)};
}

/// The factor of the numbers of [−1, 1) or of N(0, 1).
double factor_of(const Initialiser& how, const Fans& fans) {
  switch (how.kind) {
    case Kind::xavier_uniform: return how.scale * std::sqrt(6 / (fans.in + fans.out));
    case Kind::xavier_normal: return how.scale * std::sqrt(2 / (fans.in + fans.out));
    case Kind::he_uniform: return how.scale * std::sqrt(3 / fans.in);
    case Kind::he_normal: return how.scale * std::sqrt(1 / fans.in);
    default: return how.scale;
  }
}

bool is_normal(Kind kind) { return kind == Kind::normal || kind == Kind::xavier_normal || kind == Kind::he_normal; }
bool looks_at_fans(Kind kind) { return kind > Kind::normal; }

void check_arguments(const Initialiser& how, const DDim& dims, const std::string& name, std::int64_t gates) {
  if (!std::isfinite(how.scale) || (how.scale < 0 && how.kind != Kind::constant))
    throw ArgumentError("initialise '" + name + "': expected a finite scale of at least 0, found " + std::to_string(how.scale));
  if (looks_at_fans(how.kind) && dims.rank() < 2)
    throw ShapeError("initialise '" + name + "': expected at least two axes, in and out, found " + dims.to_string());
  if (gates < 1 || (gates > 1 && (dims.rank() == 0 || dims[dims.rank() - 1] % gates != 0)))
    throw ShapeError("initialise '" + name + "': expected a last axis of " + std::to_string(gates) + " equal blocks, found " +
                     dims.to_string());
}

std::vector<double> orthogonal(const Initialiser& how, const Numbers& numbers, const DDim& dims, std::int64_t gates) {
  const std::int64_t width = dims[dims.rank() - 1], out = width / gates, in = width == 0 ? 0 : dims.elements() / width;
  std::vector<double> values(static_cast<std::size_t>(dims.elements()));
  for (std::int64_t gate = 0; gate < gates && in > 0 && out > 0; ++gate) {
    const std::vector<double> block = orthogonal_block(numbers, in, out, gate * out, width);
    for (std::int64_t i = 0; i < in; ++i)
      for (std::int64_t o = 0; o < out; ++o)
        values[static_cast<std::size_t>(i * width + gate * out + o)] = how.scale * block[static_cast<std::size_t>(i * out + o)];
  }
  return values;
}

std::vector<double> values_of(const Initialiser& how, const Numbers& numbers, const DDim& dims, std::int64_t gates) {
  if (how.kind == Kind::orthogonal) return orthogonal(how, numbers, dims, gates);
  const double factor = factor_of(how, looks_at_fans(how.kind) ? fans_of(dims, gates) : Fans());
  std::vector<double> values(static_cast<std::size_t>(dims.elements()));
  for (std::size_t i = 0; i < values.size(); ++i) {
    const auto place = static_cast<std::int64_t>(i);
    values[i] = how.kind == Kind::constant ? how.scale : factor * (is_normal(how.kind) ? numbers.normal(place) : numbers.uniform(place));
  }
  return values;
}

std::string of_layer(const std::string& name, std::size_t k, const char* part) { return name + "_" + std::to_string(k) + "_" + part; }

}  // namespace

Tensor initialise(const Initialiser& how, DType dtype, const DDim& dims, std::uint64_t seed, const std::string& name, std::int64_t gates) {
  check_arguments(how, dims, name, gates);
  Tensor made(dtype, dims);
  internal::visit_floats(name, dtype, [&]<class T>(std::type_identity<T>) {
    const std::vector<double> values = values_of(how, {seed, internal::key_of(name)}, dims, gates);
    T* to = made.mutable_data<T>();
    for (std::size_t i = 0; i < values.size(); ++i) to[i] = convert_element<T>(values[i]);
  });
  return made;
}

Tensor LayerInit::matrix(const std::optional<Initialiser>& chosen, const std::string& name, const DDim& dims, std::int64_t units,
                         std::int64_t gates) const {
  const Initialiser usual{Kind::uniform, 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(units, 1)))};
  return initialise(chosen.value_or(usual), dtype_, dims, seed_, name, gates);
}

Tensor LayerInit::bias(const std::string& name, std::int64_t units, std::int64_t gates) const {
  const bool chosen = choice.input || choice.recurrent;
  return matrix(chosen ? std::optional(Initialiser{Kind::constant, 0}) : std::nullopt, name, {gates * units}, units, gates);
}

layers::LstmWeights LayerInit::lstm(const std::string& name, std::int64_t inputs, std::int64_t units, std::size_t k) const {
  Tensor of_gates = bias(of_layer(name, k, "bias"), units, 4);
  if (choice.input || choice.recurrent)
    for (std::int64_t unit = 0; unit < units; ++unit) of_gates[DDim{units + unit}] = choice.forget_bias;
  return {matrix(choice.input, of_layer(name, k, "input"), {inputs, 4 * units}, units, 4),
          matrix(choice.recurrent, of_layer(name, k, "recurrent"), {units, 4 * units}, units, 4), of_gates, std::nullopt, std::nullopt};
}

layers::GruWeights LayerInit::gru(const std::string& name, std::int64_t inputs, std::int64_t units, std::size_t k) const {
  return {matrix(choice.input, of_layer(name, k, "input"), {inputs, 3 * units}, units, 3),
          matrix(choice.recurrent, of_layer(name, k, "recurrent"), {units, 3 * units}, units, 3), bias(of_layer(name, k, "bias"), units, 3),
          bias(of_layer(name, k, "recurrent_bias"), units, 3)};
}

layers::RnnWeights LayerInit::rnn(const std::string& name, std::int64_t inputs, std::int64_t units, std::size_t k) const {
  return {matrix(choice.input, of_layer(name, k, "input"), {inputs, units}, units, 1),
          matrix(choice.recurrent, of_layer(name, k, "recurrent"), {units, units}, units, 1), bias(of_layer(name, k, "bias"), units, 1)};
}

layers::LinearWeights LayerInit::linear(const std::string& name, std::int64_t inputs, std::int64_t outputs) const {
  const bool chosen = choice.input.has_value();
  const std::optional<Initialiser> zero = chosen ? std::optional(Initialiser{Kind::constant, 0}) : std::nullopt;
  return {matrix(choice.input, name + "_weight", {inputs, outputs}, inputs, 1), matrix(zero, name + "_bias", {outputs}, inputs, 1)};
}

Tensor LayerInit::embedding(const std::string& name, std::int64_t count, std::int64_t width) const {
  return initialise({Kind::normal, 1}, dtype_, {count, width}, seed_, name + "_table");
}

}  // namespace millrace::training
