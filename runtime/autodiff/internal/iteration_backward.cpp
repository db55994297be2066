// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/autodiff/internal/iteration_backward.h>

namespace millrace::autodiff {

void add_weights(Program& program, const std::set<VarId>& active, const Deferred& later, int body, const std::function<VarId(VarId)>& value,
                 const std::function<VarId(std::size_t)>& gradient_of, std::vector<std::pair<VarId, VarId>>& made) {
  const auto wants = [&](std::size_t input) {
    const VarId var = later.op.inputs[input];
    return program.var(var).block != body && active.contains(var);
  };
  const auto gradient = [&](VarId output) {
    const auto found = later.gradients.find(output);
    return found == later.gradients.end() ? no_var : gradient_of(found->second);
  };
  const std::vector<VarId> found =
      GradientSums::call_rule(program, later.op, wants, value, gradient, " in the loop of block " + std::to_string(body));
  for (std::size_t i = 0; i < found.size(); ++i)
    if (found[i] != no_var && wants(i)) made.emplace_back(later.op.inputs[i], found[i]);
}

}  // namespace millrace::autodiff
