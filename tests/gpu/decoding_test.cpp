// SPDX-License-Identifier: Apache-2.0
// Decoding on the device gives what it gives on the CPU. Where no logarithm or power of CUDA's own takes part, to the bit.
#include <doctest/doctest.h>

#include <kernels/device_under_test.h>
#include <millrace/kernels/beam_search.h>
#include <millrace/kernels/crf.h>
#include <millrace/kernels/ctc.h>
#include <millrace/kernels/edit_distance.h>
#include <millrace/kernels/gather_tree.h>
#include <millrace/kernels/int8.h>
#include <millrace/kernels/sample.h>
#include <millrace/kernels/sequence_top_k.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>

namespace millrace::testing {
namespace {

using Ints = std::vector<std::int64_t>;

LoD random_lod(Random& random, std::int64_t sequences, std::int64_t longest) {
  LoD::Level lengths;
  for (std::int64_t n = 0; n < sequences; ++n) lengths.push_back(random.between(0, longest));
  return LoD::from_lengths({lengths});
}

Tensor random_ints(Random& random, const DDim& dims, std::int64_t least, std::int64_t most) {
  Ints values;
  for (std::int64_t i = 0; i < dims.elements(); ++i) values.push_back(random.between(least, most));
  return Tensor::from(values, dims);
}

bool emulated() { return cuda_devices().front().name == "emulated"; }

/// The same op here and there.
class Both {
 public:
  explicit Both(const std::string& place) : there_(device_backend(place)) {}

  Tensor up(const Tensor& host) { return there_.up(host); }
  StreamRef here() { return here_.stream(0); }
  StreamRef there() { return there_.stream(); }
  void same(const Tensor& device, const Tensor& host) { CHECK(same_bits(there_.down(device), host)); }
  /// The device's own logarithms differ in their last bits.
  void near(const Tensor& device, const Tensor& host) { emulated() ? same(device, host) : nearly(device, host); }
  /// Sums that the vectors of the host take in another order differ, too.
  void nearly(const Tensor& device, const Tensor& host) {
    CHECK(error_of(there_.down(device), reference::values(host)) <= 4 * rounding(host.dtype()) + 1e-12);
  }
  void same(const LoDTensor& device, const LoDTensor& host) {
    CHECK(device.lod() == host.lod());
    same(device.tensor(), host.tensor());
  }

