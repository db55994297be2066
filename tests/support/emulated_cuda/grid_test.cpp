// SPDX-License-Identifier: Apache-2.0
// Emulated grids show errors of kernels that a device would not run as their author thinks.
#include <cuda.h>

#include <doctest/doctest.h>

#include <set>

#include <millrace/tensor/cuda_device.h>
#include <millrace/tensor/error.h>
#include <millrace/tensor/launch.h>
#include <millrace/kernels/cuda/with_cuda/warp.cuh>
#include <millrace/tensor/with_cuda/each_index.cuh>

namespace millrace::testing {
namespace {

using cuda::GridShape;
using cuda::Warp;
using cuda::warp_lanes;

template <class F>
void start(const F& f) {
  const auto device = make_cuda_device({});
  const StreamRef stream = device->stream(0);
  const Tensor made(DType::i64, DDim{1}, stream.memory());
  launch(TensorRefs<0>{}, TensorRefs<1>{&made}, [&](KernelContext& context) { f(cuda::queue_of(context)); }, stream);
  made.ready().wait();
}

struct Nothing {
  void operator()(Warp&) const {}
};

/// Lane by lane, which of the others had written before it, or nothing that anyone wrote.
struct Look {
  std::uint32_t* seen;
  void operator()(Warp& warp) const {
    auto* const words = reinterpret_cast<std::uint32_t*>(warp.shared());
    warp.each_lane([&](int lane) {
      words[lane] = 1;
      seen[lane] = words[(lane + 1) % warp_lanes];
    });
  }
};

struct Mark {
  std::vector<std::int64_t>* order;
  void operator()(std::int64_t i) const { order->push_back(i); }
};

}  // namespace

TEST_CASE("a grid that CUDA does not launch is refused: no blocks, too many threads or clusters that do not divide it") {
  const auto code = [](GridShape shape) {
    int found = 0;
    start([&](const cuda::Queue& queue) {
      try {
        cuda::run_grid(queue, shape, Nothing{});
      } catch (const CudaError& e) {
        found = e.code();
      }
    });
    return found;
  };
  CHECK(code({}) == cudaSuccess);
  CHECK(code({.blocks = 0}) == cudaErrorInvalidConfiguration);
  CHECK(code({.warps = 9}) == cudaErrorInvalidConfiguration);
  CHECK(code({.blocks = 3, .cluster = 2}) == cudaErrorInvalidConfiguration);
  CHECK(code({.shared_bytes = 232449}) == cudaErrorInvalidValue);
  CHECK(code({.blocks = 5, .meets = true}) == cudaErrorCooperativeLaunchTooLarge);
}

TEST_CASE(
    "a lane that reads what its neighbour writes without a barrier finds another thing each time, and shared memory starts as no number") {
  std::set<std::vector<std::uint32_t>> found;
  for (int i = 0; i < 8; ++i) {
    std::vector<std::uint32_t> seen(warp_lanes);
    start([&](const cuda::Queue& queue) { cuda::run_grid(queue, {.shared_bytes = warp_lanes * 4}, Look{seen.data()}); });
    for (const std::uint32_t one : seen) CHECK((one == 1 || one == ~0u));
    found.insert(seen);
  }
  CHECK(found.size() > 1);
}

TEST_CASE("indices come in another order each time, and each once") {
  std::set<std::vector<std::int64_t>> found;
  for (int i = 0; i < 8; ++i) {
    std::vector<std::int64_t> order;
    start([&](const cuda::Queue& queue) { cuda::each_index(queue, 1000, Mark{&order}); });
    found.insert(order);
    std::sort(order.begin(), order.end());
    for (std::int64_t at = 0; at < 1000; ++at) CHECK(order[static_cast<std::size_t>(at)] == at);
  }
  CHECK(found.size() > 1);
}

}  // namespace millrace::testing
