// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/lowering/recurrence.h>
#include <millrace/runtime/task/seeded_executor.h>
#include <millrace/runtime/task/sync_wait.h>
#include <support/listing.h>
#include <support/random_tensor.h>

namespace millrace::testing {

/// The canonical listing with weights that the seed decides.
inline Program live_listing(Random& random, std::int64_t features, std::int64_t hidden) {
  using namespace millrace::build;
  Program program;
  program.set_title("listing");
  const Guard guard(program);
  const Var x = input("x", VarType(DType::f32, {DDim::unknown, features}, 1));
  const Var boot_state = input("boot", VarType(DType::f32, {DDim::unknown, hidden}));
  const Var U = parameter("U", random_tensor(random, {hidden, hidden}));
  const Var W = parameter("W", random_tensor(random, {features, hidden}));
  output("y", listing(x, boot_state, U, W));
  return program;
}

/// A program that fails for a row whose index is outside its table, and remembers the sum of what it looked up.
inline Program live_lookup() {
  using namespace millrace::build;
  Program program;
  program.set_title("lookup");
  const Guard guard(program);
  const Var index = input("index", VarType(DType::i64, {1}));
  const Var sum = input("sum", VarType(DType::f32, {1, 2}));
  const Var table = parameter("table", Tensor::from<float>({1, 2, 3, 4, 5, 6}).reshape({3, 2}));
  const Var next = sum + embedding(table, index);
  output("y", next);
  output("next_sum", identity(next));
  return program;
}

/// Sequences of rows and what one run of the whole gives for each.
struct WholeRun {
  std::vector<Tensor> rows;
  std::vector<Tensor> boots;
  std::vector<Tensor> outputs;

  WholeRun(const Program& program, Random& random, std::int64_t sequences, std::int64_t longest, std::int64_t features,
           std::int64_t hidden) {
    LoD::Level lengths;
    std::int64_t total = 0;
    for (std::int64_t i = 0; i < sequences; ++i) total += lengths.emplace_back(random.between(0, longest));
    const LoDTensor x(random_tensor(random, {total, features}), LoD::from_lengths({lengths}));
    const Tensor boot = random_tensor(random, {sequences, hidden});
    SeededExecutor executor(1);
    const RunResult result = sync_wait(executor, run(program, {{"x", x}, {"boot", boot}}));
    const LoDTensor& y = result["y"];
    for (std::int64_t i = 0; i < sequences; ++i) {
      const auto [begin, end] = x.lod().row_range(0, i, i + 1);
      rows.push_back(x.tensor().rows(begin, end));
      boots.push_back(boot.rows(i, i + 1));
      outputs.push_back(y.tensor().rows(begin, end));
    }
  }

  static std::string bytes(const Tensor& tensor) { return std::string(static_cast<const char*>(tensor.raw()), tensor.bytes()); }
};

inline std::shared_ptr<const Recurrence> recurrence_of(const Program& program, const RecurrenceOptions& options = {}) {
  return std::make_shared<const Recurrence>(make_recurrence(program, options));
}

}  // namespace millrace::testing
