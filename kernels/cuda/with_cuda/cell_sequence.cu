// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cuda/cell_sequence.h>

#include <algorithm>
#include <string>

#include <millrace/kernels/cuda/cell_source.h>
#include <millrace/kernels/cuda/lstm_sequence.h>
#include <millrace/tensor/error.h>
#include <millrace/tensor/with_cuda/device_context.h>
#include <millrace/tensor/with_cuda/watermark.h>
#include <millrace/kernels/cuda/recurrent/cell.cuh>
#include <millrace/kernels/cuda/with_cuda/element.cuh>
#include <millrace/kernels/cuda/with_cuda/warp.cuh>

#if !defined(__CUDACC__)
#include <emulated_cell.h>
#endif

namespace millrace::cuda {
namespace {

template <class T>
constexpr bool agrees(DType factors) {
  constexpr auto vector = [](bool are_factors) { return CellPlan::Vector{13, 0, are_factors, -1, 0}; };
  return Arithmetic<T>::chunk == cell_chunk(factors) && weight_piece_bytes<T>(3) == cell_weights_of_chunk(3, Arithmetic<T>::by_mma) &&
         cell_tile_bytes<T>(13, true) == cell_vector_bytes(vector(true), factors) &&
         cell_tile_bytes<T>(13, false) == cell_vector_bytes(vector(false), factors);
}
static_assert(agrees<float>(DType::f32) && agrees<TensorFloat32>(DType::f32) && agrees<bfloat16>(DType::bf16));

template <class T>
void pack_as(const CellPlan& plan, std::size_t product, const Tensor& matrix, const Tensor& packed, const Queue& queue) {
  const std::int64_t k = matrix.dim(0);
  each_index(queue, packed.elements() / static_cast<std::int64_t>(sizeof(T)),
             PackWeights<T>{static_cast<const typename Arithmetic<T>::Stored*>(matrix.raw()), static_cast<T*>(packed.raw_mutable()), k,
                            plan.units, plan.products[product].gates, (k + Arithmetic<T>::chunk - 1) / Arithmetic<T>::chunk});
}

struct Clear {
  std::uint32_t* to;
  MILLRACE_HD void operator()(std::int64_t i) const { to[i] = 0; }
};

}  // namespace

void pack_cell_product(const CellPlan& plan, std::size_t product, const Tensor& matrix, const Tensor& packed, KernelContext& context) {
  const Queue& queue = queue_of(context);
  if (plan.factors == DType::bf16) return pack_as<bfloat16>(plan, product, matrix, packed, queue);
  if (plan.tf32) return pack_as<TensorFloat32>(plan, product, matrix, packed, queue);
  pack_as<float>(plan, product, matrix, packed, queue);
}

// ---- The code ----

#if defined(__CUDACC__)

class CellKernel {
 public:
  CellKernel(const CellCode& code, int device) : device_(device) {
    const OnDevice here(device);
    check(cudaLibraryLoadData(&library_, code.image.data(), nullptr, nullptr, 0, nullptr, nullptr, 0), "cudaLibraryLoadData", device);
    check(cudaLibraryGetKernel(&kernel_, library_, cell_entry), "cudaLibraryGetKernel", device);
    int most = 0;
    check(cudaDeviceGetAttribute(&most, cudaDevAttrMaxSharedMemoryPerBlockOptin, device), "cudaDeviceGetAttribute", device);
    cudaFuncAttributes own = {};
    check(cudaFuncGetAttributes(&own, entry()), "cudaFuncGetAttributes", device);
    shared_bytes_ = most - static_cast<std::int64_t>(own.sharedSizeBytes);
    check(cudaFuncSetAttribute(entry(), cudaFuncAttributeMaxDynamicSharedMemorySize, static_cast<int>(shared_bytes_)),
          "cudaFuncSetAttribute", device);
  }
  /// Waits for the device, since a kernel may still run.
  ~CellKernel() {
    try {
      const OnDevice here(device_);
      static_cast<void>(cudaDeviceSynchronize());
      static_cast<void>(cudaLibraryUnload(library_));
    } catch (const Error&) {  // the device is lost, and its code with it
    }
  }
  CellKernel(const CellKernel&) = delete;
  CellKernel& operator=(const CellKernel&) = delete;

