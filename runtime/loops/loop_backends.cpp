// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/loop_backends.h>

#include <variant>

#include <millrace/runtime/loops/cpu_fused/fused_backend.h>
#include <millrace/runtime/loops/cuda_graph/captured_backend.h>
#include <millrace/runtime/loops/cuda_recurrent/cell_backend.h>
#include <millrace/runtime/loops/cuda_recurrent/lstm_backend.h>

namespace millrace {

std::vector<std::shared_ptr<LoopBackend>> make_loop_backends(const LoopSite& site) {
  const Place place = site.device->place();
  if (place.is_cpu()) return {make_fused_backend(site)};
  if (std::holds_alternative<CudaPlace>(place)) return {make_lstm_backend(site), make_cell_backend(site), make_captured_backend(site)};
  return {};
}

std::string no_backend(Backend kind, const Place& place) {
  return (kind == Backend::fused ? "there are no fused kernels for " : "there are no graphs of kernels on ") + place.to_string();
}

}  // namespace millrace
