// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/lowering/prune.h>
#include <millrace/runtime/program/text.h>

#include "support/program_runs.h"
#include "support/random.h"

/// Gradients against central differences in double precision.
namespace millrace::testing {

struct DifferenceOptions {
  double step = 1e-4;         ///< of an element x: step · max(1, |x|)
  double tolerance = 1e-6;    ///< relative to the greater of the gradient's element and its greatest element, at least 1e-3
  std::int64_t at_most = 24;  ///< elements of one tensor that are tried: all, or so many drawn by `seed`
  std::uint64_t seed = 1;
};

/// The elements of a tensor that are tried.
inline std::vector<std::int64_t> tried_elements(std::int64_t elements, const DifferenceOptions& options) {
  std::vector<std::int64_t> places;
  Random random(options.seed);
  for (std::int64_t i = 0; i < elements; ++i) places.push_back(i);
  for (std::int64_t i = 0; i < std::min(elements, options.at_most); ++i)
    std::swap(places[static_cast<std::size_t>(i)], places[static_cast<std::size_t>(random.between(i, elements - 1))]);
  places.resize(static_cast<std::size_t>(std::min(elements, options.at_most)));
  return places;
}

/// d loss / d element, of fourth order in the step. `loss`: Tensor → double, called with copies of `at` (f64) in which one element is moved.
template <class Loss>
double central_difference(const Tensor& at, std::int64_t element, const Loss& loss, double step) {
  const std::vector<double> values = at.to_vector<double>();
  const auto place = static_cast<std::size_t>(element);
  const double moved = step * std::max(1.0, std::abs(values[place]));
  const auto by = [&](double delta) {
    std::vector<double> other = values;
    other[place] += delta;
    return static_cast<double>(loss(Tensor::from(other, at.dims())));
  };
  return (8 * (by(moved) - by(-moved)) - (by(2 * moved) - by(-2 * moved))) / (12 * moved);
}

/// Compares `found` (f64, extents of `at`) with central differences of `loss` at `at` (f64).
template <class Loss>
void expect_gradient(const std::string& name, const Tensor& at, const Tensor& found, const Loss& loss,
                     const DifferenceOptions& options = {}) {
  INFO("gradient of ", name);
  REQUIRE(found.dtype() == DType::f64);
  INFO("found ", found.dims().to_string(), ", expected ", at.dims().to_string());
  REQUIRE(found.dims() == at.dims());
  const std::vector<double> gradient = found.to_vector<double>();
  double greatest = 1e-3;
  for (const double each : gradient) greatest = std::max(greatest, std::abs(each));
  for (const std::int64_t element : tried_elements(at.elements(), options)) {
    const double wanted = central_difference(at, element, loss, options.step);
    const double given = gradient[static_cast<std::size_t>(element)];
    INFO("element ", element, ": found ", given, ", expected ", wanted);
    CHECK(std::abs(given - wanted) <= options.tolerance * std::max(greatest, std::abs(wanted)));
  }
}

/// The weights of `program` by name.
inline std::map<std::string, Tensor> weights_by_name(const Program& program) {
  std::map<std::string, Tensor> weights;
  for (const auto& [var, held] : program.parameters()) weights.emplace(program.var(var).name, held);
  return weights;
}

/// The program with another value of the parameter called `name`.
inline Program with_parameter(const Program& program, const std::string& name, const Tensor& value) {
  std::map<std::string, Tensor> weights = weights_by_name(program);
  weights.at(name) = value;
  return parse_program(print(program), weights, program.shared_registry());
}

/// The program with the output `name` alone; one without loops and branches keeps no op that this output does not need.
inline Program with_output(const Program& program, const std::string& name) {
  std::istringstream text(print(program));
  std::string kept;
  for (std::string line; std::getline(text, line);)
    if (!line.starts_with("output ") || line.starts_with("output \"" + name + "\" =")) kept += line + "\n";
  const Program alone = parse_program(kept, weights_by_name(program), program.shared_registry());
  REQUIRE(alone.outputs().size() == 1);
  return alone.blocks().size() == 1 ? prune(alone) : alone;
}

/// Runs `program`, whose output `loss` has one element of f64, and compares its outputs `d_NAME` with central differences by the f64 input
/// or parameter NAME. An input is moved in `feeds`; its LoD stays. Moves run interpreted.
inline void expect_gradients(const Program& program, const Feeds& feeds, const std::vector<std::string>& names,
                             const DifferenceOptions& options = {}, const std::string& loss = "loss") {
  RunOptions run_options;
  run_options.backend = Backend::interpreted;
  const RunResult result = on_cpu(program, feeds, run_options);
  const Program loss_alone = with_output(program, loss);
  const Executable executable(loss_alone);
  const auto loss_of = [&](const Executable& of, const Feeds& fed) {
    return run_fifo(run(of, fed, run_options))[loss].tensor().to_vector<double>().at(0);
  };
  for (const std::string& name : names) {
    const LoDTensor& found = result["d_" + name];
    const auto fed = feeds.find(name);
    if (fed == feeds.end()) {
      const VarId var = program.find_var(name);
      REQUIRE(program.parameter(var) != nullptr);
      expect_gradient(
          name, *program.parameter(var), found.tensor(),
          [&](const Tensor& moved) {
            if (loss_alone.find_var(name) == no_var) return loss_of(executable, feeds);  // the loss does not depend on it
            return loss_of(Executable(with_parameter(loss_alone, name, moved)), feeds);
          },
          options);
      continue;
    }
    const LoDTensor rows = fed->second.tensor();
    CHECK(found.lod() == rows.lod());
    expect_gradient(
        name, rows.tensor(), found.tensor(),
        [&](const Tensor& moved) {
          Feeds other = feeds;
          other.at(name) = Value(LoDTensor(moved, rows.lod()));
          return loss_of(executable, other);
        },
        options);
  }
}

}  // namespace millrace::testing
