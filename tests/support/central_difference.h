// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cmath>
#include <map>
#include <string>
#include <vector>

#include <doctest/doctest.h>

#include <millrace/runtime/training/extract.h>
#include <millrace/tensor/sanitized.h>

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
  const std::int64_t at_most =
      sanitized ? std::min<std::int64_t>(2, options.at_most) : options.at_most;  // sanitizers look at paths, not numbers
  std::vector<std::int64_t> places;
  Random random(options.seed);
  for (std::int64_t i = 0; i < elements; ++i) places.push_back(i);
  for (std::int64_t i = 0; i < std::min(elements, at_most); ++i)
    std::swap(places[static_cast<std::size_t>(i)], places[static_cast<std::size_t>(random.between(i, elements - 1))]);
  places.resize(static_cast<std::size_t>(std::min(elements, at_most)));
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

inline bool has_input(const Program& program, const std::string& name) {
  return std::any_of(program.inputs().begin(), program.inputs().end(), [&](const Program::Port& port) { return port.name == name; });
}

/// Runs `program`, whose output `loss` has one element of f64, and compares its outputs `d_NAME` with central differences by the f64 input
/// or parameter NAME. An input is moved in `feeds`; its LoD stays. Moves run interpreted.
inline void expect_gradients(const Program& program, const Feeds& feeds, const std::vector<std::string>& names,
                             const DifferenceOptions& options = {}, const std::string& loss = "loss") {
  RunOptions run_options;
  run_options.backend = Backend::interpreted;
  const RunResult result = on_cpu(program, feeds, run_options);
  // Compiled once, with weights as inputs; the backward half is left out.
  const Program alone = training::with_fed_weights(training::extract(program, {loss}));
  const Executable executable(alone);
  const training::Tensors weights = training::weights_of(program);
  Feeds fed;
  for (const Program::Port& port : alone.inputs())
    if (const auto at = feeds.find(port.name); at != feeds.end()) fed.insert(*at);
  for (const auto& [name, value] : weights)
    if (has_input(alone, training::fed_name(name))) fed.insert_or_assign(training::fed_name(name), value);
  const auto loss_with = [&](const std::string& input, Value moved) {
    Feeds other = fed;
    if (has_input(alone, input)) other.at(input) = std::move(moved);  // else the loss does not depend on it
    return run_fifo(run(executable, other, run_options))[loss].tensor().to_vector<double>().at(0);
  };
  for (const std::string& name : names) {
    const LoDTensor& found = result["d_" + name];
    const auto given = feeds.find(name);
    if (given == feeds.end()) {
      expect_gradient(
          name, weights.at(name), found.tensor(), [&](const Tensor& moved) { return loss_with(training::fed_name(name), moved); }, options);
      continue;
    }
    const LoDTensor rows = given->second.tensor();
    CHECK(found.lod() == rows.lod());
    expect_gradient(
        name, rows.tensor(), found.tensor(), [&](const Tensor& moved) { return loss_with(name, LoDTensor(moved, rows.lod())); }, options);
  }
}

}  // namespace millrace::testing
