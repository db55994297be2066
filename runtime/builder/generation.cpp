// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/generation.h>

#include <string>

#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>

namespace millrace::build {
namespace {

/// The tokens that may follow the prefixes: scores [P, K], and their tokens where they are not the columns.
struct Candidates {
  Var scores;
  Var tokens;
};
/// Gives the candidates from the hooked scores of a step; `own` are states that the model does not see.
using Choose = std::function<Candidates(const Var& scores, const std::vector<Var>& own, const Var& step)>;

/// States in the rows of the prefixes that go on: how many those are changes from iteration to iteration.
std::vector<Var> per_prefix(const std::vector<Var>& states, const Var& parents) {
  std::vector<Var> rows;
  for (const Var& state : states) rows.push_back(gather(state, parents));
  return rows;
}

void update(std::vector<Var> states, const std::vector<Var>& next) {
  for (std::size_t i = 0; i < states.size(); ++i) states[i].update(next[i]);
}

Attributes step_attributes(std::int64_t width, const GenerationOptions& options) {
  return {{"beam_size", width}, {"end_id", options.end_token}, {"length_penalty", options.length_penalty}};
}

ModelStep run_model(const Model& model, const Var& tokens, const std::vector<Var>& states, const Var& step,
                    const GenerationOptions& options) {
  ModelStep next = model(tokens, states, step);
  if (next.states.size() != states.size())
    throw ProgramError("generate: expected " + std::to_string(states.size()) + " states from the model, found " +
                       std::to_string(next.states.size()));
  const VarType& scores = next.scores.type();
  const std::int64_t classes = scores.is_tensor() && scores.rank() == 2 ? (*scores.shape)[1] : DDim::unknown;
  if (classes >= 0 && options.end_token >= classes)
    throw ProgramError("generate: expected an end_token among the " + std::to_string(classes) + " tokens of the model, found " +
                       std::to_string(options.end_token));
  if (options.hook) next.scores = options.hook(next.scores, tokens, step);
  return next;
}

Generated generate(const Model& model, const Var& start, const std::vector<Var>& of_model, const std::vector<Var>& own,
                   const Choose& choose, std::int64_t width, const GenerationOptions& options) {
  if (options.max_length < 1)
    throw ProgramError("generate: expected a max_length of 1 or more, found " + std::to_string(options.max_length));
  const ArrayVar all_ids = ArrayVar::growable("ids"), all_scores = ArrayVar::growable("scores");
  const std::vector<Var> first = call("beam_search_start", {start}, {{"dtype", options.dtype}}, {"ids", "scores", "lengths", "parents"});
  Var step = constant(0), live = constant(true), ids = first[0], scores = first[1], lengths = first[2];
  const std::vector<Var> states = per_prefix(of_model, first[3]), own_states = per_prefix(own, first[3]);
  std::vector<Var> carried{step, live, ids, scores, lengths};
  carried.insert(carried.end(), states.begin(), states.end());
  carried.insert(carried.end(), own_states.begin(), own_states.end());
  WhileLoop loop = while_loop(carried);
  {
    const auto frame = loop.frame();
    loop.break_if(logical_or(equal(step, constant(options.max_length)), logical_not(live)));
    const ModelStep said = run_model(model, drop_lod(ids), states, step, options);
    const Candidates candidates = choose(said.scores, own_states, step);
    const std::vector<Var> kept = call("beam_search_step", {ids, scores, lengths, candidates.scores, candidates.tokens},
                                       step_attributes(width, options), {"ids", "scores", "lengths", "parents", "live"});
    all_ids.write(step, kept[0]);
    all_scores.write(step, kept[1]);
    update(states, per_prefix(said.states, kept[3]));
    update(own_states, per_prefix(own_states, kept[3]));
    ids.update(kept[0]);
    scores.update(kept[1]);
    lengths.update(kept[2]);
    live.update(kept[4]);
    step.update(step + constant(1));
  }
  const std::vector<Var> found =
      call("beam_search_decode", {all_ids.var(), all_scores.var()},
           {{"end_id", options.end_token}, {"length_penalty", options.length_penalty}}, {"tokens", "scores", "totals"});
  return {found[0], found[1], found[2]};
}

Candidates as_they_are(const Var& scores, const std::vector<Var>&, const Var&) { return {scores, Var()}; }

}  // namespace

Generated generate_beam(const Model& model, const Var& start, const std::vector<Var>& states, std::int64_t width,
                        const GenerationOptions& options) {
  return generate(model, start, states, {}, as_they_are, width, options);
}

Generated generate_greedy(const Model& model, const Var& start, const std::vector<Var>& states, const GenerationOptions& options) {
  return generate_beam(model, start, states, 1, options);
}

Generated generate_sampled(const Model& model, const Var& start, const std::vector<Var>& states, const Var& keys, const Sampling& sampling,
                           const GenerationOptions& options) {
  const Attributes attributes{{"seed", sampling.seed}, {"temperature", sampling.temperature}, {"top", sampling.top}};
  const Choose draw = [attributes](const Var& scores, const std::vector<Var>& own, const Var& step) {
    const std::vector<Var> drawn = call("sample_tokens", {scores, own[0], step}, attributes, {"token", "score"});
    return Candidates{drawn[1], drawn[0]};
  };
  return generate(model, start, states, {keys}, draw, 1, options);
}

}  // namespace millrace::build
