// SPDX-License-Identifier: Apache-2.0
#include <bench/with_dnnl/threads.h>

#include <dlfcn.h>

namespace millrace::bench {

// oneDNN asks OpenMP, which it brings along: no header or library of OpenMP's is needed here.
void set_dnnl_threads(int threads) {
  static void* const found = ::dlsym(RTLD_DEFAULT, "omp_set_num_threads");
  if (found != nullptr) reinterpret_cast<void (*)(int)>(found)(threads);
}

}  // namespace millrace::bench
