// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <memory>
#include <string>

#include <millrace/kernels/cell_sequence.h>
#include <millrace/tensor/kernel_context.h>

/// The kernels of kernels/cell_sequence.h on a device.
namespace millrace::cuda {

/// k of one piece of packed weights or of staged factors.
constexpr std::int64_t cell_chunk(DType factors) { return factors == DType::f32 ? 8 : 16; }
constexpr bool cell_by_mma(const CellPlan& plan) { return plan.tf32 || plan.factors != DType::f32; }
/// Bytes of a unit block's weights for one chunk, and of a vector of 8 rows: as recurrent/cell.cuh lays them out.
constexpr std::int64_t cell_weights_of_chunk(std::int64_t gates, bool by_mma) { return by_mma ? (gates + 1) / 2 * 512 : 256 * gates; }
constexpr std::int64_t cell_vector_bytes(const CellPlan::Vector& vector, DType factors) {
  const std::int64_t chunk = cell_chunk(factors);
  return vector.factors ? (vector.width + chunk - 1) / chunk * 256 : 32 * vector.width;
}
/// Where the parts of shared memory begin: the weights of each product at 0 and one behind the other.
struct CellSharedParts {
  std::vector<std::int64_t> weights;  ///< by product
  std::int64_t staged = 0, folds = 0, bytes = 0;
};
CellSharedParts cell_shared_parts(const CellPlan& plan, const CellSchedule& schedule);

/// "sm_90a".
std::string architecture_of(int device);
/// The compiler of device code: its name and options, then the code.
std::string compiler_of(const std::string& architecture);
CellCode compile(const CellPlan& plan, const std::string& architecture);

class CellKernel;
std::shared_ptr<const CellKernel> load_cell(const CellCode& code, int device);
LstmLimits limits_of(const CellKernel& kernel);
/// matrix: [k, gates · units] of the plan's factors, contiguous.
void pack_cell_product(const CellPlan& plan, std::size_t product, const Tensor& matrix, const Tensor& packed, KernelContext& context);
/// Steps [first, last) of `rows`.
void cell_sequence(const CellPlan& plan, const CellKernel& kernel, const CellSchedule& schedule, const PackedCell& weights,
                   const CellRows& rows, std::int64_t first, std::int64_t last, KernelContext& context);

}  // namespace millrace::cuda
