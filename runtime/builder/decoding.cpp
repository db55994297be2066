// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/builder/decoding.h>

#include <millrace/runtime/builder/ops.h>

namespace millrace::build {

CrfDecoded crf_decoding(const Var& emission, const Var& transition) {
  const std::vector<Var> made = call("crf_decoding", {emission, transition}, {}, {"path", "score"});
  return {made[0], made[1]};
}

Var linear_chain_crf(const Var& emission, const Var& transition, const Var& label) {
  return call1("linear_chain_crf", {emission, transition, label}, {}, "log_likelihood");
}

}  // namespace millrace::build