 private:
  CpuDevice here_;
  DeviceUnderTest there_;
};

void ctc(Both& on, Random& random, DType dtype) {
  const std::int64_t classes = random.between(1, 6), blank = random.between(0, classes - 1);
  const LoD lod = random_lod(random, random.between(0, 4), 12);
  const Tensor x = random_tensor(random, dtype, DDim{classes, lod.rows()}, 3).permute({1, 0});
  const Tensor up = on.up(x);
  const CtcGreedy greedy(blank, random.coin());
  const auto alike = [&](const CtcLabels& found, const CtcLabels& wanted, bool exact) {
    on.same(found.labels, wanted.labels);
    on.same(found.lengths, wanted.lengths);
    exact ? on.same(found.scores, wanted.scores) : on.near(found.scores, wanted.scores);
  };
  alike(ctc_greedy(up, lod, greedy, on.there()), ctc_greedy(x, lod, greedy, on.here()), true);
  CtcBeam beam;
  beam.blank = blank;
  beam.width = random.between(1, 7);
  beam.top = random.between(0, classes);
  beam.paths = random.between(1, beam.width);
  alike(ctc_beam_search(up, lod, beam, on.there()), ctc_beam_search(x, lod, beam, on.here()), false);
  if (classes == 1) return;
  LoD::Level said;
  for (std::int64_t n = 0; n < lod.sequences(0); ++n) said.push_back(random.between(0, 4));
  const LoD label_lod = LoD::from_lengths({said});
  Ints labels;
  for (std::int64_t i = 0; i < label_lod.rows(); ++i) labels.push_back((blank + random.between(1, classes - 1)) % classes);
  const Tensor wanted = Tensor::from(labels, DDim{label_lod.rows(), 1});
  const CtcLoss loss{blank, random.coin()};
  on.nearly(ctc_loss(up, lod, on.up(wanted), label_lod, loss, on.there()), ctc_loss(x, lod, wanted, label_lod, loss, on.here()));
}

void crf(Both& on, Random& random, DType dtype) {
  const std::int64_t tags = random.between(1, 9);
  const LoD lod = random_lod(random, random.between(0, 4), 9);
  const Tensor e = random_tensor(random, dtype, DDim{lod.rows(), tags}, 3);
  const Tensor w = random_tensor(random, dtype, DDim{tags, tags + 2}, 3).permute({1, 0});
  const Tensor path = random_ints(random, DDim{lod.rows()}, 0, tags - 1);
  const Tensor e_up = on.up(e), w_up = on.up(w), path_up = on.up(path);
  const CrfPath found = crf_viterbi(e_up, w_up, lod, on.there()), wanted = crf_viterbi(e, w, lod, on.here());
  on.same(found.tags, wanted.tags);
  on.same(found.scores, wanted.scores);
  on.same(crf_score(e_up, w_up, path_up, lod, on.there()), crf_score(e, w, path, lod, on.here()));
  on.near(crf_log_partition(e_up, w_up, lod, on.there()), crf_log_partition(e, w, lod, on.here()));
  on.near(crf_log_likelihood(e_up, w_up, path_up, lod, on.there()), crf_log_likelihood(e, w, path, lod, on.here()));
}

void draws_and_averages(Both& on, Random& random, DType dtype) {
  const std::int64_t rows = random.between(0, 20), classes = random.between(1, 12);
  const Tensor x = random_tensor(random, dtype, DDim{rows, classes}, 3), keys = random_ints(random, DDim{rows, 1}, -9, 9);
  const Tensor step = Tensor::scalar(random.between(0, 99));
  const SampleOptions options{static_cast<std::uint64_t>(random.between(0, 1000)), random.coin() ? 1 : 0.7, random.between(0, classes)};
  const Sampled found = sample_tokens(on.up(x), on.up(keys), on.up(step), options, on.there());
  const Sampled wanted = sample_tokens(x, keys, step, options, on.here());
  on.same(found.tokens, wanted.tokens);
  on.same(found.scores, wanted.scores);

  SequenceTopKAverage average;
  average.channels = random.between(1, 3);
  Ints offsets{0}, row_lengths, column_lengths;
  for (int n = 0; n < 3; ++n) {
    row_lengths.push_back(random.between(0, 3));
    column_lengths.push_back(random.between(0, 5));
    offsets.push_back(offsets.back() + average.channels * row_lengths.back() * column_lengths.back());
  }
  for (std::int64_t n = random.between(1, 3); n > 0; --n) average.ks.push_back(random.between(1, 6));
  Tensor scores = random_tensor(random, DType::f64, DDim{offsets.back()}, 2);
  for (std::int64_t i = 0; i < scores.elements(); ++i) scores.mutable_data<double>()[i] = std::floor(scores.data<double>()[i] * 2);  // ties
  const Tensor narrow = reference::tensor(reference::values(scores), dtype);
  on.same(sequence_top_k_average(on.up(narrow), offsets, row_lengths, column_lengths, average, on.there()),
          sequence_top_k_average(narrow, offsets, row_lengths, column_lengths, average, on.here()));
}

void distances_and_trees(Both& on, Random& random) {
  const std::int64_t pairs = random.between(0, 5);
  const LoD left = random_lod(random, pairs, 7), right = random_lod(random, pairs, 7);
  const Tensor a = random_ints(random, DDim{left.rows(), 1}, 0, 3), b = random_ints(random, DDim{right.rows()}, 0, 3);
  const Ints ignored = random.coin() ? Ints{} : Ints{1, 7};
  const bool normalised = random.coin();
  on.same(edit_distance(on.up(a), left, on.up(b), right, normalised, ignored, on.there()),
          edit_distance(a, left, b, right, normalised, ignored, on.here()));
  const DDim dims{random.between(1, 6), random.between(0, 3), random.between(1, 4)};
  const Tensor ids = random_ints(random, dims, 0, 5), parents = random_ints(random, dims, 0, dims[2] - 1);
  const Tensor lengths = random_ints(random, DDim{dims[1]}, -1, dims[0] + 1), lengths_up = on.up(lengths);
  std::optional<std::int64_t> end;
  if (random.coin()) end = 3;
  const bool all = random.coin();
  on.same(gather_tree(on.up(ids), on.up(parents), all ? nullptr : &lengths_up, end, on.there()),
          gather_tree(ids, parents, all ? nullptr : &lengths, end, on.here()));
}

void bytes(Both& on, Random& random) {
  const std::int64_t m = random.between(0, 11), k = random.between(0, 70), n = random.between(1, 70);
  const Tensor x = random_tensor(random, DType::f32, DDim{k, m}, 5).permute({1, 0}), w = random_tensor(random, DType::f32, DDim{n, k}, 2);
  const QuantizedRows found = quantize_rows(on.up(x), on.there()), wanted = quantize_rows(x, on.here());
  on.same(found.values, wanted.values);
  on.same(found.scales, wanted.scales);
  const QuantizedRows columns = quantize_rows(w, on.here());
  const Tensor weights = columns.values.permute({1, 0}), scales = columns.scales.reshape(DDim{n});
  const auto product = [&](const QuantizedRows& rows, const Tensor& by, const Tensor& by_scales, StreamRef stream) {
    const Int8Plan plan = make_int8_plan({k, n}, stream.place());
    Tensor out(DType::f32, DDim{m, n}, stream.memory());
    run(plan, pack(plan, by, by_scales, stream), rows.values, rows.scales, out, stream);
    return out;
  };
  on.same(product(found, on.up(weights), on.up(scales), on.there()), product(wanted, weights, scales, on.here()));
}

void beams(Both& on, Random& random, DType dtype) {
  const std::int64_t sources = random.between(1, 3), classes = random.between(2, 5);
  const BeamOptions options{random.between(1, 3), 0, random.coin() ? 0.0 : 0.6, false};
  const Tensor start = random_ints(random, DDim{sources, 1}, 0, classes - 1);
  Prefixes there = beam_search_start(on.up(start), dtype, on.there()), here = beam_search_start(start, dtype, on.here());
  for (int t = 0; t < 4; ++t) {
    const Tensor scores = random_tensor(random, dtype, DDim{here.ids.rows(), classes}, 2);
    const Tensor tokens = random_ints(random, scores.dims(), 0, 9), tokens_up = on.up(tokens);
    const bool given = random.coin();
    const BeamStep found = beam_search_step(there, on.up(scores), given ? &tokens_up : nullptr, options, on.there());
    const BeamStep wanted = beam_search_step(here, scores, given ? &tokens : nullptr, options, on.here());
    on.same(found.kept.ids, wanted.kept.ids);
    on.same(found.kept.scores, wanted.kept.scores);
    on.same(found.kept.lengths, wanted.kept.lengths);
    on.same(found.parents, wanted.parents);
    CHECK(found.live == wanted.live);
    if (t == 0) {
      const Hypotheses ours = beam_search_decode(found.kept.ids, found.kept.scores, 1, options, on.there());
      const Hypotheses theirs = beam_search_decode(wanted.kept.ids, wanted.kept.scores, 1, options, on.here());
      on.same(ours.tokens, theirs.tokens);
      on.same(ours.totals, theirs.totals);
    }
    there = found.kept;
    here = wanted.kept;
  }
}

task<void> await_point(Point point) { co_await ready(point); }

}  // namespace

TEST_CASE("what the device decodes is what the CPU decodes, for every dtype") {
  Both on(test_place());
  for (const std::uint64_t seed : seeds(30)) {
    INFO("seed ", seed);
    Random random(seed);
    for (const DType dtype : floats) {
      INFO(name_of(dtype));
      ctc(on, random, dtype);
      crf(on, random, dtype);
      draws_and_averages(on, random, dtype);
      beams(on, random, dtype);
    }
    distances_and_trees(on, random);
    bytes(on, random);
  }
}

TEST_CASE("a tag, a label and a parent that are none fail the stream, and the error names the op") {
  const LoD two = LoD::from_lengths({{2}});
  Random random(1);
  const Tensor x = random_tensor(random, DType::f32, DDim{2, 3}), w = random_tensor(random, DType::f32, DDim{5, 3});
  const Tensor wrong = Tensor::from<std::int64_t>({1, 7}), trees = Tensor::from<std::int64_t>({0, 1, 7, 0}).reshape(DDim{2, 1, 2});
  ThreadExecutor executor(1);
  const auto fails = [&](const auto& op, const char* named, const char* found) {
    DeviceUnderTest on = device_backend(test_place());  // its streams are lost with the first fault
    const Tensor made = op(on);
    CHECK_THROWS_WITH_AS(sync_wait(executor, await_point(made.ready())), doctest::Contains(named), IndexError);
    CHECK_THROWS_WITH_AS(sync_wait(executor, await_point(made.ready())), doctest::Contains(found), IndexError);
  };
  fails([&](DeviceUnderTest& on) { return crf_score(on.up(x), on.up(w), on.up(wrong), two, on.stream()); }, "crf_score on cuda:0",
        "found 7");
  fails([&](DeviceUnderTest& on) { return crf_log_likelihood(on.up(x), on.up(w), on.up(wrong), two, on.stream()); },
        "crf_log_likelihood on cuda:0", "found 7");
  fails([&](DeviceUnderTest& on) { return ctc_loss(on.up(x), two, on.up(wrong), two, {}, on.stream()); }, "ctc_loss on cuda:0", "found 7");
  fails([&](DeviceUnderTest& on) { return gather_tree(on.up(trees), on.up(trees), nullptr, std::nullopt, on.stream()); },
        "gather_tree on cuda:0", "found 7");
}

}  // namespace millrace::testing
