// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace millrace::bench {

/// Sets the number of threads that oneDNN takes from here on, on the calling thread. Nothing happens where it was built without OpenMP.
void set_dnnl_threads(int threads);

}  // namespace millrace::bench
