// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include <millrace/runtime/lowering/fused_loop.h>

namespace millrace {

/// How loops run. All gears give the same bits.
enum class Gear : std::uint8_t {
  automatic,  ///< fused where a loop fits; turn by turn where it does not, or where somebody wants to see its turns (a trace, step scopes)
  interpreted,  ///< each turn a task
  fused         ///< the same as automatic, also when the run is traced
};

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

}  // namespace millrace
