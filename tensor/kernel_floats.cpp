// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/kernel_floats.h>

#if defined(__x86_64__)
#include <immintrin.h>
#else
#include <cfenv>
#endif

namespace millrace {
namespace {

#if defined(__x86_64__)
constexpr std::uint64_t flags = 0x3f;         // the exceptions so far: no setting
constexpr std::uint64_t of_kernels = 0x9fc0;  // exceptions masked, results flushed, operands that are subnormal taken as zeros
std::uint64_t settings() noexcept { return _mm_getcsr(); }
void apply(std::uint64_t to) noexcept { _mm_setcsr(static_cast<unsigned>(to)); }
#elif defined(__aarch64__)
constexpr std::uint64_t flags = 0;
constexpr std::uint64_t of_kernels = 1u << 24;  // results and operands alike
std::uint64_t settings() noexcept {
  std::uint64_t found;
  asm volatile("mrs %0, fpcr" : "=r"(found));
  return found;
}
void apply(std::uint64_t to) noexcept { asm volatile("msr fpcr, %0" : : "r"(to)); }
#else
constexpr std::uint64_t flags = 0;
constexpr std::uint64_t of_kernels = FE_TONEAREST;
std::uint64_t settings() noexcept { return static_cast<std::uint64_t>(std::fegetround()); }
void apply(std::uint64_t to) noexcept { std::fesetround(static_cast<int>(to)); }
#endif

}  // namespace

KernelFloats::KernelFloats() noexcept : found_(settings()), changed_((found_ & ~flags) != of_kernels) {
  if (changed_) apply(of_kernels);
}

KernelFloats::~KernelFloats() {
  if (changed_) apply(found_);
}

}  // namespace millrace