  LstmLimits limits() const {
    const OnDevice here(device_);
    const auto attribute = [this](cudaDeviceAttr which) {
      int value = 0;
      check(cudaDeviceGetAttribute(&value, which, device_), "cudaDeviceGetAttribute", device_);
      return value;
    };
    LstmLimits made;
    made.multiprocessors = attribute(cudaDevAttrMultiProcessorCount);
    made.shared_bytes = shared_bytes_;
    made.cooperative = attribute(cudaDevAttrCooperativeLaunch) != 0;
    if (attribute(cudaDevAttrComputeCapabilityMajor) < 9) return made;
    for (const int blocks : {2, 4, 8, 16})
      if (const int most = most_clusters(entry(), blocks, 8, shared_bytes_, device_); most > 0) made.clusters.emplace_back(blocks, most);
    return made;
  }
  void launch(const Queue& queue, const GridShape& shape, CellArguments a) const {
    void* arguments[] = {&a};
    launch_grid(queue, shape, entry(), arguments);
  }

 private:
  const void* entry() const { return reinterpret_cast<const void*>(kernel_); }
  int device_;
  cudaLibrary_t library_ = nullptr;
  cudaKernel_t kernel_ = nullptr;
  std::int64_t shared_bytes_ = 0;
};

std::string architecture_of(int device) {
  int major = 0, minor = 0;
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device), "cudaDeviceGetAttribute", device);
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device), "cudaDeviceGetAttribute", device);
  return "sm_" + std::to_string(major * 10 + minor) + (major >= 9 ? "a" : "");
}

#else

class CellKernel {
 public:
  CellKernel(const CellCode& code, int) : kernel_(emulated_cell::load(code.image)) {}
  static LstmLimits limits() { return lstm_limits(0, DType::f32); }
  void launch(const Queue& queue, const GridShape& shape, const CellArguments& a) const { run_grid(queue, shape, Run{kernel_, a}); }

 private:
  struct Run {
    emulated_cell::Kernel kernel;
    CellArguments a;
    void operator()(Warp& warp) const { kernel(a, warp); }
  };
  emulated_cell::Kernel kernel_;
};

std::string architecture_of(int) { return "emulated"; }

#endif

std::shared_ptr<const CellKernel> load_cell(const CellCode& code, int device) { return std::make_shared<const CellKernel>(code, device); }
LstmLimits limits_of(const CellKernel& kernel) { return kernel.limits(); }

// ---- A launch ----

namespace {

std::int64_t row_of(const Tensor& tensor) { return tensor.dim(0) == 0 ? 0 : tensor.elements() / tensor.dim(0); }

void point_at(CellArguments& a, const PackedCell& weights, const CellRows& rows) {
  for (std::size_t i = 0; i < weights.products.size(); ++i) a.weights[i] = static_cast<const std::byte*>(weights.products[i].raw());
  for (std::size_t i = 0; i < rows.inputs.size(); ++i) {
    a.inputs[i] = rows.inputs[i].raw();
    a.input_rows[i] = row_of(rows.inputs[i]);
  }
  for (std::size_t i = 0; i < rows.outputs.size(); ++i) {
    a.outputs[i] = rows.outputs[i].raw_mutable();
    a.output_rows[i] = row_of(rows.outputs[i]);
  }
  for (std::size_t i = 0; i < rows.states.size(); ++i) {
    a.states[i] = static_cast<const float*>(rows.states[i].raw());
    a.states_out[i] = static_cast<float*>(rows.states_out[i].raw_mutable());
    a.state_rows[i] = row_of(rows.states[i]);
    a.state_out_rows[i] = row_of(rows.states_out[i]);
  }
  for (std::size_t i = 0; i < rows.shared.size(); ++i) a.shared[i] = static_cast<const float*>(rows.shared[i].raw());
}

/// Bytes of what the blocks exchange.
std::int64_t lay_out(CellArguments& a, const CellPlan& plan) {
  std::int64_t at = 0;
  for (std::size_t v = 0; v < plan.vectors.size(); ++v) {
    const CellPlan::Vector& vector = plan.vectors[v];
    a.vectors_at[v] = at;
    at += (vector.state >= 0 ? 2 : 1) * a.tiles * cell_vector_bytes(vector, plan.factors);
  }
  return at;
}

}  // namespace

