// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include <millrace/runtime/builder/var.h>

/// Sequences that a model writes itself, token by token: a while loop over `beam_search_step`, for any number of sources at once. A source that
/// is finished leaves the batch, and the others go on without it.
namespace millrace::build {

/// The results of a model in one step.
struct ModelStep {
  Var scores;  ///< [P, K]: log-probabilities of the next token, of the dtype that the options name
  std::vector<Var> states;
};
/// One step of the model, appended to the loop's body: from the last token of each prefix (i64 [P, 1]), the states of those prefixes ([P, …] each) and
/// the number of the step (i64, from 0). The states it gives have the shapes of those it took. A value of a source (an encoder's
/// output) is a state that is given back as it is. The model sees no LoD.
using Model = std::function<ModelStep(const Var& tokens, const std::vector<Var>& states, const Var& step)>;

/// Changes the scores of all candidates before one is chosen: −∞ forbids one. Called once in the body with scores [P, K], last tokens and step.
using CandidateHook = std::function<Var(const Var& scores, const Var& tokens, const Var& step)>;

struct GenerationOptions {
  std::int64_t end_token = 0;     ///< ProgramError for one that is not among the model's tokens; below 0: none
  std::int64_t max_length = 100;  ///< tokens at most, the end token included; ≥ 1
  double length_penalty = 0;      ///< hypotheses are ranked by score / lengthᵃ
  DType dtype = DType::f32;       ///< of the model's scores
  CandidateHook hook = {};
};

struct Generated {
  Var tokens;  ///< i64 [M, 1] with two levels: source → hypothesis (best first) → its tokens, the end token among them, the start not
  Var scores;  ///< [M, 1], the same levels: the score up to each token
  Var totals;  ///< [hypotheses, 1] with one level
};

/// `start`: i64 or i32 [N] or [N, 1], a token for each of N sources; `states`: [N, …] each. ProgramError as building throws it.
/// Beam search; with `width` 1 the same as greedy.
Generated generate_beam(const Model& model, const Var& start, const std::vector<Var>& states, std::int64_t width,
                        const GenerationOptions& options);
/// The best token at each step (ties: the lowest).
Generated generate_greedy(const Model& model, const Var& start, const std::vector<Var>& states, const GenerationOptions& options);

struct Sampling {
  std::int64_t seed = 0;
  double temperature = 1;
  std::int64_t top = 0;  ///< only so many of the best; 0: all
};
/// A token at random. `keys`: i64 [N] or [N, 1], one for each source: its tokens depend on (seed, key, step) and its own scores, not on
/// the other sources. The scores that add up are the model's, unchanged by temperature.
Generated generate_sampled(const Model& model, const Var& start, const std::vector<Var>& states, const Var& keys, const Sampling& sampling,
                           const GenerationOptions& options);

}  // namespace millrace::build
