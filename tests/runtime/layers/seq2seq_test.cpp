// SPDX-License-Identifier: Apache-2.0
// Sequence to sequence from its weights, by the public calls alone, against plain arithmetic in f64 over one sentence at a time.
#include <algorithm>
#include <cmath>
#include <functional>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/generation.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/sequence_ops.h>
#include <millrace/runtime/layers/embedding.h>

#include "support/plain_network.h"
#include "support/program_runs.h"
#include "support/random.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

namespace {

constexpr std::int64_t source_words = 9, target_words = 7, width = 4, units = 5, end_token = 0, first_token = 1;

struct Seq2Seq {
  explicit Seq2Seq(Random& random)
      : source(random, source_words, width),
        target(random, target_words, width),
        encoder{Gates(random, 3, width, units), Gates(random, 3, width, units)},
        bridge(random, 2 * units, units),
        query(random, units, 2 * units),
        decoder(random, 3, width + 2 * units, units),
        head(random, 3 * units, target_words) {}

  struct Encoded {
    Var memory, h;
  };
  Encoded encode() const {
    const Var x = layers::embedding(input("source", ragged_ids), source.tensor(), {}, "source_words");
    const layers::GruResult y = layers::gru({x}, {encoder[0].gru(), encoder[1].gru()}, {.direction = layers::Direction::bidirectional});
    return {y.y, tanh(layers::linear(concat(y.h, 1), bridge.ours(), "bridge"))};
  }
  // [decode]
  /// One step of the decoder, wherever it stands: from the word before and h to log-probabilities and h.
  layers::CellStep decode(const Var& word, const Var& h, const std::function<Var(const Var&)>& attend) const {
    const Var context = attend(layers::linear(h, query.ours(), "query"));
    const Var next = layers::gru_cell(decoder.gru(), {.name = "decoder"})(concat({word, context}, 1), {h}).output;
    return {log_softmax(layers::linear(concat({next, context}, 1), head.ours(), "head")), {next}};
  }
  // [decode]

  // [teacher_forced]
  /// Given the target: a DynamicRNN whose static input is the encoder's ragged output.
  Program teacher_forced() const {
    return program_of([&] {
      const Encoded encoded = encode();
      const Var words = layers::embedding(input("target", ragged_ids), target.tensor(), {}, "target_words");
      DynamicRNN rnn;
      Var h;
      {
        const auto block = rnn.block();
        const Var word = rnn.step_input(words);
        const Var memory = rnn.static_input(encoded.memory);
        h = rnn.memory(encoded.h);
        const layers::CellStep next = decode(word, h, [&](const Var& q) {
          const Var a = sequence_softmax(sum(memory * sequence_expand_as(q, memory), {1}, true));
          return sequence_pool(memory * a, "sum");
        });
        rnn.update_memory(h, next.states[0]);
        rnn.output(next.output);
      }
      output("said", rnn.outputs()[0]);
      output("h", rnn.last(h));
    });
  }
  // [teacher_forced]

  // [free_running]
  /// Left to itself: what the encoder gave goes along as states, padded, with its mask.
  Program free_running(std::int64_t beam, const GenerationOptions& options) const {
    return program_of([&] {
      const Encoded encoded = encode();
      const PaddedSequences memory = sequence_pad(encoded.memory);
      const Var mask = sequence_mask(memory.length, -1, DType::boolean);
      const Model model = [&](const Var& last, const std::vector<Var>& states, const Var&) {
        const layers::CellStep next = decode(layers::embedding(last, target.tensor(), {}, "target_words"), states[0], [&](const Var& q) {
          const Var score = squeeze(matmul(states[1], unsqueeze(q, {2})), {2});
          const Var a = softmax(where(states[2], score, Var(-1e30)));
          return squeeze(matmul(unsqueeze(a, {1}), states[1]), {1});
        });
        return ModelStep{next.output, {next.states[0], states[1], states[2]}};
      };
      const Generated made =
          generate_beam(model, input("start", VarType(DType::i64, {DDim::unknown})), {encoded.h, memory.rows, mask}, beam, options);
      output("tokens", made.tokens);
      output("totals", made.totals);
    });
  }
  // [free_running]

  // In f64, one sentence.
  struct State {
    Rows memory;
    Numbers h;
  };
  State encoded(const Ids& ids) const {
    Rows x, last;
    for (const std::int64_t id : ids) x.push_back(source.row(id));
    State state{both_ways(encoder, x, last), bridge(beside(last[0], last[1]))};
    for (double& value : state.h) value = std::tanh(value);
    return state;
  }
  Numbers say(State& state, std::int64_t token) const {
    const Numbers q = query(state.h);
    Numbers score;
    for (const Numbers& row : state.memory) score.push_back(dot(row, q));
    score = log_softmaxed(score);
    Numbers context(2 * units, 0.0);
    for (std::size_t t = 0; t < score.size(); ++t)
      for (std::size_t i = 0; i < context.size(); ++i) context[i] += std::exp(score[t]) * state.memory[t][i];
    state.h = decoder.gru_step(beside(target.row(token), context), state.h);
    return log_softmaxed(head(beside(state.h, context)));
  }

