// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/ctc.h>

#include <doctest/doctest.h>
#include <kernels/device_under_test.h>

#include <map>

namespace millrace::testing {
namespace {

using Labels = std::vector<std::int64_t>;

Labels collapsed(const Labels& alignment, std::int64_t blank) {
  Labels labels;
  for (std::size_t t = 0; t < alignment.size(); ++t)
    if (alignment[t] != blank && (t == 0 || alignment[t] != alignment[t - 1])) labels.push_back(alignment[t]);
  return labels;
}

/// The probability of each labelling of rows [begin, end), by going through all alignments.
std::map<Labels, double> enumerate(const Tensor& log_probabilities, std::int64_t begin, std::int64_t end, std::int64_t blank) {
  std::map<Labels, double> sums;
  Labels alignment(static_cast<std::size_t>(end - begin), 0);
  for (bool more = true; more;) {
    double score = 0;
    for (std::int64_t t = begin; t < end; ++t) score += log_probabilities[DDim{t, alignment[static_cast<std::size_t>(t - begin)]}];
    sums[collapsed(alignment, blank)] += std::exp(score);
    more = false;
    for (std::size_t at = 0; at < alignment.size() && !more; ++at) {
      more = ++alignment[at] < log_probabilities.dim(1);
      if (!more) alignment[at] = 0;
    }
  }
  return sums;
}

struct Found {
  std::vector<Labels> labels;
  std::vector<double> scores;
};

Found on_host(DeviceUnderTest& on, const CtcLabels& from, const LoD& lod) {
  Found found;
  const Labels all = on.down(from.labels).to_vector<std::int64_t>(), lengths = on.down(from.lengths).to_vector<std::int64_t>();
  const Tensor scores = on.down(from.scores);
  for (std::size_t n = 0; n < lengths.size(); ++n) {
    const auto begin = all.begin() + lod.offsets(lod.depth() - 1)[n], end = all.begin() + lod.offsets(lod.depth() - 1)[n + 1];
    REQUIRE(begin + lengths[n] <= end);
    found.labels.emplace_back(begin, begin + lengths[n]);
    CHECK(std::all_of(begin + lengths[n], end, [](std::int64_t label) { return label == -1; }));
    found.scores.push_back(scores[DDim{static_cast<std::int64_t>(n), 0}]);
  }
  return found;
}

/// Rows of probabilities as logarithms.
Tensor logs(const std::vector<float>& probabilities, std::int64_t classes) {
  std::vector<float> values;
  for (const float p : probabilities) values.push_back(std::log(p));
  return Tensor::from(values, DDim{static_cast<std::int64_t>(values.size()) / classes, classes});
}

Found searched(const Tensor& x, const LoD& lod, const CtcBeam& options) {
  DeviceUnderTest on = cpu_backend(1);
  return on_host(on, ctc_beam_search(x, lod, options, on.stream()), lod);
}

}  // namespace

TEST_CASE("the best path merges repeats and drops blanks, in each sequence alone, on every device") {
  each_backend([](DeviceUnderTest& on) {
    // Best classes, blank 0: 1 1 0 1 2 | 2 2 | (none) | 0.
    const Labels best{1, 1, 0, 1, 2, 2, 2, 0};
    std::vector<float> values;
    for (const std::int64_t label : best)
      for (std::int64_t c = 0; c < 3; ++c) values.push_back(c == label ? -0.5f : -2.0f);
    const LoD lod = LoD::from_lengths({{5, 2, 0, 1}});
    const Found found = on_host(on, ctc_greedy(on.up(Tensor::from(values, DDim{8, 3})), lod, 0, on.stream()), lod);
    CHECK(found.labels == std::vector<Labels>{{1, 1, 2}, {2}, {}, {}});
    CHECK(found.scores == std::vector<double>{-2.5, -1, 0, -0.5});
    const Found last = on_host(on, ctc_greedy(on.up(Tensor::from(values, DDim{8, 3})), lod, 2, on.stream()), lod);
    CHECK(last.labels == std::vector<Labels>{{1, 0, 1}, {}, {}, {0}});
  });
}

TEST_CASE("classes that are as good give the lowest") {
  DeviceUnderTest on = cpu_backend(1);
  const LoD lod = LoD::from_lengths({{2}});
  CHECK(on_host(on, ctc_greedy(Tensor::from(std::vector<float>(6, 1), DDim{2, 3}), lod, 2, on.stream()), lod).labels[0] == Labels{0});
}

TEST_CASE("a wide beam finds the labels with the most probable sum of alignments, on every device and dtype") {
  for (const std::uint64_t seed : seeds(20)) {
    INFO("seed ", seed);
    each_backend([&](DeviceUnderTest& on) {
      for (const DType dtype : floats) {
        Random random(seed);
        const std::int64_t classes = random.between(1, 4), blank = random.between(0, classes - 1);
        LoD::Level lengths;
        for (std::int64_t n = random.between(1, 3); n > 0; --n) lengths.push_back(random.between(0, 5));
        const LoD lod = LoD::from_lengths({lengths});
        const Tensor x = random_tensor(random, dtype, DDim{lod.rows(), classes}, 2);
        const Found found = on_host(on, ctc_beam_search(on.up(x), lod, {blank, 5000, 0}, on.stream()), lod);
        for (std::size_t n = 0; n < lengths.size(); ++n) {
          const auto all = enumerate(x, lod.offsets(0)[n], lod.offsets(0)[n + 1], blank);
          double best = 0;
          for (const auto& [labels, sum] : all) best = std::max(best, sum);
          REQUIRE(all.contains(found.labels[n]));
          CHECK(all.at(found.labels[n]) >= best * (1 - 1e-12));
          CHECK(std::abs(found.scores[n] - std::log(best)) <= 2 * rounding(dtype) * std::max(1.0, std::abs(std::log(best))) + 1e-12);
        }
      }
    });
  }
}

TEST_CASE("where the best path is not the best labelling, the beam finds the latter") {
  // Twice blank with 0.6: the best path is empty with 0.36, but one label has 0.4·0.4 + 2·0.4·0.6 = 0.64.
  const Tensor x = logs({0.6f, 0.4f, 0.6f, 0.4f}, 2);
  const LoD lod = LoD::from_lengths({{2}});
  DeviceUnderTest on = cpu_backend(1);
  CHECK(on_host(on, ctc_greedy(x, lod, 0, on.stream()), lod).labels[0].empty());
  const Found found = searched(x, lod, {0, 4, 0});
  CHECK(found.labels[0] == Labels{1});
  CHECK(found.scores[0] == doctest::Approx(std::log(0.64)));
}

TEST_CASE("a repeat needs a blank between, and a narrow beam forgets what it dropped") {
  const LoD lod = LoD::from_lengths({{3}});
  const Tensor x = logs({0.1f, 0.9f, 0.9f, 0.1f, 0.1f, 0.9f}, 2);
  CHECK(searched(x, lod, {0, 10, 0}).labels[0] == Labels{1, 1});
  const Tensor late = logs({0.6f, 0.4f, 0.6f, 0.4f}, 2);
  CHECK(searched(late, LoD::from_lengths({{2}}), {0, 1, 0}).labels[0].empty());
}

TEST_CASE("only the best classes of a frame go on a prefix when that is asked") {
  const Tensor x = logs({0.3f, 0.5f, 0.2f, 0.2f, 0.2f, 0.6f}, 3);
  const LoD lod = LoD::from_lengths({{2}});
  // Of all, 2 has 0.3·0.6 + 0.2·0.8 = 0.34. Tried are blank or 1, then blank or 2 and the repeat of 1: 1 2 has 0.5·0.6.
  CHECK(searched(x, lod, {0, 10, 0}).labels[0] == Labels{2});
  CHECK(searched(x, lod, {0, 10, 3}).labels[0] == Labels{2});
  CHECK(searched(x, lod, {0, 10, 1}).labels[0] == Labels{1, 2});
  CHECK(searched(x, lod, {0, 10, 1}).scores[0] == doctest::Approx(std::log(0.3)));
}

TEST_CASE("prefixes as good come in the order of their labels, shorter first") {
  const LoD lod = LoD::from_lengths({{1}});
  CHECK(searched(logs({0.25f, 0.25f, 0.25f, 0.25f}, 4), lod, {3, 4, 0}).labels[0].empty());
  CHECK(searched(logs({0.3f, 0.3f, 0.3f, 0.1f}, 4), lod, {3, 4, 0}).labels[0] == Labels{0});
}

TEST_CASE("TensorFlow's decoders: its two sequences greedily, its two best paths of a beam of two") {
  // tensorflow/python/kernel_tests/nn_ops/ctc_decoder_ops_test.py; the blank is its last class.
  DeviceUnderTest on = cpu_backend(1);
  const Tensor x = logs({1,    0,    0, 0, 0, 0,    0.4f, 0.6f, 0, 0, 0.4f, 0.6f, 0, 0.9f, 0.1f, 0,  //
                         0.1f, 0.9f, 0, 0, 0, 0.9f, 0.1f, 0,    0, 0, 0.1f, 0.9f, 0, 0.9f, 0.1f, 0.1f, 0.9f, 0.1f, 0, 0},
                        4);
  const LoD lod = LoD::from_lengths({{4, 5}});
  const Found greedy = on_host(on, ctc_greedy(x, lod, 3, on.stream()), lod);
  CHECK(greedy.labels == std::vector<Labels>{{0, 1}, {1, 1, 0}});
  CHECK(greedy.scores[0] == doctest::Approx(2 * std::log(0.6) + std::log(0.9)));
  CHECK(greedy.scores[1] == doctest::Approx(5 * std::log(0.9)));
  CHECK(on_host(on, ctc_greedy(x, lod, {3, false}, on.stream()), lod).labels == std::vector<Labels>{{0, 1}, {1, 1, 1, 0}});

  // Their softmax, of what they call probabilities.
  const double said[5][6] = {{0.30999, 0.309938, 0.0679938, 0.0673362, 0.0708352, 0.173908},
                             {0.215136, 0.439699, 0.0370931, 0.0393967, 0.0381581, 0.230517},
                             {0.199959, 0.489485, 0.0233221, 0.0251417, 0.0233289, 0.238763},
                             {0.279611, 0.452966, 0.0204795, 0.0209126, 0.0194803, 0.20655},
                             {0.51286, 0.288951, 0.0243026, 0.0220788, 0.0219297, 0.129878}};
  std::vector<double> values;
  for (const auto& frame : said) {
    double sum = 0;
    for (const double logit : frame) sum += std::exp(logit);
    for (const double logit : frame) values.push_back(logit - std::log(sum));
  }
  const CtcLabels two = ctc_beam_search(Tensor::from(values, DDim{5, 6}), LoD::from_lengths({{5}}), {5, 2, 0, 2}, on.stream());
  CHECK(two.labels.to_vector<std::int64_t>() == Labels{1, 1, 0, -1, -1, -1, -1, -1, -1, -1});
  CHECK(two.lengths.to_vector<std::int64_t>() == Labels{2, 1});
  const std::vector<double> scores = two.scores.to_vector<double>();
  CHECK(scores[0] == doctest::Approx(-5.811451).epsilon(1e-6));
  CHECK(scores[1] == doctest::Approx(-6.63339).epsilon(1e-6));
}

TEST_CASE("the best labellings come in order, and where there are fewer, empty ones that are impossible") {
  each_backend([](DeviceUnderTest& on) {
    Random random(7);
    const LoD lod = LoD::from_lengths({{3, 0, 2}});
    const Tensor x = random_tensor(random, DType::f64, DDim{5, 3}, 2);
    const CtcLabels found = ctc_beam_search(on.up(x), lod, {0, 500, 0, 40}, on.stream());
    const Labels labels = on.down(found.labels).to_vector<std::int64_t>(), lengths = on.down(found.lengths).to_vector<std::int64_t>();
    const std::vector<double> scores = on.down(found.scores).to_vector<double>();
    for (std::size_t n = 0; n < 3; ++n) {
      std::map<Labels, double> all = enumerate(x, lod.offsets(0)[n], lod.offsets(0)[n + 1], 0);
      for (std::size_t path = 0; path < 40; ++path) {
        Labels one;
        for (std::int64_t t = 0; t < lengths[n * 40 + path]; ++t)
          one.push_back(labels[static_cast<std::size_t>((lod.offsets(0)[n] + t) * 40) + path]);
        if (all.empty()) {
          CHECK(one.empty());
          CHECK(scores[n * 40 + path] == -std::numeric_limits<double>::infinity());
          continue;
        }
        if (path > 0) CHECK(scores[n * 40 + path] <= scores[n * 40 + path - 1]);
        REQUIRE(all.contains(one));
        CHECK(std::exp(scores[n * 40 + path]) == doctest::Approx(all.at(one)));
        all.erase(one);
      }
      CHECK(all.empty());
    }
  });
}

TEST_CASE("a prefix that left a narrow beam and comes back is one with what went on from it, so no labelling comes twice") {
  each_backend([](DeviceUnderTest& on) {
    for (const std::uint64_t seed : seeds(200)) {
      INFO("seed ", seed);
      Random random(seed);
      const std::size_t paths = 6;
      const LoD lod = LoD::from_lengths({{14}});
      const Tensor x = random_tensor(random, DType::f64, DDim{14, 3}, 4.5);
      const CtcLabels found = ctc_beam_search(on.up(x), lod, {0, 6, 0, 6}, on.stream());
      const Labels labels = on.down(found.labels).to_vector<std::int64_t>(), lengths = on.down(found.lengths).to_vector<std::int64_t>();
      std::map<Labels, int> seen;
      for (std::size_t path = 0; path < paths; ++path) {
        Labels one;
        for (std::size_t t = 0; std::cmp_less(t, lengths[path]); ++t) one.push_back(labels[t * paths + path]);
        CHECK(++seen[one] == 1);
      }
    }
  });
}

TEST_CASE("the loss is the sum over all alignments, on every device and dtype") {
  for (const std::uint64_t seed : seeds(20)) {
    INFO("seed ", seed);
    each_backend([&](DeviceUnderTest& on) {
      for (const DType dtype : floats) {
        Random random(seed);
        const std::int64_t classes = random.between(2, 4), blank = random.between(0, classes - 1);
        LoD::Level frames, said;
        Labels labels;
        for (std::int64_t n = random.between(1, 3); n > 0; --n) {
          frames.push_back(random.between(0, 5));
          said.push_back(random.between(0, 3));
          for (std::int64_t i = 0; i < said.back(); ++i) labels.push_back((blank + random.between(1, classes - 1)) % classes);
        }
        const LoD lod = LoD::from_lengths({frames}), label_lod = LoD::from_lengths({said});
        const Tensor x = random_tensor(random, dtype, DDim{lod.rows(), classes}, 2);
        const Tensor wanted = Tensor::from(labels, DDim{label_lod.rows(), 1});
        const Tensor loss = on.down(ctc_loss(on.up(x), lod, on.up(wanted), label_lod, {blank, false}, on.stream()));
        const Tensor finite = on.down(ctc_loss(on.up(x), lod, on.up(wanted), label_lod, {blank, true}, on.stream()));
        for (std::size_t n = 0; n < frames.size(); ++n) {
          const auto all = enumerate(x, lod.offsets(0)[n], lod.offsets(0)[n + 1], blank);
          const auto found = all.find(Labels(labels.begin() + label_lod.offsets(0)[n], labels.begin() + label_lod.offsets(0)[n + 1]));
          const double here = loss[DDim{static_cast<std::int64_t>(n), 0}], there = finite[DDim{static_cast<std::int64_t>(n), 0}];
          if (found == all.end()) {
            CHECK(here == std::numeric_limits<double>::infinity());
            CHECK(there == 0);
          } else {
            const double exact = -std::log(found->second);
            CHECK(std::abs(here - exact) <= 2 * rounding(dtype) * std::max(1.0, std::abs(exact)) + 1e-12);
            CHECK(there == here);
          }
        }
      }
    });
  }
}

TEST_CASE("the loss is TensorFlow's for its two sequences, and does not depend on what else is there") {
  // tensorflow/python/kernel_tests/nn_ops/ctc_loss_op_test.py, testBasic; the blank is its last class.
  DeviceUnderTest on = cpu_backend(1);
  const Tensor x = logs({0.633766f,  0.221185f, 0.0917319f, 0.0129757f,  0.0142857f,  0.0260553f,   //
                         0.111121f,  0.588392f, 0.278779f,  0.0055756f,  0.00569609f, 0.010436f,    //
                         0.0357786f, 0.633813f, 0.321418f,  0.00249248f, 0.00272882f, 0.0037688f,   //
                         0.0663296f, 0.643849f, 0.280111f,  0.00283995f, 0.0035545f,  0.00331533f,  //
                         0.458235f,  0.396634f, 0.123377f,  0.00648837f, 0.00903441f, 0.00623107f,  //
                         0.30176f,   0.28562f,  0.0831517f, 0.0862751f,  0.0816851f,  0.161508f,    //
                         0.24082f,   0.397533f, 0.0557226f, 0.0546814f,  0.0557528f,  0.19549f,     //
                         0.230246f,  0.450868f, 0.0389607f, 0.038309f,   0.0391602f,  0.202456f,    //
                         0.280884f,  0.429522f, 0.0326593f, 0.0339046f,  0.0326856f,  0.190345f,    //
                         0.423286f,  0.315517f, 0.0338439f, 0.0393744f,  0.0339315f,  0.154046f},
                        6);
  const LoD lod = LoD::from_lengths({{2}, {5, 5}}), said = LoD::from_lengths({{5, 4}});
  const Tensor labels = Tensor::from<std::int32_t>({0, 1, 2, 1, 0, 0, 1, 1, 0});
  const Tensor loss = ctc_loss(x, lod, labels, said, {5, false}, on.stream());
  CHECK(loss.dims() == DDim{2, 1});
  CHECK(loss[DDim{0, 0}] == doctest::Approx(3.34211).epsilon(1e-5));
  CHECK(loss[DDim{1, 0}] == doctest::Approx(5.42262).epsilon(1e-5));
  const Tensor alone =
      ctc_loss(x.rows(5, 10), LoD::from_lengths({{5}}), labels.rows(5, 9), LoD::from_lengths({{4}}), {5, false}, on.stream());
  CHECK(same_bits(alone, loss.rows(1, 2)));
}

namespace {

double log_sum(std::initializer_list<double> terms) {
  double most = -std::numeric_limits<double>::infinity(), sum = 0;
  for (const double term : terms) most = std::max(most, term);
  if (std::isinf(most)) return most;
  for (const double term : terms) sum += std::exp(term - most);
  return most + std::log(sum);
}

/// One sequence by the recursion of Graves (2006), a state at a time: the loss, and the probability of each class in each frame.
struct ByStates {
  ByStates(const std::vector<double>& scores, std::size_t classes, const Labels& labels, std::size_t blank) {
    const double never = -std::numeric_limits<double>::infinity();
    const std::size_t states = 2 * labels.size() + 1, steps = scores.size() / classes;
    const auto class_of = [&](std::size_t s) { return s % 2 == 1 ? static_cast<std::size_t>(labels[s / 2]) : blank; };
    const auto skips = [&](std::size_t s) { return s % 2 == 1 && s > 1 && labels[s / 2] != labels[s / 2 - 1]; };
    std::vector<std::vector<double>> alpha(steps, std::vector<double>(states, never)), beta = alpha;
    for (std::size_t t = 0; t < steps; ++t)
      for (std::size_t s = 0; s < states; ++s) {
        const double before = t == 0
                                  ? (s < 2 ? 0 : never)
                                  : log_sum({alpha[t - 1][s], s > 0 ? alpha[t - 1][s - 1] : never, skips(s) ? alpha[t - 1][s - 2] : never});
        alpha[t][s] = before + scores[t * classes + class_of(s)];
      }
    for (std::size_t t = steps; t-- > 0;)
      for (std::size_t s = 0; s < states; ++s) {
        const auto ahead = [&](std::size_t to) { return to < states ? beta[t + 1][to] + scores[(t + 1) * classes + class_of(to)] : never; };
        beta[t][s] = t + 1 == steps ? (s + 2 >= states ? 0 : never)
                                    : log_sum({ahead(s), ahead(s + 1), s + 2 < states && skips(s + 2) ? ahead(s + 2) : never});
      }
    const double all =
        steps == 0 ? (states == 1 ? 0 : never) : log_sum({alpha[steps - 1][states - 1], states > 1 ? alpha[steps - 1][states - 2] : never});
    loss = -all;
    shares.assign(scores.size(), 0);
    for (std::size_t t = 0; t < steps && all > never; ++t)
      for (std::size_t s = 0; s < states; ++s) shares[t * classes + class_of(s)] += std::exp((alpha[t][s] + beta[t][s]) - all);
  }
  double loss = 0;
  std::vector<double> shares;
};

}  // namespace

TEST_CASE("the loss and its gradient are those of one state after another, for any number of labels and scores far apart") {
  DeviceUnderTest on = cpu_backend(2);
  for (const std::uint64_t seed : seeds(12)) {
    INFO("seed ", seed);
    Random random(seed);
    const std::int64_t classes = random.between(2, 9), blank = random.between(0, classes - 1);
    LoD::Level frames, said;
    Labels labels;
    for (std::int64_t n = 0; n < 24; ++n) {
      said.push_back(n);  // 1 to 47 states: vectors and parts of all lengths
      frames.push_back(random.between(0, 4) == 0 ? random.between(0, n) : random.between(n, 3 * n + 2));
      for (std::int64_t i = 0; i < n; ++i) labels.push_back((blank + random.between(1, classes - 1)) % classes);
    }
    const LoD lod = LoD::from_lengths({frames}), label_lod = LoD::from_lengths({said});
    for (const double range : {0.5, 40.0, 1500.0}) {
      const Tensor drawn = random_tensor(random, DType::f64, DDim{lod.rows(), classes}, range);
      std::vector<double> scores = drawn.to_vector<double>();
      for (double& score : scores) score = random.between(0, 60) == 0 ? -std::numeric_limits<double>::infinity() : score - range;
      const Tensor x = Tensor::from(scores, DDim{lod.rows(), classes}), wanted = Tensor::from(labels, DDim{label_lod.rows(), 1});
      std::vector<double> times;
      for (int n = 0; n < 24; ++n) times.push_back(0.5 + n);
      each_instruction_set([&](const std::string&) {
        const std::vector<double> losses = ctc_loss(x, lod, wanted, label_lod, {blank, false}, on.stream()).to_vector<double>();
        const std::vector<double> gradient =
            ctc_loss_gradient(x, lod, wanted, label_lod, Tensor::from(times, DDim{24, 1}), {blank, true}, on.stream()).to_vector<double>();
        for (std::size_t n = 0; n < 24; ++n) {
          const auto begin = lod.offsets(0)[n] * classes, end = lod.offsets(0)[n + 1] * classes;
          const ByStates one(std::vector<double>(scores.begin() + begin, scores.begin() + end), static_cast<std::size_t>(classes),
                             Labels(labels.begin() + label_lod.offsets(0)[n], labels.begin() + label_lod.offsets(0)[n + 1]),
                             static_cast<std::size_t>(blank));
          if (std::isinf(one.loss))
            CHECK(losses[n] == one.loss);
          else
            CHECK(std::abs(losses[n] - one.loss) <= 1e-14 * std::max(1.0, std::abs(one.loss)));
          double worst = 0;
          for (std::size_t i = 0; i < one.shares.size(); ++i)
            worst = std::max(worst, std::abs(gradient[static_cast<std::size_t>(begin) + i] + times[n] * one.shares[i]));
          CHECK(worst <= 1e-14 * times[n] * std::max(1.0, std::isinf(one.loss) ? 0 : std::abs(one.loss)));
        }
      });
    }
  }
}

TEST_CASE("losses and gradients have the same bits alone and in a crowd, with 1 or 2 threads, and a NaN stays in its sequence") {
  CpuDevice one(1), two(2);
  Random random(5);
  LoD::Level frames, said;
  Labels labels;
  for (std::int64_t n = 0; n < 20; ++n) {
    said.push_back(random.between(0, 12));
    frames.push_back(2 * said.back() + random.between(1, 9));
    for (std::int64_t i = 0; i < said.back(); ++i) labels.push_back(random.between(1, 4));
  }
  const LoD lod = LoD::from_lengths({frames}), label_lod = LoD::from_lengths({said});
  const Tensor x = random_tensor(random, DType::f64, DDim{lod.rows(), 5}, 3), gradient = random_tensor(random, DType::f64, DDim{20, 1}, 1);
  const Tensor wanted = Tensor::from(labels, DDim{label_lod.rows(), 1});
  const Tensor losses = ctc_loss(x, lod, wanted, label_lod, {0, false}, one.stream(0));
  const Tensor made = ctc_loss_gradient(x, lod, wanted, label_lod, gradient, {0, false}, one.stream(0));
  CHECK(same_bits(ctc_loss(x, lod, wanted, label_lod, {0, false}, two.stream(0)), losses));
  CHECK(same_bits(ctc_loss_gradient(x, lod, wanted, label_lod, gradient, {0, false}, two.stream(0)), made));
  for (std::int64_t n = 0; n < 20; ++n) {
    const auto [begin, end] = lod.row_range(0, n, n + 1);
    const auto [from, to] = label_lod.row_range(0, n, n + 1);
    const LoD frames_alone = LoD::from_lengths({{end - begin}}), labels_alone = LoD::from_lengths({{to - from}});
    CHECK(same_bits(ctc_loss(x.rows(begin, end), frames_alone, wanted.rows(from, to), labels_alone, {0, false}, two.stream(0)),
                    losses.rows(n, n + 1)));
    CHECK(same_bits(ctc_loss_gradient(x.rows(begin, end), frames_alone, wanted.rows(from, to), labels_alone, gradient.rows(n, n + 1),
                                      {0, false}, two.stream(0)),
                    made.rows(begin, end)));
  }
  const auto [begin, end] = lod.row_range(0, 7, 8);
  std::vector<double> values = x.to_vector<double>();
  values[static_cast<std::size_t>(begin * 5)] = std::numeric_limits<double>::quiet_NaN();  // the blank of the first frame
  const Tensor odd = Tensor::from(values, DDim{lod.rows(), 5});
  const Tensor with_nan = ctc_loss(odd, lod, wanted, label_lod, {0, false}, two.stream(0));
  CHECK(std::isnan(with_nan[DDim{7, 0}]));
  CHECK(same_bits(with_nan.rows(0, 7), losses.rows(0, 7)));
  CHECK(same_bits(with_nan.rows(8, 20), losses.rows(8, 20)));
  const Tensor its_gradient = ctc_loss_gradient(odd, lod, wanted, label_lod, gradient, {0, false}, two.stream(0));
  CHECK(std::isnan(its_gradient[DDim{begin, 0}]));
  CHECK(same_bits(its_gradient.rows(0, begin), made.rows(0, begin)));
  CHECK(same_bits(its_gradient.rows(end, lod.rows()), made.rows(end, lod.rows())));
}

TEST_CASE("nothing possible is no labels with a score of minus infinity, and a NaN is impossible") {
  const double never = -std::numeric_limits<double>::infinity(), odd = std::numeric_limits<double>::quiet_NaN();
  const LoD lod = LoD::from_lengths({{2, 0}});
  const Found none = searched(Tensor::from(std::vector<double>{never, never, 0, never}, DDim{2, 2}), lod, {0, 4, 0});
  CHECK(none.labels == std::vector<Labels>{{}, {}});
  CHECK(none.scores == std::vector<double>{never, 0});
  const Found one = searched(Tensor::from(std::vector<double>{odd, -1, -1, odd}, DDim{2, 2}), lod, {0, 4, 0});
  CHECK(one.labels[0] == Labels{1});
  CHECK(one.scores[0] == -2);
}

TEST_CASE("a sequence has the same labels and bits alone and in a crowd, with 1 or 2 threads") {
  CpuDevice one(1), two(2);
  Random random(3);
  LoD::Level lengths;
  for (int n = 0; n < 20; ++n) lengths.push_back(random.between(0, 30));
  const LoD lod = LoD::from_lengths({{20}, lengths});
  const Tensor x = random_tensor(random, DType::f32, DDim{lod.rows(), 12}, 4);
  const CtcLabels whole = ctc_beam_search(x, lod, {0, 8, 5}, one.stream(0)), again = ctc_beam_search(x, lod, {0, 8, 5}, two.stream(0));
  const CtcLabels greedy = ctc_greedy(x, lod, 0, two.stream(0));
  CHECK(same_bits(whole.labels, again.labels));
  CHECK(same_bits(whole.scores, again.scores));
  for (std::int64_t n = 0; n < 20; ++n) {
    const auto [begin, end] = lod.row_range(1, n, n + 1);
    const LoD alone = LoD::from_lengths({{end - begin}});
    const CtcLabels found = ctc_beam_search(x.rows(begin, end), alone, {0, 8, 5}, two.stream(0));
    CHECK(same_bits(found.labels, whole.labels.rows(begin, end)));
    CHECK(same_bits(found.scores, whole.scores.rows(n, n + 1)));
    CHECK(same_bits(ctc_greedy(x.rows(begin, end), alone, 0, one.stream(0)).scores, greedy.scores.rows(n, n + 1)));
  }
}

TEST_CASE("what CTC cannot take is an error that names it") {
  CpuDevice device;
  const Tensor x = Tensor::from(std::vector<float>(6, 0), DDim{2, 3});
  const LoD lod = LoD::from_lengths({{2}});
  CHECK_THROWS_WITH_AS(ctc_greedy(x, lod, 3, device.stream(0)), "ctc_greedy: expected a blank of 3 classes, found 3", IndexError);
  CHECK_THROWS_AS(ctc_greedy(x, lod, -1, device.stream(0)), IndexError);
  CHECK_THROWS_AS(ctc_greedy(x.reshape(DDim{6}), lod, 0, device.stream(0)), ShapeError);
  CHECK_THROWS_AS(ctc_greedy(x, LoD::from_lengths({{3}}), 0, device.stream(0)), LoDError);
  CHECK_THROWS_AS(ctc_greedy(Tensor::from<std::int64_t>({1}), lod, 0, device.stream(0)), DTypeError);
  CHECK_THROWS_WITH_AS(ctc_beam_search(x, lod, {0, 0, 0}, device.stream(0)), doctest::Contains("expected a width of 1 or more"),
                       ArgumentError);
  CHECK_THROWS_AS(ctc_beam_search(x, lod, {0, 1, -1}, device.stream(0)), ArgumentError);
  CHECK_THROWS_WITH_AS(ctc_beam_search(x, lod, {0, 2, 0, 3}, device.stream(0)),
                       "ctc_beam_search: expected 1 to 2 paths, the width, found 3", ArgumentError);
  const Tensor label = Tensor::from<std::int64_t>({1});
  const LoD one = LoD::from_lengths({{1}});
  CHECK_THROWS_WITH_AS(ctc_loss(x, lod, Tensor::from<std::int64_t>({3}), one, {}, device.stream(0)),
                       "ctc_loss: expected a label of 3 classes that is not the blank 0, found 3 in row 0", IndexError);
  CHECK_THROWS_AS(ctc_loss(x, lod, label, one, {1, false}, device.stream(0)), IndexError);
  CHECK_THROWS_WITH_AS(ctc_loss(x, lod, label, LoD::from_lengths({{1, 0}}), {}, device.stream(0)), doctest::Contains("[[2]] and [[1,0]]"),
                       LoDError);
  CHECK_THROWS_AS(ctc_loss(x, lod, label.reshape(DDim{1, 1, 1}), one, {}, device.stream(0)), ShapeError);
  CHECK_THROWS_AS(ctc_loss(x, lod, x, lod, {}, device.stream(0)), DTypeError);
}

}  // namespace millrace::testing
