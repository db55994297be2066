// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>

#include <millrace/runtime/trace/tracer.h>

namespace millrace {

/// The bytes that loops keep for their backward loops (append_backward.h, `MemoryPolicy`). A tracer with this sink counts them, and leaves the
/// backends of loops as they are:
///
///     const auto kept = std::make_shared<KeptMemory>();
///     Tracer tracer(KeptMemory::counting(kept));   // RunOptions::tracer
///
/// The values that a loop keeps are counted when it ends, each block of memory once. A block that the loop's outputs hold as well counts too. Thread-safe.
class KeptMemory final : public RangeSink {
 public:
  /// In bytes, the most of all runs of the loop.
  struct Bytes {
    std::size_t memory = 0;
    std::size_t files = 0;  ///< under the policy spill
  };
  /// The bytes of each loop and policy, which its key names: "while 1 (step) under recompute(100)". The backward of a loop that is computed again has inner loops of its own.
  std::map<std::string, Bytes> loops() const;
  /// A line for each loop, "while 1 (step) under keep kept 4096 bytes", with "; " between them; "no loop kept values for a backward loop"
  /// without loops.
  std::string to_string() const;

  /// Options of a tracer that counts, and records nothing.
  static TracerOptions counting(std::shared_ptr<KeptMemory> kept);

  /// Categories of the instants that a run traces at the end of a loop; their step is a number of bytes.
  static constexpr const char* in_memory = "bytes kept";
  static constexpr const char* in_files = "bytes kept in files";

  std::uint64_t begin(const char* category, std::string_view name, std::int64_t step) override;
  void end(std::uint64_t range) noexcept override;
  void mark(const char* category, std::string_view name, std::int64_t step) override;

 private:
  mutable std::mutex mutex_;
  std::map<std::string, Bytes> loops_;
};

}  // namespace millrace
