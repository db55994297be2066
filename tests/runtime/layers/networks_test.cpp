// SPDX-License-Identifier: Apache-2.0
// Whole networks from their weights, by the public calls alone, against plain arithmetic in f64 over one sequence at a time.
#include <algorithm>
#include <cmath>
#include <map>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/decoding.h>
#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/sequence_ops.h>
#include <millrace/runtime/layers/conv1d.h>
#include <millrace/runtime/layers/embedding.h>

#include "support/plain_network.h"
#include "support/program_runs.h"
#include "support/random.h"

using namespace millrace;
using namespace millrace::testing;
using namespace millrace::build;

// ---- a tagger: two layers of bidirectional LSTMs with a projection, then a CRF

TEST_CASE("two layers of projected bidirectional LSTMs and a CRF: tags, scores and last states as alone in f64") {
  constexpr std::int64_t words = 11, embedded = 3, hidden = 4, projected = 2, tags = 4;
  for (const std::uint64_t seed : seeds(3)) {
    INFO("seed ", seed);
    Random random(seed);
    const Matrix table(random, words, embedded), transition(random, tags + 2, tags);
    std::vector<Gates> gates;
    std::vector<Matrix> projections;
    for (int k = 0; k < 4; ++k) {
      gates.emplace_back(random, 4, k < 2 ? embedded : 2 * projected, hidden, projected);
      projections.emplace_back(random, projected, hidden);
    }
    const Dense head(random, 2 * projected, tags);
    std::vector<Ids> texts = {{1, 2, 3}, {}, {4}, {9, 8, 7, 6, 5}, {0, 10}};
    const Program program = program_of([&] {
      std::vector<layers::LstmWeights> weights;
      for (std::size_t k = 0; k < 4; ++k)
        weights.push_back(layers::lstm_from_pytorch(gates[k].w.tensor(), gates[k].r.tensor(), gates[k].wb.vector(), gates[k].rb.vector(),
                                                    projections[k].tensor()));
      const Var x = layers::embedding(input("words", ragged_ids), table.tensor());
      const layers::LstmResult y = layers::lstm({x}, weights, {.direction = layers::Direction::bidirectional});
      const CrfDecoded decoded = crf_decoding(layers::linear(y.y, head.ours()), parameter("transition", transition.tensor()));
      output("tags", decoded.path);
      output("score", decoded.score);
      output("h", concat(y.h, 1));
      output("c", concat(y.c, 1));
    });
    const RunResult result = on_cpu(program, {{"words", ids_of(texts)}});
    Ids path;
    Numbers score, last_h, last_c;
    for (const Ids& text : texts) {
      Rows x;
      for (const std::int64_t id : text) x.push_back(table.row(id));
      for (std::size_t layer = 0; layer < 2; ++layer) {
        Rows y(x.size());
        for (const std::size_t way : {0, 1}) {
          Numbers h(projected, 0.0), c(hidden, 0.0);
          for (std::size_t t = 0; t < x.size(); ++t) {
            const std::size_t at = way == 0 ? t : x.size() - 1 - t;
            gates[2 * layer + way].lstm_step(x[at], h, c, &projections[2 * layer + way]);
            y[at] = beside(y[at], h);
          }
          last_h = beside(last_h, h);
          last_c = beside(last_c, c);
        }
        x = y;
      }
      // Every path there is.
      Ids best(text.size(), 0), tried(text.size(), 0);
      double highest = -1e300;
      for (bool more = true; more;) {
        double total = 0;
        for (std::size_t t = 0; t < text.size(); ++t)
          total += head(x[t])[static_cast<std::size_t>(tried[t])] + transition(t == 0 ? 0 : 2 + tried[t - 1], tried[t]);
        if (!text.empty()) total += transition(1, tried.back());
        if (total > highest) {
          highest = total;
          best = tried;
        }
        std::size_t digit = 0;
        while (digit < tried.size() && ++tried[digit] == tags) tried[digit++] = 0;
        more = digit < tried.size();
      }
      path.insert(path.end(), best.begin(), best.end());
      score.push_back(highest);
    }
    CHECK(result["tags"].tensor().to_vector<std::int64_t>() == path);
    check_near(numbers(result["score"]), score);
    check_near(numbers(result["h"]), last_h);
    check_near(numbers(result["c"]), last_c);
  }
}

