// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cpu/arithmetic.h>

#include <algorithm>
#include <array>

#include <millrace/kernels/cpu/arithmetic_kernels.h>
#include <millrace/kernels/cpu/strided_loop.h>

namespace millrace::cpu {
namespace {

/// `Inputs` of at most so many: a loop over the strides of all.
template <class T, std::size_t Inputs>
void run_inputs(const std::vector<ArithmeticStep>& steps, const std::vector<Tensor>& inputs, const Tensor& out, ThreadTeam& team) {
  std::array<const DDim*, Inputs + 1> strides;
  strides.fill(&inputs[0].strides());
  for (std::size_t i = 0; i < inputs.size(); ++i) strides[i] = &inputs[i].strides();
  strides[Inputs] = &out.strides();
  const StridedLoop<Inputs + 1> loop(out.dims(), strides);
  const std::int64_t width = loop.extent(loop.rank() - 1);
  const std::int64_t grain = std::any_of(steps.begin(), steps.end(), is_heavy) ? grain_heavy : grain_light;
  loop.parallel_rows(team, grain, [&](const auto& offsets, const auto& row_steps, std::int64_t rows, std::int64_t count) {
    ArithmeticCall<T> call;
    call.steps = steps.data();
    call.step_count = std::ssize(steps);
    call.input_count = std::ssize(inputs);
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      const auto* const first =
          static_cast<const std::uint8_t*>(inputs[i].raw()) + offsets[i] * static_cast<std::int64_t>(size_of(inputs[i].dtype()));
      call.inputs[i] = {reinterpret_cast<const T*>(first), row_steps[i], width > 1 && loop.inner()[i] == 0};
    }
    call.from = inputs[0].dtype();
    call.to = out.dtype();
    call.out = reinterpret_cast<T*>(static_cast<std::uint8_t*>(out.raw_mutable()) +
                                    offsets[Inputs] * static_cast<std::int64_t>(size_of(out.dtype())));
    call.out_row = row_steps[Inputs];
    call.rows = rows;
    call.count = count;
    arithmetic_rows(call);
  });
}

template <class T>
void run_type(const std::vector<ArithmeticStep>& steps, const std::vector<Tensor>& inputs, const Tensor& out, ThreadTeam& team) {
  if (inputs.size() <= 4) return run_inputs<T, 4>(steps, inputs, out, team);
  run_inputs<T, most_operands + 1>(steps, inputs, out, team);
}

}  // namespace

void arithmetic(const std::vector<ArithmeticStep>& steps, const std::vector<Tensor>& inputs, const Tensor& out, ThreadTeam& team) {
  if (out.elements() == 0) return;
  out.dtype() == DType::f64 ? run_type<double>(steps, inputs, out, team) : run_type<float>(steps, inputs, out, team);
}

}  // namespace millrace::cpu
