// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/executor/kept_memory.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

namespace millrace {

std::map<std::string, KeptMemory::Bytes> KeptMemory::loops() const {
  const std::lock_guard lock(mutex_);
  return loops_;
}

std::string KeptMemory::to_string() const {
  std::string text;
  for (const auto& [loop, bytes] : loops()) {
    text += fmt::format("{}{} kept {} bytes", text.empty() ? "" : "; ", loop, bytes.memory);
    if (bytes.files > 0) text += fmt::format(", and {} bytes in files", bytes.files);
  }
  return text.empty() ? "no loop kept values for a backward loop" : text;
}

TracerOptions KeptMemory::counting(std::shared_ptr<KeptMemory> kept) {
  TracerOptions options;
  options.record = false;
  options.ranges = std::move(kept);
  return options;
}

std::uint64_t KeptMemory::begin(const char*, std::string_view, std::int64_t) { return 1; }
void KeptMemory::end(std::uint64_t) noexcept {}

void KeptMemory::mark(const char* category, std::string_view name, std::int64_t step) {
  const bool files = category == std::string_view(in_files);
  if (!files && category != std::string_view(in_memory)) return;
  const std::lock_guard lock(mutex_);
  Bytes& bytes = loops_[std::string(name)];
  std::size_t& most = files ? bytes.files : bytes.memory;
  most = std::max(most, static_cast<std::size_t>(step));
}

}  // namespace millrace