// ---- speech: convolution, bidirectional GRU, CTC

TEST_CASE("a convolution of every other frame, a bidirectional GRU and CTC: log-probabilities and labels as alone in f64") {
  constexpr std::int64_t features = 3, channels = 4, hidden = 3, labels = 4, taps = 5;
  const std::uint64_t seed = seeds(1)[0];
  INFO("seed ", seed);
  Random random(seed);
  const Matrix filter(random, channels, features * taps), bias(random, 1, channels);
  const std::vector<Gates> gates{Gates(random, 3, channels, hidden), Gates(random, 3, channels, hidden)};
  const Dense head(random, 2 * hidden, labels);
  const Batch frames = random_batch(random, {9, 0, 4, 1}, features);
  const Program program = program_of([&] {
    const Var x = input("frames", VarType(DType::f32, {DDim::unknown, features}, 1));
    const layers::Conv1dWeights conv = layers::conv1d_from_pytorch(f32_tensor(filter.at, {channels, features, taps}), bias.vector());
    const Var y = relu(layers::conv1d({x}, conv, {.causal = false, .stride = 2}));
    const layers::GruResult encoded = layers::gru({y}, {gates[0].gru(), gates[1].gru()}, {.direction = layers::Direction::bidirectional});
    const Var said = log_softmax(layers::linear(encoded.y, head.ours()));
    output("said", said);
    output("greedy", ctc_greedy_decode(said, 0).labels);
    const CtcDecoded found = ctc_beam_search_decode(said, 0, 512);
    output("labels", found.labels);
    output("score", found.score);
  });
  const RunResult result = on_cpu(program, {{"frames", ragged(frames, features)}});
  Numbers said;
  Ids greedy, all_labels;
  Numbers score;
  for (const Rows& x : frames) {
    Rows y, last;
    for (std::int64_t t = 0; std::cmp_less(t, x.size()); t += 2) {
      Numbers row = bias.at;
      for (std::int64_t m = 0; m < channels; ++m) {
        double& at = row[static_cast<std::size_t>(m)];
        for (std::int64_t k = 0; k < taps; ++k)
          for (std::int64_t c = 0; c < features; ++c)
            if (t + k - 2 >= 0 && std::cmp_less(t + k - 2, x.size()))
              at += filter(m, c * taps + k) * x[static_cast<std::size_t>(t + k - 2)][static_cast<std::size_t>(c)];
        at = std::max(at, 0.0);
      }
      y.push_back(row);
    }
    Rows logits;
    for (const Numbers& row : both_ways(gates, y, last)) logits.push_back(log_softmaxed(head(row)));
    std::int64_t before = 0;
    std::map<std::pair<Ids, std::int64_t>, double> alignments{{{{}, 0}, 1.0}};  // labels, last symbol: probability
    for (const Numbers& row : logits) {
      said = beside(said, row);
      const std::int64_t best = std::max_element(row.begin(), row.end()) - row.begin();
      if (best != 0 && best != before) greedy.push_back(best);
      before = best;
      std::map<std::pair<Ids, std::int64_t>, double> next;
      for (const auto& [key, p] : alignments)
        for (std::int64_t symbol = 0; symbol < labels; ++symbol) {
          Ids text = key.first;
          if (symbol != 0 && symbol != key.second) text.push_back(symbol);
          next[{text, symbol}] += p * std::exp(row[static_cast<std::size_t>(symbol)]);
        }
      alignments = std::move(next);
    }
    std::map<Ids, double> total;
    for (const auto& [key, p] : alignments) total[key.first] += p;
    const auto best = std::max_element(total.begin(), total.end(), [](const auto& a, const auto& b) { return a.second < b.second; });
    all_labels.insert(all_labels.end(), best->first.begin(), best->first.end());
    score.push_back(std::log(best->second));
  }
  check_near(numbers(result["said"]), said);
  CHECK(result["greedy"].tensor().to_vector<std::int64_t>() == greedy);
  CHECK(result["labels"].tensor().to_vector<std::int64_t>() == all_labels);
  check_near(numbers(result["score"]), score);
}

