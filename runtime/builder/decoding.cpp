// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/decoding.h>

#include <millrace/runtime/builder/ops.h>

namespace millrace::build {

CrfDecoded crf_decoding(const Var& emission, const Var& transition, const Var& label) {
  const std::vector<Var> made = call("crf_decoding", {emission, transition, label}, {}, {"path", "score"});
  return {made[0], made[1]};
}

Var linear_chain_crf(const Var& emission, const Var& transition, const Var& label) {
  return call1("linear_chain_crf", {emission, transition, label}, {}, "log_likelihood");
}

namespace {

CtcDecoded ctc_decode(const std::string& op, const Var& x, const Attributes& attributes) {
  const std::vector<Var> made = call(op, {x}, attributes, {"labels", "lengths", "score"});
  return {sequence_trim(made[0], made[1]), made[2]};
}

}  // namespace

CtcDecoded ctc_greedy_decode(const Var& x, std::int64_t blank, bool merge_repeated) {
  return ctc_decode("ctc_greedy", x, {{"blank", blank}, {"merge_repeated", merge_repeated}});
}

CtcDecoded ctc_beam_search_decode(const Var& x, std::int64_t blank, std::int64_t width, std::int64_t top) {
  return ctc_decode("ctc_beam_search", x, {{"blank", blank}, {"width", width}, {"top", top}});
}

std::vector<CtcDecoded> ctc_beam_search_paths(const Var& x, std::int64_t blank, std::int64_t width, std::int64_t paths, std::int64_t top) {
  const std::vector<Var> made =
      call("ctc_beam_search", {x}, {{"blank", blank}, {"width", width}, {"top", top}, {"paths", paths}}, {"labels", "lengths", "score"});
  std::vector<CtcDecoded> found;
  for (std::int64_t path = 0; path < paths; ++path) {
    const auto column = [&](const Var& all) { return slice(all, 1, path, path + 1); };
    found.push_back({sequence_trim(column(made[0]), column(made[1])), column(made[2])});
  }
  return found;
}

Var ctc_align(const Var& classes, std::int64_t blank, bool merge_repeated) {
  return call1("ctc_align", {classes}, {{"blank", blank}, {"merge_repeated", merge_repeated}});
}

Var ctc_loss(const Var& x, const Var& labels, std::int64_t blank, bool zero_infinity) {
  return call1("ctc_loss", {x, labels}, {{"blank", blank}, {"zero_infinity", zero_infinity}}, "loss");
}

Var sequence_trim(const Var& x, const Var& lengths) { return call1("sequence_trim", {x, lengths}); }

Var edit_distance(const Var& hypotheses, const Var& references, bool normalised, const std::vector<std::int64_t>& ignored) {
  return call("edit_distance", {hypotheses, references}, {{"normalized", normalised}, {"ignored_tokens", ignored}}, {"distance"})[0];
}

}  // namespace millrace::build
