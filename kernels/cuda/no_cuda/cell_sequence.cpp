// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cuda/cell_sequence.h>

#include <millrace/tensor/error.h>

namespace millrace::cuda {
namespace {

[[noreturn]] void absent() {
  throw UnsupportedError("cell sequence: this build has no CUDA kernels: build with MILLRACE_CUDA=ON and the CUDA Toolkit");
}

}  // namespace

std::string architecture_of(int) { absent(); }
std::shared_ptr<const CellKernel> load_cell(const CellCode&, int) { absent(); }
LstmLimits limits_of(const CellKernel&) { absent(); }
void pack_cell_product(const CellPlan&, std::size_t, const Tensor&, const Tensor&, KernelContext&) { absent(); }
void cell_sequence(const CellPlan&, const CellKernel&, const CellSchedule&, const PackedCell&, const CellRows&, std::int64_t, std::int64_t,
                   KernelContext&) {
  absent();
}

}  // namespace millrace::cuda
