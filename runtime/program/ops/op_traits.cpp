// SPDX-License-Identifier: Apache-2.0
// The traits of the standard ops (OpTraits), in one table.
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/program/ops/internal/families.h>

namespace millrace::ops {

void add_traits(OpRegistry& registry) {
  using Arithmetic = OpTraits::Arithmetic;
  using Comparison = OpTraits::Comparison;
  const std::vector<std::pair<std::string, OpTraits>> table{
      {"add", {.arithmetic = Arithmetic::add}},
      {"sub", {.arithmetic = Arithmetic::subtract}},
      {"mul", {.arithmetic = Arithmetic::multiply}},
      {"neg", {.arithmetic = Arithmetic::negate}},
      {"identity", {.arithmetic = Arithmetic::keep, .view = true, .forwards = true}},
      {"drop_lod", {.forwards = true}},
      {"equal", {.comparison = Comparison::equal}},
      {"not_equal", {.comparison = Comparison::not_equal}},
      {"less", {.comparison = Comparison::less}},
      {"less_equal", {.comparison = Comparison::less_equal}},
      {"greater", {.comparison = Comparison::greater}},
      {"greater_equal", {.comparison = Comparison::greater_equal}},
      {"matmul", {.product = true}},
      {"matmul_bias", {.product = true}},
      {"attention", {.product = true}},
      {"matmul_int8", {.product = true}},
      {"matmul_bytes", {.product = true}},
      {"matmul_integer", {.product = true}},
      {"gemm", {.product = true}},
      {"conv1d", {.product = true}},
      {"conv", {.product = true}},
      {"conv1d_arithmetic", {.product = true}},
      {"conv_arithmetic", {.product = true}},
      {"lstm_cell", {.product = true}},
      {"lstm_cell_projected", {.product = true}},
      {"split", {.view = true}},
      {"slice", {.view = true}},
      {"squeeze", {.view = true}},
      {"unsqueeze", {.view = true}},
      {"reshape", {.view = true}},
      {"transpose", {.view = true}},
      {"shape", {.extents_of = {0}}},
      {"size", {.extents_of = {0}}},
      {"step_mask", {.extents_of = {0}}},
      {"same_steps", {.extents_of = {1}}},
  };
  for (const auto& [name, traits] : table) registry.set_traits(name, traits);
}

}  // namespace millrace::ops
