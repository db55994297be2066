// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/dropout.h>

#include <string>

#include <millrace/kernels/cpu/dropout.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

void check_numbers(const char* name, const Tensor& numbers, std::int64_t rows, bool one_for_all) {
  internal::check_index_dtype("dropout", numbers);
  const bool each = numbers.dims() == DDim{rows} || numbers.dims() == DDim{rows, 1};
  if (!each && !(one_for_all && numbers.elements() == 1))
    throw ShapeError("dropout: expected " + std::string(name) + " of each of " + std::to_string(rows) + " rows, found " +
                     numbers.to_string());
}

constexpr internal::Implementations<const Tensor&, const Tensor&, const Tensor*, const Tensor*, const DropoutOptions&, const Tensor&>
    kernels{"dropout", {}, cpu::dropout};

}  // namespace

Tensor dropout(const Tensor& x, const Tensor& samples, const Tensor* steps, const Tensor* epoch, const DropoutOptions& options,
               StreamRef stream) {
  internal::check_floating("dropout", x);
  if (!(options.rate >= 0 && options.rate <= 1))
    throw ArgumentError("dropout: expected a rate of 0 to 1, found " + std::to_string(options.rate));
  if (x.rank() < 1) throw ShapeError("dropout: expected rows, found " + x.to_string());
  check_numbers("the sample", samples, x.dim(0), false);
  if (steps != nullptr) check_numbers("the step", *steps, x.dim(0), true);
  if (epoch != nullptr && epoch->elements() != 1)
    throw ShapeError("dropout: expected an epoch of one element, found " + epoch->to_string());
  if (epoch != nullptr) internal::check_index_dtype("dropout", *epoch);
  const Tensor from = contiguous(x, stream);
  const Tensor step = steps == nullptr ? samples : *steps, era = epoch == nullptr ? samples : *epoch;
  Tensor out(x.dtype(), x.dims(), stream.memory());
  launch(
      TensorRefs<4>{&from, &samples, &step, &era}, TensorRefs<1>{&out},
      [=, has_steps = steps != nullptr, has_epoch = epoch != nullptr](KernelContext& context) {
        kernels.run(from, samples, has_steps ? &step : nullptr, has_epoch ? &era : nullptr, options, out, context);
      },
      stream);
  return out;
}

}  // namespace millrace
