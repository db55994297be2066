// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cuda/with_cuda/blas_library.h>

#include <cuda_runtime_api.h>
#include <dlfcn.h>

#include <string>

namespace millrace::cuda::blas {
namespace {

bool find(Functions& all) {
  const std::string name = "libcublasLt.so." + std::to_string(CUDART_VERSION / 1000);
  void* library = nullptr;
  for (const char* folder : {"", "/usr/local/cuda/lib64/", "/usr/local/cuda/lib/"})
    if (library == nullptr) library = ::dlopen((folder + name).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return false;
  const auto one = [library](const char* symbol, auto& function) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(::dlsym(library, symbol));
    return function != nullptr;
  };
  return one("cublasLtGetVersion", all.version) && one("cublasLtCreate", all.create) && one("cublasLtDestroy", all.destroy) &&
         one("cublasLtMatmulDescCreate", all.describe) && one("cublasLtMatmulDescDestroy", all.end_description) &&
         one("cublasLtMatmulDescSetAttribute", all.set_description) && one("cublasLtMatrixLayoutCreate", all.lay_out) &&
         one("cublasLtMatrixLayoutDestroy", all.end_layout) && one("cublasLtMatmulPreferenceCreate", all.prefer) &&
         one("cublasLtMatmulPreferenceDestroy", all.end_preference) && one("cublasLtMatmulPreferenceSetAttribute", all.set_preference) &&
         one("cublasLtMatmulAlgoGetHeuristic", all.propose) && one("cublasLtMatmul", all.multiply);
}

}  // namespace

const Functions* find_functions() {
  static Functions all;
  static const bool found = find(all);
  return found ? &all : nullptr;
}

}  // namespace millrace::cuda::blas
