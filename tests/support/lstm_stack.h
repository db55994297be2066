// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/tensor/lod_tensor.h>

#include "support/built.h"
#include "support/random_tensor.h"

namespace millrace::testing {

/// Layers of LSTM cells over ragged sequences x, one above the other, with all that they give: y, and of each layer the last h.
struct LstmStack {
  LstmStack(std::uint64_t seed, std::int64_t layers, std::int64_t hidden, const std::vector<std::int64_t>& lengths) {
    Random random(seed);
    constexpr std::int64_t width = 5;
    std::vector<layers::LstmWeights> weights;
    for (std::int64_t layer = 0; layer < layers; ++layer) {
      const std::int64_t c = layer == 0 ? width : hidden;
      weights.push_back({random_tensor(random, {c, 4 * hidden}),
                         random_tensor(random, {hidden, 4 * hidden}),
                         random_tensor(random, {4 * hidden}),
                         {},
                         {}});
    }
    program = built_program([&] {
      const layers::LstmResult made = layers::lstm({build::input("x", VarType(DType::f32, {DDim::unknown, width}, 1))}, weights);
      build::output("y", made.y);
      for (std::size_t layer = 0; layer < made.h.size(); ++layer) build::output("h" + std::to_string(layer), made.h[layer]);
    });
    const LoD lod = LoD::from_lengths({lengths});
    feeds.insert_or_assign("x", LoDTensor(random_tensor(random, {lod.rows(), width}), lod));
  }

  Program program;
  Feeds feeds;
};

/// All outputs, which are tensors, with their names and extents.
inline std::string bytes_of(const RunResult& result) {
  std::string bytes;
  for (const auto& [name, value] : result.outputs()) {
    const Tensor host = value.tensor().tensor().copy_to(CpuPlace{});
    bytes += name + host.dims().to_string() + value.tensor().lod().to_string();
    bytes.append(static_cast<const char*>(host.raw()), host.bytes());
  }
  return bytes;
}

}  // namespace millrace::testing