// ---- documents: words in sentences, sentences in documents

TEST_CASE("a document's encoder: GRUs over words give what attention over the words of a sentence sums, GRUs over sentences go on") {
  constexpr std::int64_t features = 3, hidden = 4;
  const std::uint64_t seed = seeds(1)[0];
  INFO("seed ", seed);
  Random random(seed);
  const Gates word(random, 3, features, hidden), sentence(random, 3, hidden, hidden);
  const Dense attention(random, hidden, hidden);
  const Matrix looks(random, 1, hidden);
  const LoD::Level in_sentence = {2, 0, 3, 1, 4};
  const LoD::Level in_document = {2, 0, 3};
  const Batch sentences_of = random_batch(random, in_sentence, features);
  const Program program = program_of([&] {
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, features}, 2));
    DynamicRNN documents;
    Var state;
    {
      const auto each = documents.block();
      const Var words = documents.step_input(x);
      state = documents.memory(DType::f32, {hidden});
      const layers::Cell cell = layers::gru_cell(word.gru(), {.name = "word"});
      DynamicRNN inner;
      {
        const auto one = inner.block();
        const Var row = inner.step_input(words);
        const Var h = inner.memory(DType::f32, {hidden});
        const layers::CellStep next = cell(row, {h});
        inner.update_memory(h, next.states[0]);
        inner.output(next.output);
      }
      const Var y = inner.outputs()[0];
      const Var weight = sequence_softmax(
          matmul(tanh(layers::linear(y, attention.ours(), "attention")), parameter("looks", looks.tensor().reshape({hidden, 1}))));
      const Var summary = sequence_pool(y * weight, "sum");
      const Var next = layers::gru_cell(sentence.gru(), {.name = "sentence"})(summary, {state}).output;
      documents.update_memory(state, next);
      documents.output(next);
    }
    output("y", documents.outputs()[0]);
    output("last", documents.last(state));
  });
  const LoDTensor rows = ragged(sentences_of, features);
  const RunResult result = on_cpu(program, {{"x", LoDTensor(rows.tensor(), LoD::from_lengths({in_document, in_sentence}))}});
  Numbers y, last;
  std::size_t at = 0;
  for (const std::int64_t count : in_document) {
    Numbers state(hidden, 0.0);
    for (std::int64_t i = 0; i < count; ++i) {
      Rows h;
      Numbers weight;
      for (const Numbers& row : sentences_of[at]) {
        h.push_back(word.gru_step(row, h.empty() ? Numbers(hidden, 0.0) : h.back()));
        Numbers seen = attention(h.back());
        for (double& value : seen) value = std::tanh(value);
        weight.push_back(dot(looks.at, seen));
      }
      weight = log_softmaxed(weight);
      Numbers summary(hidden, 0.0);
      for (std::size_t t = 0; t < h.size(); ++t)
        for (std::size_t k = 0; k < summary.size(); ++k) summary[k] += std::exp(weight[t]) * h[t][k];
      state = sentence.gru_step(summary, state);
      y = beside(y, state);
      ++at;
    }
    last = beside(last, state);
  }
  check_near(numbers(result["y"]), y);
  check_near(numbers(result["last"]), last);
}

// ---- cells of one's own

