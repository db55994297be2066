// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/crf.h>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

namespace millrace::testing {
namespace {

using Tags = std::vector<std::int64_t>;

/// All there is to know of one sequence, by going through every path in f64.
struct Enumerated {
  Tags best;
  double best_score = 0;
  double log_partition = 0;
};

double path_score(const reference::Values& e, const reference::Values& w, const Tags& path, std::int64_t begin) {
  if (path.empty()) return 0;
  const std::int64_t tags = e.dims[1];
  const auto weight = [&](std::int64_t row, std::int64_t tag) { return w.at[static_cast<std::size_t>(row * tags + tag)]; };
  double score = weight(0, path.front()) + weight(1, path.back());
  for (std::size_t t = 0; t < path.size(); ++t) {
    score += e.at[static_cast<std::size_t>((begin + static_cast<std::int64_t>(t)) * tags + path[t])];
    if (t > 0) score += weight(2 + path[t - 1], path[t]);
  }
  return score;
}

/// All paths of `steps` tags.
template <class F>
void each_path(std::int64_t tags, std::int64_t steps, F&& f) {
  Tags path(static_cast<std::size_t>(steps), 0);
  for (bool more = true; more;) {
    f(path);
    more = false;
    for (std::size_t at = 0; at < path.size() && !more; ++at) {
      more = ++path[at] < tags;
      if (!more) path[at] = 0;
    }
  }
}

Enumerated enumerate(const reference::Values& e, const reference::Values& w, std::int64_t begin, std::int64_t end) {
  Enumerated found;
  double sum = 0;
  bool first = true;
  each_path(e.dims[1], end - begin, [&](const Tags& path) {
    const double score = path_score(e, w, path, begin);
    sum += std::exp(score);
    if (first || score > found.best_score) {
      found.best = path;
      found.best_score = score;
    }
    first = false;
  });
  found.log_partition = std::log(sum);
  return found;
}

struct Case {
  explicit Case(std::uint64_t seed, DType dtype) {
    Random random(seed);
    tags = random.between(1, 4);
    LoD::Level lengths;
    for (std::int64_t n = random.between(1, 4); n > 0; --n) lengths.push_back(random.between(0, 5));
    lod = LoD::from_lengths({lengths});
    emission = random_tensor(random, dtype, DDim{lod.rows(), tags}, 2);
    weights = random_tensor(random, dtype, DDim{tags + 2, tags}, 2);
    Tags chosen;
    for (std::int64_t row = 0; row < lod.rows(); ++row) chosen.push_back(random.between(0, tags - 1));
    path = Tensor::from(chosen, DDim{lod.rows(), 1});
  }
  std::int64_t tags;
  LoD lod;
  Tensor emission, weights, path;
};

/// The same elements behind column-major strides.
Tensor transposed_twice(const Tensor& x) {
  Tensor made(x.dtype(), DDim{x.dim(1), x.dim(0)});
  CpuDevice device;
  copy(x.permute({1, 0}), made, device.stream(0));
  return made.permute({1, 0});
}

Tags part(const Tags& all, std::int64_t begin, std::int64_t end) { return Tags(all.begin() + begin, all.begin() + end); }

}  // namespace

TEST_CASE("scores, log-partition and best path are those of going through every path, on every device and dtype") {
  for (const std::uint64_t seed : seeds(25)) {
    INFO("seed ", seed);
    each_backend([&](DeviceUnderTest& on) {
      for (const DType dtype : floats) {
        const Case at(seed, dtype);
        const Tensor e = on.up(at.emission), w = on.up(at.weights), tags = on.up(at.path);
        const CrfPath best = crf_viterbi(e, w, at.lod, on.stream());
        const Tensor score = crf_score(e, w, tags, at.lod, on.stream());
        const Tensor partition = crf_log_partition(e, w, at.lod, on.stream());
        const Tensor likelihood = crf_log_likelihood(e, w, tags, at.lod, on.stream());
        const auto emission = reference::values(at.emission), weights = reference::values(at.weights);
        const Tags found = on.down(best.tags).to_vector<std::int64_t>();
        const double tolerance = 64 * rounding(dtype);
        for (std::int64_t n = 0; n < at.lod.sequences(0); ++n) {
          const std::int64_t begin = at.lod.offsets(0)[static_cast<std::size_t>(n)],
                             end = at.lod.offsets(0)[static_cast<std::size_t>(n) + 1];
          const Enumerated all = enumerate(emission, weights, begin, end);
          const auto near = [&](const Tensor& tensor, double wanted) {
            const double got = on.down(tensor)[DDim{n, 0}];
            CHECK_MESSAGE(std::abs(got - wanted) <= tolerance * std::max(1.0, std::abs(wanted)), got, " expected ", wanted);
          };
          CHECK(std::abs(path_score(emission, weights, part(found, begin, end), begin) - all.best_score) <= 16 * rounding(DType::f32));
          const double chosen = path_score(emission, weights, part(at.path.to_vector<std::int64_t>(), begin, end), begin);
          near(best.scores, all.best_score);
          near(score, chosen);
          near(partition, all.log_partition);
          near(likelihood, chosen - all.log_partition);
        }
      }
    });
  }
}

TEST_CASE("the score of the best path has the bits of that path scored") {
  CpuDevice device;
  for (const std::uint64_t seed : seeds(50)) {
    INFO("seed ", seed);
    const Case at(seed, DType::f32);
    const CrfPath best = crf_viterbi(at.emission, at.weights, at.lod, device.stream(0));
    CHECK(same_bits(crf_score(at.emission, at.weights, best.tags, at.lod, device.stream(0)), best.scores));
  }
}

TEST_CASE("Fluid's rows of weights are start, end, then from tag to tag") {
  CpuDevice device;
  const Tensor w = Tensor::from(std::vector<float>{0, 1, 10, 20, 0, 5, 100, 0}, DDim{4, 2});
  const Tensor e = Tensor(DType::f32, DDim{2, 2});
  for (std::int64_t i = 0; i < 4; ++i) static_cast<float*>(e.raw_mutable())[i] = 0;
  e.storage()->mark_written();
  const LoD lod = LoD::from_lengths({{2}});
  const auto score = [&](std::int64_t a, std::int64_t b) {
    return crf_score(e, w, Tensor::from<std::int64_t>({a, b}), lod, device.stream(0)).item();
  };
  CHECK(score(0, 0) == 0 + 0 + 10);
  CHECK(score(0, 1) == 0 + 5 + 20);
  CHECK(score(1, 0) == 1 + 100 + 10);
  CHECK(score(1, 1) == 1 + 0 + 20);
  CHECK(crf_viterbi(e, w, lod, device.stream(0)).tags.to_vector<std::int64_t>() == Tags{1, 0});
}

TEST_CASE("paths that are as good give the lowest tags") {
  CpuDevice device;
  const Tensor e = Tensor::from(std::vector<float>(12, 0.5f), DDim{4, 3});
  const Tensor w = Tensor::from(std::vector<float>(15, 0.25f), DDim{5, 3});
  CHECK(crf_viterbi(e, w, LoD::from_lengths({{3, 1}}), device.stream(0)).tags.to_vector<std::int64_t>() == Tags{0, 0, 0, 0});
}

TEST_CASE("sequences without rows score 0, and so do none at all") {
  each_backend([](DeviceUnderTest& on) {
    const Tensor w = on.up(Tensor::from(std::vector<float>(8, 1), DDim{4, 2}));
    Tensor none(DType::f32, DDim{0, 2}, on.stream().memory());
    const Tensor no_tags(DType::i64, DDim{0}, on.stream().memory());
    const LoD lod = LoD::from_lengths({{0, 0}});
    CHECK(on.down(crf_viterbi(none, w, lod, on.stream()).scores).to_vector<float>() == std::vector<float>{0, 0});
    CHECK(on.down(crf_log_partition(none, w, lod, on.stream())).to_vector<float>() == std::vector<float>{0, 0});
    CHECK(on.down(crf_log_likelihood(none, w, no_tags, lod, on.stream())).to_vector<float>() == std::vector<float>{0, 0});
    const LoD nobody = LoD::from_lengths({LoD::Level{}});
    CHECK(crf_viterbi(none, w, nobody, on.stream()).tags.dims() == DDim{0, 1});
    CHECK(crf_log_partition(none, w, nobody, on.stream()).dims() == DDim{0, 1});
  });
}

TEST_CASE("impossible moves stay impossible, and a NaN wins") {
  CpuDevice device;
  const float never = -std::numeric_limits<float>::infinity();
  const LoD lod = LoD::from_lengths({{2}});
  const Tensor w = Tensor::from(std::vector<float>{0, never, 0, 0, never, 0, 0, 0}, DDim{4, 2});
  const Tensor e = Tensor::from(std::vector<float>{0, 9, 9, 1}, DDim{2, 2});
  CHECK(crf_viterbi(e, w, lod, device.stream(0)).tags.to_vector<std::int64_t>() == Tags{0, 1});
  CHECK(crf_log_partition(e, w, lod, device.stream(0)).item() == 1);
  const Tensor shut = Tensor::from(std::vector<float>{never, never, 0, 0, 0, 0, 0, 0}, DDim{4, 2});
  CHECK(crf_log_partition(e, shut, lod, device.stream(0)).item() == never);
  const Tensor odd = Tensor::from(std::vector<float>{0, std::numeric_limits<float>::quiet_NaN(), 9, 1}, DDim{2, 2});
  CHECK(std::isnan(crf_viterbi(odd, w, lod, device.stream(0)).scores.item()));
  CHECK(std::isnan(crf_log_partition(odd, w, lod, device.stream(0)).item()));
}

TEST_CASE("a sequence has the same bits alone and in a crowd, with 1 or 2 threads, at any depth of LoD and with any strides") {
  CpuDevice one(1), two(2);
  Random random(7);
  LoD::Level lengths;
  for (int n = 0; n < 60; ++n) lengths.push_back(random.between(0, 40));
  const LoD lod = LoD::from_lengths({{25, 0, 35}, lengths});
  const Tensor e = random_tensor(random, DType::f32, DDim{lod.rows(), 57}, 3), w = random_tensor(random, DType::f32, DDim{59, 57}, 3);
  const CrfPath whole = crf_viterbi(e, w, lod, one.stream(0));
  const Tensor partition = crf_log_partition(e, w, lod, one.stream(0));
  const CrfPath again = crf_viterbi(transposed_twice(e), transposed_twice(w), lod, two.stream(0));
  CHECK(same_bits(again.tags, whole.tags));
  CHECK(same_bits(again.scores, whole.scores));
  CHECK(same_bits(crf_log_partition(transposed_twice(e), w, lod, two.stream(0)), partition));
  for (std::int64_t n = 0; n < 60; ++n) {
    const auto [begin, end] = lod.row_range(1, n, n + 1);
    const LoD alone = LoD::from_lengths({{end - begin}});
    const CrfPath path = crf_viterbi(e.rows(begin, end), w, alone, two.stream(0));
    CHECK(same_bits(path.tags, whole.tags.rows(begin, end)));
    CHECK(same_bits(path.scores, whole.scores.rows(n, n + 1)));
    CHECK(same_bits(crf_log_partition(e.rows(begin, end), w, alone, two.stream(0)), partition.rows(n, n + 1)));
  }
}

TEST_CASE("the gradient is what the tags use less what all paths expect, also where their scores are hundreds and thousands apart") {
  CpuDevice device;
  const double never = -std::numeric_limits<double>::infinity();
  for (const std::uint64_t seed : seeds(40))
    for (const double range : {2.0, 600.0, 3000.0}) {
      INFO("seed ", seed, " range ", range);
      const Case at(seed, DType::f64);
      const std::int64_t tags = at.tags;
      auto emission = reference::values(at.emission), weights = reference::values(at.weights);
      Random random(seed + 1000);
      for (double& x : emission.at) x *= range / 2;
      for (double& x : weights.at) x = random.between(0, 9) == 0 && tags > 2 ? (random.between(0, 1) == 0 ? never : -1e5) : x * range / 2;
      const Tensor e = Tensor::from(emission.at, emission.dims), w = Tensor::from(weights.at, weights.dims);
      std::vector<double> gradient;
      for (std::int64_t n = 0; n < at.lod.sequences(0); ++n) gradient.push_back(0.5 + static_cast<double>(n));
      std::vector<double> rows(emission.at.size(), 0), moves(weights.at.size(), 0);
      bool possible = true;
      for (std::int64_t n = 0; n < at.lod.sequences(0); ++n) {
        const std::int64_t begin = at.lod.offsets(0)[static_cast<std::size_t>(n)], end = at.lod.offsets(0)[static_cast<std::size_t>(n) + 1];
        if (begin == end) continue;
        const auto count = [&](const Tags& path, double times) {
          for (std::size_t t = 0; t < path.size(); ++t) {
            rows[static_cast<std::size_t>((begin + static_cast<std::int64_t>(t)) * tags + path[t])] += times;
            if (t > 0) moves[static_cast<std::size_t>((2 + path[t - 1]) * tags + path[t])] += times;
          }
          moves[static_cast<std::size_t>(path.front())] += times;
          moves[static_cast<std::size_t>(tags + path.back())] += times;
        };
        std::vector<std::pair<Tags, double>> paths;
        each_path(tags, end - begin, [&](const Tags& path) { paths.emplace_back(path, path_score(emission, weights, path, begin)); });
        double most = never, sum = 0;
        for (const auto& [path, score] : paths) most = std::max(most, score);
        for (const auto& [path, score] : paths) sum += std::exp(score - most);
        possible = possible && most > never;
        const double times = gradient[static_cast<std::size_t>(n)];
        for (const auto& [path, score] : paths) count(path, -times * (std::exp(score - most) / sum));
        count(part(at.path.to_vector<std::int64_t>(), begin, end), times);
      }
      if (!possible) continue;
      each_instruction_set([&](const std::string&) {
        const CrfGradient made =
            crf_log_likelihood_gradient(e, w, at.path, Tensor::from(gradient, DDim{at.lod.sequences(0), 1}), at.lod, device.stream(0));
        const std::vector<double> said_rows = made.emission.to_vector<double>(), said_weights = made.weights.to_vector<double>();
        for (std::size_t i = 0; i < rows.size(); ++i) CHECK(std::abs(said_rows[i] - rows[i]) <= 1e-9);
        for (std::size_t i = 0; i < moves.size(); ++i) CHECK(std::abs(said_weights[i] - moves[i]) <= 1e-9);
      });
    }
}

TEST_CASE("a gradient has the same bits alone and in a crowd, with 1 or 2 threads and with any strides, and a NaN stays in its sequence") {
  CpuDevice one(1), two(2);
  Random random(9);
  LoD::Level lengths;
  for (int n = 0; n < 39; ++n) lengths.push_back(random.between(0, 30));
  lengths.push_back(5);
  const LoD lod = LoD::from_lengths({lengths});
  for (const std::int64_t tags : {1, 7, 21}) {
    const Tensor e = random_tensor(random, DType::f32, DDim{lod.rows(), tags}, 30),
                 w = random_tensor(random, DType::f32, DDim{tags + 2, tags}, 30);
    Tags chosen;
    for (std::int64_t row = 0; row < lod.rows(); ++row) chosen.push_back(random.between(0, tags - 1));
    const Tensor path = Tensor::from(chosen, DDim{lod.rows(), 1}), gradient = random_tensor(random, DType::f32, DDim{40, 1}, 1);
    const CrfGradient whole = crf_log_likelihood_gradient(e, w, path, gradient, lod, one.stream(0));
    const CrfGradient again = crf_log_likelihood_gradient(transposed_twice(e), transposed_twice(w), path, gradient, lod, two.stream(0));
    CHECK(same_bits(again.emission, whole.emission));
    CHECK(same_bits(again.weights, whole.weights));
    Tensor odd = transposed_twice(e);
    const auto [first, last] = lod.row_range(0, 39, 40);
    REQUIRE(last > first);
    static_cast<float*>(odd.raw_mutable())[last - 1] = std::numeric_limits<float>::quiet_NaN();
    const CrfGradient with_nan = crf_log_likelihood_gradient(odd, w, path, gradient, lod, one.stream(0));
    CHECK(same_bits(with_nan.emission.rows(0, first), whole.emission.rows(0, first)));
    for (const float x : with_nan.emission.rows(first, last).to_vector<float>()) CHECK(std::isnan(x));
    for (std::int64_t n = 0; n < 40; ++n) {
      const auto [begin, end] = lod.row_range(0, n, n + 1);
      const CrfGradient alone = crf_log_likelihood_gradient(e.rows(begin, end), w, path.rows(begin, end), gradient.rows(n, n + 1),
                                                            LoD::from_lengths({{end - begin}}), two.stream(0));
      CHECK(same_bits(alone.emission, whole.emission.rows(begin, end)));
    }
  }
}

TEST_CASE("what does not fit is an error that names both") {
  CpuDevice device;
  const StreamRef stream = device.stream(0);
  const LoD lod = LoD::from_lengths({{2}});
  const Tensor e = Tensor::from(std::vector<float>(6, 0), DDim{2, 3}), w = Tensor::from(std::vector<float>(15, 0), DDim{5, 3});
  CHECK_THROWS_WITH_AS(crf_viterbi(e, w.rows(0, 4), lod, stream), "crf_viterbi: expected [5, 3] for weights, found [4, 3]", ShapeError);
  CHECK_THROWS_AS(crf_viterbi(e.reshape(DDim{6}), w, lod, stream), ShapeError);
  CHECK_THROWS_AS(crf_viterbi(e, w, LoD::from_lengths({{3}}), stream), LoDError);
  CHECK_THROWS_WITH_AS(crf_viterbi(e, w, LoD(), stream), "crf_viterbi: expected rows with sequences, found a LoD without levels", LoDError);
  CHECK_THROWS_AS(crf_viterbi(e, Tensor::from(std::vector<double>(15, 0), DDim{5, 3}), lod, stream), DTypeError);
  CHECK_THROWS_WITH_AS(crf_score(e, w, Tensor::from<std::int64_t>({0}), lod, stream),
                       "crf_score: expected one tag for each of 2 rows, found i64[1] on cpu", ShapeError);
  CpuDevice failing;
  CHECK_THROWS_WITH_AS(crf_score(e, w, Tensor::from<std::int64_t>({0, 3}), lod, failing.stream(0)),
                       doctest::Contains("crf_score: expected a tag of 3, found 3 in row 1"), IndexError);
}

}  // namespace millrace::testing
