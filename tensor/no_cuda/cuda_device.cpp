// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/cuda_device.h>

#include <millrace/tensor/cuda/copy.h>

namespace millrace {
namespace {

[[noreturn]] void absent(const std::string& what) {
  throw UnsupportedError(what + ": this build has no CUDA: build with MILLRACE_CUDA=ON and the CUDA Toolkit");
}

}  // namespace

std::vector<CudaDeviceInfo> cuda_devices() { return {}; }
std::string cuda_status() { return "not in this build"; }
bool uses_tf32(Device&) { return false; }
std::string completion_event_launches(Device&) { return "none"; }
std::shared_ptr<Device> make_cuda_device(const CudaOptions& options) { absent("cuda:" + std::to_string(options.index)); }
std::shared_ptr<MemoryResource> pinned_memory() { absent("pinned memory"); }

namespace cuda {

bool built() noexcept { return false; }
void copy(const Tensor& src, const Tensor&, KernelContext&) { absent("copy of " + src.to_string()); }
void copy_to_host(const Tensor& src, const Tensor&) { absent("copy of " + src.to_string()); }

}  // namespace cuda
}  // namespace millrace
