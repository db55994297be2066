// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <string_view>

#include <millrace/runtime/loops/cpu_fused/fused_loop.h>

namespace millrace {

class CapturedLoop;
class Device;

/// How loops run. All backends give the same bits.
enum class Backend : std::uint8_t {
  automatic,  ///< the fastest that a loop fits; iteration by iteration where none does, or where somebody wants to see its iterations (a trace, step scopes)
  interpreted,  ///< each iteration a task
  captured,  ///< on CUDA: a graph of the iteration's kernels, which the device runs until the loop ends; a loop that does not fit, iteration by iteration
  fused      ///< the loop as one kernel, also when the run is traced; a loop that does not fit, iteration by iteration
};

/// "auto", "interpreted", "captured", "fused".
constexpr std::string_view name_of(Backend backend) {
  constexpr std::string_view names[] = {"auto", "interpreted", "captured", "fused"};
  return names[static_cast<std::size_t>(backend)];
}
/// The backend of that name, or nothing.
constexpr std::optional<Backend> backend_of(std::string_view name) {
  for (const Backend backend : {Backend::automatic, Backend::interpreted, Backend::captured, Backend::fused})
    if (name == name_of(backend)) return backend;
  return std::nullopt;
}

/// The fused form of one while op, made when it is first wanted. Thread-safe.
class FusedForm {
 public:
  /// Null when the loop does not fit; `reason` says why.
  std::shared_ptr<const FusedLoop> get(const Program& program, int block, const Op& loop) {
    std::call_once(once_, [&] {
      try {
        loop_ = std::make_shared<const FusedLoop>(program, block, loop);
      } catch (const Error& error) {
        reason_ = error.what();
      }
    });
    return loop_;
  }
  const std::string& reason() const noexcept { return reason_; }

 private:
  std::once_flag once_;
  std::shared_ptr<const FusedLoop> loop_;
  std::string reason_;
};

/// The same as a graph of one device (loops/cuda_graph/captured_loop.h).
class CapturedGraphs {
 public:
  std::shared_ptr<CapturedLoop> get(const Program& program, int block, const Op& loop, const std::shared_ptr<Device>& device,
                                    std::size_t stream);
  const std::string& reason() const noexcept { return reason_; }

 private:
  std::once_flag once_;
  std::shared_ptr<CapturedLoop> loop_;
  std::string reason_;
};

}  // namespace millrace
