// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/matrix_state_kernels.h>

#include <algorithm>
#include <string>
#include <vector>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>
#include <millrace/kernels/cpu/gemm_kernels.h>

#include "support/random.h"

namespace millrace::testing {
namespace {

template <class T>
struct Step {
  std::int64_t keys, values;
  std::vector<T> state, decay, key, added, query;
  std::int64_t decay_step = 0;
  std::vector<T> rate;  ///< none, or one

  Step(Random& random, std::int64_t keys, std::int64_t values, int decays, bool rated) : keys(keys), values(values) {
    const auto numbers = [&](std::int64_t count) {
      std::vector<T> made(static_cast<std::size_t>(count));
      for (T& each : made) each = static_cast<T>(random.real());
      return made;
    };
    state = numbers(keys * values);
    key = numbers(keys);
    query = numbers(keys);
    added = numbers(values);
    if (decays > 0) decay = numbers(decays == 1 ? 1 : keys);
    decay_step = decays == 2 ? 1 : 0;
    if (rated) rate = numbers(1);
  }

  T decayed(std::int64_t i, std::int64_t v) const {
    const T s = state[static_cast<std::size_t>(i * values + v)];
    return decay.empty() ? s : s * decay[static_cast<std::size_t>(i * decay_step)];
  }
  /// Sums of blocks of keys, one after the other.
  template <class F>
  T fold(F term) const {
    T total{};
    for (std::int64_t begin = 0; begin < keys; begin += cpu::k_block) {
      T sum{};
      for (std::int64_t i = begin; i < std::min(keys, begin + cpu::k_block); ++i) sum += term(i);
      total = begin == 0 ? sum : total + sum;
    }
    return total;
  }
  /// Results of a step, column by column: `read`, and `next` in front of it where the matrix changes.
  std::vector<T> reference(bool updates, bool corrects) const {
    std::vector<T> next(state.size()), read;
    for (std::int64_t v = 0; v < values; ++v) {
      const T found = fold([&](std::int64_t i) { return decayed(i, v) * key[static_cast<std::size_t>(i)]; });
      if (!updates) {
        read.push_back(found);
        continue;
      }
      T more = added[static_cast<std::size_t>(v)];
      if (corrects) more = more - found;
      if (corrects && !rate.empty()) more = rate[0] * more;
      const auto changed = [&](std::int64_t i) { return decayed(i, v) + key[static_cast<std::size_t>(i)] * more; };
      for (std::int64_t i = 0; i < keys; ++i) next[static_cast<std::size_t>(i * values + v)] = changed(i);
      read.push_back(fold([&](std::int64_t i) { return changed(i) * query[static_cast<std::size_t>(i)]; }));
    }
    if (!updates) next.clear();
    next.insert(next.end(), read.begin(), read.end());
    return next;
  }
  std::vector<T> run(void (*function)(const cpu::MatrixStep<T>&), bool updates, bool in_place) {
    std::vector<T> before = state, next(updates ? state.size() : 0), read(static_cast<std::size_t>(values));
    cpu::MatrixStep<T> step;
    step.state = before.data();
    step.decay = decay.empty() ? nullptr : decay.data();
    step.decay_step = decay_step;
    step.key = key.data();
    step.added = added.data();
    step.rate = rate.empty() ? nullptr : rate.data();
    step.query = query.data();
    step.next = in_place ? before.data() : next.data();
    step.read = read.data();
    step.keys = keys;
    step.values = values;
    function(step);
    std::vector<T>& made = in_place ? before : next;
    made.insert(made.end(), read.begin(), read.end());
    return made;
  }
};

template <class T>
void check_all(Random& random) {
  const cpu::MatrixFunctions<T> functions = cpu::matrix_functions<T>();
  for (const std::int64_t keys : {1, 7, 64, 65, 130})
    for (const std::int64_t values : {1, 5, 16, 31, 32, 64, 77, 128, 200})
      for (const int decays : {0, 1, 2})
        for (const bool rated : {false, true}) {
          INFO(keys, " keys, ", values, " values, decays ", decays, ", rated ", rated, ", ", sizeof(T), " bytes");
          Step<T> step(random, keys, values, decays, rated);
          CHECK(step.run(functions.read, false, false) == step.reference(false, false));
          for (const bool in_place : {false, true}) {
            CHECK(step.run(functions.update, true, in_place) == step.reference(true, false));
            CHECK(step.run(functions.correct, true, in_place) == step.reference(true, true));
          }
        }
}

}  // namespace

TEST_CASE("steps of a matrix have the bits of plain loops, apart or in place, with every instruction set") {
  each_instruction_set([](const std::string& name) {
    INFO(name);
    Random random(21);
    check_all<float>(random);
    check_all<double>(random);
  });
}

}  // namespace millrace::testing
