// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>

#include <bench/library/measure.h>

namespace millrace::bench {

/// f32 out[m, n] = x[m, k] · w[k, n] of random numbers, weights packed before, on one thread: ours and oneDNN's matmul.
class GemmPair {
 public:
  GemmPair(std::int64_t m, std::int64_t k, std::int64_t n);

  const Timer& ours() const noexcept { return ours_; }
  /// Empty where this build has no oneDNN; then `note` says so.
  const Timer& peer() const noexcept { return peer_; }
  const std::string& note() const noexcept { return note_; }

 private:
  Timer ours_;
  Timer peer_;
  std::string note_;
};

}  // namespace millrace::bench
