// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/random.h>

#include <string>

#include <millrace/kernels/cpu/random.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/implementations.h>
#include <millrace/tensor/launch.h>

namespace millrace {
namespace {

constexpr internal::Implementations<std::uint64_t, const RandomOptions&, const Tensor&> kernels{"random_numbers", {}, cpu::random_numbers};

}  // namespace

Tensor random_numbers(const DDim& dims, std::uint64_t key, const RandomOptions& options, StreamRef stream) {
  if (options.dtype != DType::f32 && options.dtype != DType::f64)
    throw DTypeError("random_numbers: expected f32 or f64, found " + std::string(name_of(options.dtype)));
  Tensor out(options.dtype, dims, stream.memory());
  internal::check_device_places("random_numbers", stream, {&out});
  launch(TensorRefs<0>{}, TensorRefs<1>{&out}, [=](KernelContext& context) { kernels.run(key, options, out, context); }, stream);
  return out;
}

}  // namespace millrace