void cell_sequence(const CellPlan& plan, const CellKernel& kernel, const CellSchedule& schedule, const PackedCell& weights,
                   const CellRows& rows, std::int64_t first, std::int64_t last, KernelContext& context) {
  const Queue& queue = queue_of(context);
  const auto at = [&](std::int64_t step) { return rows.offsets[static_cast<std::size_t>(step)]; };
  CellArguments a = {};
  point_at(a, weights, rows);
  a.tiles = static_cast<int>((at(first + 1) - at(first) + 7) / 8);
  a.staged = schedule.staged;
  const CellSharedParts parts = cell_shared_parts(plan, schedule);
  a.staged_at = static_cast<int>(parts.staged);
  a.folds_at = static_cast<int>(parts.folds);
  for (std::size_t p = 0; p < plan.products.size(); ++p) {
    a.weights_at[p] = static_cast<int>(parts.weights[p]);
    a.resident[p] = static_cast<int>(schedule.resident[p]);
  }
  const Tensor exchange = scratch(queue, DType::u8, DDim{std::max<std::int64_t>(16, lay_out(a, plan))});
  const Tensor kept = scratch(queue, DType::f32, DDim{std::int64_t{plan.kept} * a.tiles * 8 * plan.units});
  auto* const watermark = static_cast<CudaWatermark*>(rows.watermark.get());
  constexpr double most_ns = 4000;  // as of the LSTM's kernel
  const int published = schedule.step_ns > 0 ? std::max(1, static_cast<int>(std::min(most_ns, most_ns / schedule.step_ns))) : 1;
  const Tensor words = scratch(queue, DType::i32, DDim{group_words(schedule.groups)});
  each_index(queue, words.elements(), Clear{static_cast<std::uint32_t*>(words.raw_mutable())});
  a.group = {static_cast<std::uint32_t*>(words.raw_mutable()),
             watermark == nullptr ? nullptr : watermark->word(),
             (watermark == nullptr ? 0 : watermark->base()) + static_cast<std::uint64_t>(first),
             static_cast<int>(schedule.group),
             schedule.blocks,
             schedule.groups,
             schedule.warps,
             static_cast<int>(last - first),
             published};
  a.exchange = static_cast<std::byte*>(exchange.raw_mutable());
  a.kept = static_cast<float*>(kept.raw_mutable());
  const Tensor offsets = uploaded(queue, {rows.offsets.begin() + first, rows.offsets.begin() + last + 1});
  const Tensor places = uploaded(queue, rows.places);
  const Tensor slots = uploaded(queue, rows.slots);
  a.offsets = integers(offsets);
  a.places = rows.places.empty() ? nullptr : integers(places);
  a.slots = rows.slots.empty() ? nullptr : integers(slots);
  a.mirror = rows.reversed ? rows.offsets.front() + rows.offsets.back() - (rows.offsets[1] - rows.offsets[0]) : -1;
  GridShape shape;
  shape.blocks = schedule.blocks * schedule.groups;
  shape.warps = schedule.warps;
  shape.cluster = schedule.group == LstmSchedule::Group::cluster ? schedule.blocks : 1;
  shape.meets = schedule.group == LstmSchedule::Group::grid;
  shape.shared_bytes = parts.bytes;
  shape.publishes = watermark != nullptr;
  if (watermark != nullptr) shape.begun = watermark->launching();
  kernel.launch(queue, shape, a);
  if (watermark != nullptr) watermark->launched(static_cast<std::uint64_t>(last));
}

}  // namespace millrace::cuda
