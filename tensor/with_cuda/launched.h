// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace millrace::cuda {

/// The name of a kernel's functor, as the compiler spells the function that it is given to.
template <class F>
constexpr const char* kernel_of() {
  return __PRETTY_FUNCTION__;
}

/// The kernels that were started last on a stream. CUDA says of a failure only that something failed; these are what it may have been. One
/// thread adds at a time, and any may read.
class Launched {
 public:
  void add(const char* kernel) noexcept {
    const std::uint64_t at = count_.load(std::memory_order_relaxed);
    names_[at % most].store(kernel, std::memory_order_relaxed);
    count_.store(at + 1, std::memory_order_release);
  }
  /// ", behind the kernels Gather, Product": those started last, the oldest first; empty when there were none.
  std::string text() const {
    const std::uint64_t count = count_.load(std::memory_order_acquire);
    std::string made;
    std::string_view before;
    for (std::uint64_t i = count - std::min(count, most); i < count; ++i) {
      const std::string_view name = short_name(names_[i % most].load(std::memory_order_relaxed));
      if (name == before) continue;
      before = name;
      made += (made.empty() ? ", behind the kernels " : ", ") + std::string(name);
    }
    return made;
  }
  /// "Gather" of "... [with F = millrace::cuda::Gather<unsigned int>]" or "... [F = ...]".
  static std::string_view short_name(std::string_view spelled) {
    if (const auto begin = spelled.find("F = "); begin != std::string_view::npos) spelled.remove_prefix(begin + 4);
    spelled = spelled.substr(0, spelled.find_first_of("<];"));
    if (const auto colon = spelled.rfind("::"); colon != std::string_view::npos) spelled.remove_prefix(colon + 2);
    return spelled;
  }

 private:
  static constexpr std::uint64_t most = 8;
  std::array<std::atomic<const char*>, most> names_{};
  std::atomic<std::uint64_t> count_{0};
};

}  // namespace millrace::cuda
