// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/training/internal/decoder_model.h>

#include <utility>

#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/builder/sequence_ops.h>
#include <millrace/runtime/layers/embedding.h>

namespace millrace::training::internal {

using build::Var;

DecoderModel::DecoderModel(const DecoderSpec& spec, const LayerInit& init, DType dtype, std::int64_t tokens, Encoded encoded)
    : spec_(spec),
      dtype_(dtype),
      end_(tokens),
      encoded_(std::move(encoded)),
      table_(init.embedding("tokens", tokens + 1, spec.embedding)),
      bridge_(init.linear("bridge", encoded_.last_width, spec.units)),
      query_(init.linear("query", spec.units, encoded_.width)),
      head_(init.linear("scores", spec.units + encoded_.width, tokens + 1)),
      cell_(init.gru("decoder", spec.embedding + encoded_.width, spec.units)) {}

Var DecoderModel::words(const Var& tokens) const { return layers::embedding(tokens, table_, {}, "tokens"); }
Var DecoderModel::scores(const Var& seen) const { return layers::linear(seen, head_, "scores"); }
Var DecoderModel::boot() const {
  const Var last = encoded_.last.size() == 1 ? encoded_.last[0] : build::concat(encoded_.last, 1);
  return build::tanh(layers::linear(last, bridge_, "bridge"));
}

template <class Attend>
DecoderModel::Step DecoderModel::step(const Var& word, const Var& state, const Attend& attend) const {
  const Var context = attend(layers::linear(state, query_, "query"));
  const Var next = layers::gru_cell(cell_, {.name = "decoder"})(build::concat({word, context}, 1), {state}).output;
  return {build::concat({next, context}, 1), next};
}

Var DecoderModel::forced(const Var& before) const {
  const Var read = words(before), first = boot();
  build::DynamicRNN rnn;
  {
    const auto block = rnn.block();
    const Var word = rnn.step_input(read);
    const Var rows = rnn.static_input(encoded_.rows);
    const Var state = rnn.memory(first);
    const Step next = step(word, state, [&](const Var& query) {
      const Var weight = build::sequence_softmax(build::sum(rows * build::sequence_expand_as(query, rows), {1}, true));
      return build::sequence_pool(rows * weight, "sum");
    });
    rnn.update_memory(state, next.state);
    rnn.output(next.seen);
  }
  return scores(rnn.outputs()[0]);
}

build::Generated DecoderModel::generated() const {
  const build::PaddedSequences rows = build::sequence_pad(encoded_.rows);
  const Var mask = build::sequence_mask(rows.length, -1, DType::boolean);
  const Var forbidden = build::constant(dtype_ == DType::f64 ? Tensor::scalar(-1e30) : Tensor::scalar(-1e30f));
  const build::Model model = [&](const Var& last, const std::vector<Var>& states, const Var&) {
    const Step next = step(words(last), states[0], [&](const Var& query) {
      const Var score = build::squeeze(build::matmul(states[1], build::unsqueeze(query, {2})), {2});
      const Var weight = build::softmax(build::where(states[2], score, forbidden));
      return build::squeeze(build::matmul(build::unsqueeze(weight, {1}), states[1]), {1});
    });
    return build::ModelStep{build::log_softmax(scores(next.seen)), {next.state, states[1], states[2]}};
  };
  build::GenerationOptions options;
  options.end_token = end_;
  options.max_length = spec_.max_length;
  options.length_penalty = spec_.length_penalty;
  options.dtype = dtype_;
  const Var start = rows.length * build::constant(0) + build::constant(end_);
  return build::generate_beam(model, start, {boot(), rows.rows, mask}, spec_.beam, options);
}

}  // namespace millrace::training::internal
