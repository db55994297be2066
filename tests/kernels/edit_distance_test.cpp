// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/edit_distance.h>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {
namespace {

using Row = std::vector<std::int64_t>;

struct Pair {
  std::string hypothesis, reference;
};

/// Letters as tokens, the sequences of one side one behind the other.
struct Side {
  Side(const std::vector<Pair>& pairs, std::string Pair::* side) {
    Row all;
    LoD::Level lengths;
    for (const Pair& pair : pairs) {
      for (const char letter : pair.*side) all.push_back(letter);
      lengths.push_back(static_cast<std::int64_t>((pair.*side).size()));
    }
    rows = Tensor::from(all, DDim{static_cast<std::int64_t>(all.size()), 1});
    lod = LoD::from_lengths({lengths});
  }
  Tensor rows;
  LoD lod;
};

std::vector<float> distances(const std::vector<Pair>& pairs, bool normalised, const Row& ignored, StreamRef stream) {
  const Side a(pairs, &Pair::hypothesis), b(pairs, &Pair::reference);
  return edit_distance(a.rows, a.lod, b.rows, b.lod, normalised, ignored, stream).to_vector<float>();
}

/// The definition, without a table.
std::int64_t plain(const std::string& a, const std::string& b) {
  if (a.empty() || b.empty()) return static_cast<std::int64_t>(a.size() + b.size());
  const std::int64_t kept = plain(a.substr(1), b.substr(1)) + (a[0] == b[0] ? 0 : 1);
  return std::min({kept, plain(a.substr(1), b) + 1, plain(a, b.substr(1)) + 1});
}

std::string word(Random& random) {
  std::string made;
  for (std::int64_t left = random.between(0, 6); left > 0; --left) made += static_cast<char>('a' + random.between(0, 2));
  return made;
}

}  // namespace

TEST_CASE("distances are the known ones, counted and over the length of the reference") {
  CpuDevice device;
  const std::vector<Pair> pairs{{"kitten", "sitting"}, {"flaw", "lawn"}, {"", "abc"}, {"ab", ""}, {"", ""}, {"same", "same"}};
  const float infinite = std::numeric_limits<float>::infinity();
  CHECK(distances(pairs, false, {}, device.stream(0)) == std::vector<float>{3, 2, 3, 2, 0, 0});
  CHECK(distances(pairs, true, {}, device.stream(0)) == std::vector<float>{3.0f / 7, 0.5f, 1, infinite, 0, 0});
}

TEST_CASE("ignored tokens count on neither side") {
  CpuDevice device;
  const std::vector<Pair> pairs{{"a-b--c", "a.bd"}, {"--", "."}};
  CHECK(distances(pairs, false, {'-', '.'}, device.stream(0)) == std::vector<float>{1, 0});
  CHECK(distances(pairs, true, {'-', '.'}, device.stream(0)) == std::vector<float>{1.0f / 3, 0});
}

TEST_CASE("distances are those of the definition, alone and in a crowd, on every device") {
  each_backend([](DeviceUnderTest& on) {
    Random random(5);
    std::vector<Pair> pairs;
    for (int n = 0; n < 60; ++n) pairs.push_back({word(random), word(random)});
    const Side a(pairs, &Pair::hypothesis), b(pairs, &Pair::reference);
    const std::vector<float> found =
        on.down(edit_distance(on.up(a.rows), a.lod, on.up(b.rows), b.lod, false, {}, on.stream())).to_vector<float>();
    for (std::size_t n = 0; n < pairs.size(); ++n) {
      INFO(pairs[n].hypothesis, " and ", pairs[n].reference);
      CHECK(found[n] == static_cast<float>(plain(pairs[n].hypothesis, pairs[n].reference)));
    }
  });
}

TEST_CASE("tokens of 32 bits, of one axis and at a deeper level are taken, and none of them at all") {
  CpuDevice device;
  const LoD two = LoD::from_lengths({{2}, {1, 2}});
  const Tensor a = Tensor::from<std::int32_t>({1, 2, 3}), b = Tensor::from<std::int32_t>({1, 3, 3});
  CHECK(edit_distance(a, two, b, two, false, {}, device.stream(0)).to_vector<float>() == std::vector<float>{0, 1});
  const LoD nobody = LoD::from_lengths({LoD::Level{}});
  CHECK(edit_distance(a.rows(0, 0), nobody, b.rows(0, 0), nobody, true, {}, device.stream(0)).dims() == DDim{0, 1});
}

TEST_CASE("sides that do not belong together are errors that name both") {
  CpuDevice device;
  const Tensor a = Tensor::from<std::int64_t>({1, 2});
  const LoD one = LoD::from_lengths({{2}}), two = LoD::from_lengths({{1, 1}});
  CHECK_THROWS_WITH_AS(edit_distance(a, one, a, two, false, {}, device.stream(0)),
                       "edit_distance: expected as many references as hypotheses, found [[2]] and [[1,1]]", LoDError);
  CHECK_THROWS_AS(edit_distance(a, one, a, LoD(), false, {}, device.stream(0)), LoDError);
  CHECK_THROWS_AS(edit_distance(a, LoD::from_lengths({{3}}), a, one, false, {}, device.stream(0)), LoDError);
  CHECK_THROWS_AS(edit_distance(Tensor::from<float>({1, 2}), one, a, one, false, {}, device.stream(0)), DTypeError);
  CHECK_THROWS_AS(edit_distance(a.reshape(DDim{1, 2}), LoD::from_lengths({{1}}), a, one, false, {}, device.stream(0)), ShapeError);
}

}  // namespace millrace::testing