  Matrix source, target;
  std::vector<Gates> encoder;
  Dense bridge, query;
  Gates decoder;
  Dense head;
};

struct Hypothesis {
  Seq2Seq::State state;
  Ids tokens;
  double total = 0;
  bool done() const { return !tokens.empty() && tokens.back() == end_token; }
};

/// Beam search of one sentence, by lists.
std::vector<Hypothesis> searched(const Seq2Seq& net, const Ids& ids, std::size_t beam, const GenerationOptions& options) {
  std::vector<Hypothesis> live{{net.encoded(ids), {}, 0}};
  for (std::int64_t step = 0; step < options.max_length; ++step) {
    std::vector<Hypothesis> all;
    for (Hypothesis& one : live) {
      if (one.done()) {
        all.push_back(one);
        continue;
      }
      const Numbers said = net.say(one.state, one.tokens.empty() ? first_token : one.tokens.back());
      for (std::size_t token = 0; token < said.size(); ++token) {
        Hypothesis longer = one;
        longer.tokens.push_back(static_cast<std::int64_t>(token));
        longer.total += said[token];
        all.push_back(std::move(longer));
      }
    }
    const auto rank = [&](const Hypothesis& one) {
      return one.total / std::pow(static_cast<double>(one.tokens.size()), options.length_penalty);
    };
    std::sort(all.begin(), all.end(), [&](const Hypothesis& a, const Hypothesis& b) { return rank(a) > rank(b); });
    all.resize(std::min(beam, all.size()));
    live = std::move(all);
    if (std::all_of(live.begin(), live.end(), [](const Hypothesis& one) { return one.done(); })) break;
  }
  return live;
}

const std::vector<Ids> sentences = {{3, 1, 4}, {5}, {2, 6, 5, 3, 8}, {7, 0}};

}  // namespace

TEST_CASE("sequence to sequence with attention, given its targets: each pair as alone in f64, whatever the lengths of both") {
  const std::uint64_t seed = seeds(1)[0];
  INFO("seed ", seed);
  Random random(seed);
  const Seq2Seq net(random);
  const std::vector<Ids> targets = {{1, 2}, {1, 5, 6, 3}, {}, {1}};
  const RunResult result = on_cpu(net.teacher_forced(), {{"source", ids_of(sentences)}, {"target", ids_of(targets)}});
  Numbers said, last;
  for (std::size_t s = 0; s < sentences.size(); ++s) {
    Seq2Seq::State state = net.encoded(sentences[s]);
    for (const std::int64_t token : targets[s]) said = beside(said, net.say(state, token));
    last = beside(last, state.h);
  }
  check_near(numbers(result["said"]), said);
  check_near(numbers(result["h"]), last);
  CHECK(result["said"].lod().to_string() == ids_of(targets).lod().to_string());
}

TEST_CASE("sequence to sequence with attention, left to itself: greedy and beam search find what lists find in f64") {
  for (const std::uint64_t seed : seeds(3)) {
    INFO("seed ", seed);
    Random random(seed);
    const Seq2Seq net(random);
    for (const std::int64_t beam : {1, 3}) {
      const GenerationOptions options{.end_token = end_token, .max_length = 6, .length_penalty = beam == 1 ? 0.0 : 0.7};
      const Tensor start = Tensor::from(Ids(sentences.size(), first_token), DDim{static_cast<std::int64_t>(sentences.size())});
      const RunResult result = on_cpu(net.free_running(beam, options), {{"source", ids_of(sentences)}, {"start", start}});
      Ids tokens;
      Numbers totals;
      std::vector<LoD::Level> lengths(2);
      for (const Ids& sentence : sentences) {
        const std::vector<Hypothesis> best = searched(net, sentence, static_cast<std::size_t>(beam), options);
        lengths[0].push_back(static_cast<std::int64_t>(best.size()));
        for (const Hypothesis& one : best) {
          tokens.insert(tokens.end(), one.tokens.begin(), one.tokens.end());
          totals.push_back(one.total);
          lengths[1].push_back(static_cast<std::int64_t>(one.tokens.size()));
        }
      }
      CHECK(result["tokens"].tensor().to_vector<std::int64_t>() == tokens);
      CHECK(result["tokens"].lod().to_string() == LoD::from_lengths(lengths).to_string());
      check_near(numbers(result["totals"]), totals);
    }
  }
}
