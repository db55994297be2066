// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/internal/implementations.h>

#include <string>

#include <doctest/doctest.h>
#include <millrace/kernels/crf.h>
#include <millrace/kernels/ctc.h>
#include <millrace/kernels/dropout.h>
#include <millrace/tensor/stream.h>

namespace millrace::testing {
namespace {

using Adds = internal::Implementations<int, int, std::string&>;

void reference(int a, int b, std::string& out, ThreadTeam&) { out = "reference " + std::to_string(a + b); }
void fast(int a, int b, std::string& out, ThreadTeam&) { out = "fast " + std::to_string(a + b); }
void faster(int a, int b, std::string& out, ThreadTeam&) { out = "faster " + std::to_string(a + b); }
void there(int a, int b, std::string& out, KernelContext& context) { out = context.place().to_string() + " " + std::to_string(a + b); }
const char* takes_even(const KernelContext&, int a, int, std::string&) { return a % 2 == 0 ? nullptr : "takes an even number"; }
const char* takes_tens(const KernelContext&, int a, int, std::string&) { return a % 10 == 0 ? nullptr : "takes tens"; }

/// Contexts of the host and of a device that exists in name alone.
struct Contexts {
  ThreadTeam team{1};
  std::shared_ptr<MemoryResource> memory = host_memory();
  int queue = 0;
  KernelContext host{CpuPlace{}, team, memory};
  KernelContext device{CudaPlace{1}, team, memory, &queue};
};

std::string added(const Adds& adds, int a, int b, KernelContext& context) {
  std::string out;
  adds.run(a, b, out, context);
  return out;
}

/// A stream of a device whose memory the host can reach: its context has a queue of the device.
class DeviceStream final : public Stream {
 public:
  Place place() const override { return CudaPlace{0}; }
  const std::shared_ptr<MemoryResource>& memory() const noexcept override { return memory_; }
  bool enter() noexcept override { return true; }
  KernelContext& context() noexcept override { return context_; }
  void leave(std::exception_ptr) noexcept override {}
  void push(std::unique_ptr<Work>) override {}
  void wait(const Point&) override {}
  Point position() override { return {}; }

 private:
  std::shared_ptr<MemoryResource> memory_ = host_memory();
  ThreadTeam team_{1};
  int queue_ = 0;
  KernelContext context_{CudaPlace{0}, team_, memory_, &queue_};
};

}  // namespace

TEST_CASE("the first implementation that takes the arguments runs, in the order of the list, the reference last") {
  constexpr Adds adds{"add", {{"faster", faster, takes_tens}, {"fast", fast, takes_even}}, reference};
  Contexts contexts;
  CHECK(added(adds, 20, 1, contexts.host) == "faster 21");
  CHECK(added(adds, 2, 1, contexts.host) == "fast 3");
  CHECK(added(adds, 3, 1, contexts.host) == "reference 4");
}

TEST_CASE("kernels of a device run where the context has a queue of one, those of the host elsewhere") {
  constexpr Adds adds{"add", {{"cuda", there}}, reference};
  Contexts contexts;
  CHECK(added(adds, 1, 2, contexts.device) == "cuda:1 3");
  CHECK(added(adds, 1, 2, contexts.host) == "reference 3");
}

TEST_CASE("the choice has a name and is made without a run") {
  constexpr Adds adds{"add", {{"cuda", there}, {"fast", fast, takes_even}}, reference};
  Contexts contexts;
  std::string out;
  CHECK(std::string(adds.choose(contexts.device, 1, 2, out).name()) == "cuda");
  CHECK(std::string(adds.choose(contexts.host, 2, 2, out).name()) == "fast");
  CHECK(std::string(adds.choose(contexts.host, 1, 2, out).name()) == "cpu");
  CHECK(out.empty());
}

TEST_CASE("each list ends in a reference that takes any arguments in host memory") {
  constexpr Adds alone{"add", {}, reference};
  constexpr Adds several{"add", {{"cuda", there}, {"fast", fast, takes_even}, {"faster", faster, takes_tens}}, reference};
  Contexts contexts;
  std::string out;
  for (const Adds* adds : {&alone, &several}) {
    CHECK(std::string(adds->list().back().name()) == "cpu");
    for (int a = 0; a < 20; ++a) CHECK(adds->list().back().refusal(contexts.host, a, 1, out) == nullptr);
  }
}

TEST_CASE("a refusal names the op, the place, and each implementation with its reason") {
  constexpr Adds adds{"add", {{"fast", fast}, {"cuda", there, takes_even}}, reference};
  Contexts contexts;
  CHECK_THROWS_WITH_AS(
      added(adds, 3, 1, contexts.device),
      "add: expected an implementation for cuda:1, found none: fast computes in host memory, cuda takes an even number, cpu "
      "computes in host memory: run the program on cpu",
      UnsupportedError);
}

TEST_CASE("more implementations than a list holds are refused") {
  CHECK_THROWS_WITH_AS((Adds{"add", {{"a", fast}, {"b", fast}, {"c", fast}, {"d", fast}}, reference}),
                       "implementations of add: expected at most 4, found 5", ArgumentError);
}

TEST_CASE("ops without kernels for a device are refused there by the op and the place") {
  DeviceStream stream;
  const std::string rest = ": expected an implementation for cuda:0, found none: cpu computes in host memory: run the program on cpu";
  const auto of = [](DType dtype, const DDim& dims) {
    Tensor made(dtype, dims);
    made.storage()->mark_written();
    return made;
  };
  const LoD one = LoD::from_lengths({{2}});
  CHECK_THROWS_WITH_AS(dropout(of(DType::f32, DDim{2, 3}), of(DType::i64, DDim{2}), nullptr, nullptr, {}, stream),
                       ("dropout" + rest).c_str(), UnsupportedError);
  CHECK_THROWS_WITH_AS(
      ctc_loss_gradient(of(DType::f32, DDim{2, 3}), one, of(DType::i64, DDim{2}), one, of(DType::f32, DDim{1, 1}), {}, stream),
      ("ctc_loss_gradient" + rest).c_str(), UnsupportedError);
  CHECK_THROWS_WITH_AS(crf_log_likelihood_gradient(of(DType::f32, DDim{2, 3}), of(DType::f32, DDim{5, 3}), of(DType::i64, DDim{2}),
                                                   of(DType::f32, DDim{1, 1}), one, stream),
                       ("crf_log_likelihood_gradient" + rest).c_str(), UnsupportedError);
}

}  // namespace millrace::testing
