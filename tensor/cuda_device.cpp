// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/cuda_device.h>

namespace millrace {

std::shared_ptr<Device> make_device(const Place& place, int threads, std::size_t streams, bool tf32) {
  if (place.is_cpu() && tf32) throw UnsupportedError("device: expected a CUDA device for tf32, found cpu: it multiplies f32 as f32");
  if (place.is_cpu()) return make_cpu_device(threads, streams);
  if (const auto* cuda = std::get_if<CudaPlace>(&place)) {
    CudaOptions options;
    options.index = cuda->index;
    options.streams = streams;
    options.tf32 = tf32;
    return make_cuda_device(options);
  }
  throw PlaceError("device: expected cpu or cuda:INDEX, found " + place.to_string() + ": other backends are made by the program");
}

}  // namespace millrace