TEST_CASE("a ConvLSTM over pictures of 5 in a row is ten lines, ragged, both states images") {
  constexpr std::int64_t in = 2, channels = 3, places = 5, taps = 3;
  const std::uint64_t seed = seeds(1)[0];
  INFO("seed ", seed);
  Random random(seed);
  const Matrix filter(random, 4 * channels, (in + channels) * taps), bias(random, 1, 4 * channels);
  const Batch pictures = random_batch(random, {3, 0, 1, 4}, in * places);
  const Program program = program_of([&] {
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, in * places}, 1));
    const Var w = parameter("w", f32_tensor(filter.at, {4 * channels, in + channels, taps})), b = parameter("b", bias.vector());
    const auto image = [&](const Var& row, std::int64_t c) { return reshape(row, {-1, c, places}); };
    const layers::Cell cell = [&](const Var& row, const std::vector<Var>& s) {
      const Var all = conv1d(concat({image(row, in), image(s[0], channels)}, 1), w, b, 1, 1, {1, 1});
      const std::vector<Var> a = split(all, 1, {channels, channels, channels, channels});
      const Var c = sigmoid(a[1]) * image(s[1], channels) + sigmoid(a[0]) * tanh(a[2]);
      const Var h = reshape(sigmoid(a[3]) * tanh(c), {-1, channels * places});
      return layers::CellStep{h, {h, reshape(c, {-1, channels * places})}};
    };
    const layers::Unrolled made = layers::unroll(cell, {x}, {{channels * places}, {channels * places}});
    output("y", made.output);
    output("c", made.last[1]);
  });
  const RunResult result = on_cpu(program, {{"x", ragged(pictures, in * places)}});
  Numbers y, last;
  for (const Rows& rows : pictures) {
    Numbers h(channels * places, 0.0), c = h;
    for (const Numbers& row : rows) {
      const Numbers all = beside(row, h);
      const auto sum = [&](std::int64_t gate, std::int64_t m, std::int64_t place) {
        double total = bias(0, gate * channels + m);
        for (std::int64_t from = 0; from < in + channels; ++from)
          for (std::int64_t k = 0; k < taps; ++k)
            if (place + k - 1 >= 0 && place + k - 1 < places)
              total += filter(gate * channels + m, from * taps + k) * all[static_cast<std::size_t>(from * places + place + k - 1)];
        return total;
      };
      for (std::int64_t m = 0; m < channels; ++m)
        for (std::int64_t place = 0; place < places; ++place) {
          const auto i = static_cast<std::size_t>(m * places + place);
          c[i] = reference::sigmoid(sum(1, m, place)) * c[i] + reference::sigmoid(sum(0, m, place)) * std::tanh(sum(2, m, place));
          h[i] = reference::sigmoid(sum(3, m, place)) * std::tanh(c[i]);
        }
      y = beside(y, h);
    }
    last = beside(last, c);
  }
  check_near(numbers(result["y"]), y);
  check_near(numbers(result["c"]), last);
}

TEST_CASE("initial states of another number of sequences than a dense input has are refused, where only the run knows too") {
  Random random(seeds(1)[0]);
  const Gates gates(random, 3, 2, 3);
  const auto program = [&](std::int64_t sequences, std::int64_t rows) {
    return program_of([&] {
      const Var x = input("x", VarType(DType::f32, {DDim::unknown, sequences, 2}));
      output("y", layers::gru({x}, {gates.gru()}, {}, {input("h", VarType(DType::f32, {rows, 3}))}).y);
    });
  };
  const auto ones = [](const DDim& dims) { return f32_tensor(Numbers(static_cast<std::size_t>(dims.elements()), 1.0), dims); };
  CHECK_THROWS_AS(program(1, 4), ProgramError);
  for (const std::int64_t sequences : {std::int64_t{2}, DDim::unknown})
    for (const std::int64_t rows : {std::int64_t{2}, DDim::unknown}) {
      const Program made = program(sequences, rows);
      CHECK(on_cpu(made, {{"x", ones({4, 2, 2})}, {"h", ones({2, 3})}})["y"].dims() == DDim{4, 2, 3});
      CHECK_THROWS_AS(on_cpu(made, {{"x", ones({4, 2, 2})}, {"h", ones({1, 3})}}), Error);
      CHECK_THROWS_AS(on_cpu(made, {{"x", ones({4, 1, 2})}, {"h", ones({2, 3})}}), Error);
    }
}
