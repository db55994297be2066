// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/adam.h>

#include <cmath>
#include <cstring>
#include <vector>

#include <doctest/doctest.h>

#include <support/random.h>

namespace millrace::testing {
namespace {

template <class T>
struct State {
  std::vector<T> g, w, m, v;
};

template <class T>
State<T> some(Random& random, std::size_t count) {
  const auto numbers = [&](bool positive) {
    std::vector<T> made(count);
    for (T& each : made) each = static_cast<T>(random.between(positive ? 0 : -1000, 1000)) / T{777};
    return made;
  };
  return {numbers(false), numbers(false), numbers(false), numbers(true)};
}

/// The formula of the header, element by element.
template <class T>
void reference(const AdamNumbers<T>& n, State<T>& x) {
  for (std::size_t i = 0; i < x.g.size(); ++i) {
    if (n.decoupled) x.w[i] *= n.shrink;
    const T decayed = n.decay * x.w[i];
    const T slope = n.decoupled ? x.g[i] : x.g[i] + decayed;
    const T a = n.beta1 * x.m[i], b = n.rest1 * slope, square = slope * slope, c = n.beta2 * x.v[i], d = n.rest2 * square;
    x.m[i] = a + b;
    x.v[i] = c + d;
    const T step = n.stride * (x.m[i] / (std::sqrt(x.v[i]) / n.root + n.epsilon));
    x.w[i] -= step;
  }
}

template <class T>
bool same(const std::vector<T>& a, const std::vector<T>& b) {
  return a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(T)) == 0;
}

template <class T>
void check_sizes(bool decoupled) {
  const std::uint64_t seed = 5;
  CAPTURE(seed);
  Random random(seed);
  const AdamNumbers<T> numbers{T(0.9), T(0.999), T(0.1), T(0.001), T(0.01), T(0.3), T(1e-8), T(0.02), T(0.9998), decoupled};
  for (std::size_t count = 0; count < 70; ++count) {
    State<T> found = some<T>(random, count), wanted = found;
    adam_update(numbers, found.g.data(), found.w.data(), found.m.data(), found.v.data(), static_cast<std::int64_t>(count));
    reference(numbers, wanted);
    CAPTURE(count);
    CHECK(same(found.w, wanted.w));
    CHECK(same(found.m, wanted.m));
    CHECK(same(found.v, wanted.v));
    CHECK(same(found.g, wanted.g));
  }
}

TEST_CASE("Adam and AdamW update any number of elements with the bits of the formula, each operation rounded once") {
  for (const bool decoupled : {false, true}) {
    check_sizes<float>(decoupled);
    check_sizes<double>(decoupled);
  }
}

}  // namespace
}  // namespace millrace::testing
