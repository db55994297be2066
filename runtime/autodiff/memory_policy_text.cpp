// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/autodiff/memory_policy_text.h>

#include <fmt/format.h>
#include <algorithm>
#include <cstdint>
#include <vector>

#include <millrace/tensor/error.h>

namespace millrace {

MemoryPolicy parse_memory_policy(const std::string& text) {
  const auto refuse = [&] {
    return ArgumentError(
        fmt::format("memory: expected keep, spill, recompute, recompute(iterations) or truncate(k1, k2), found '{}'", text));
  };
  const std::size_t open = text.find('(');
  const std::string kind = text.substr(0, open);
  std::vector<std::int64_t> numbers;
  if (open != std::string::npos) {
    if (text.back() != ')') throw refuse();
    std::size_t at = open + 1;
    while (at < text.size()) {
      const std::size_t end = text.find_first_of(",)", at);
      std::string number = text.substr(at, end - at);
      std::erase(number, ' ');
      if (number.empty() || number.size() > 15 || !std::all_of(number.begin(), number.end(), [](char c) { return c >= '0' && c <= '9'; }))
        throw refuse();
      numbers.push_back(std::stoll(number));
      at = end + 1;
    }
  }
  MemoryPolicy policy;
  if (kind == "keep" && numbers.empty() && open == std::string::npos) return policy;
  if (kind == "spill" && numbers.empty() && open == std::string::npos) {
    policy.kind = MemoryPolicy::Kind::spill;
    return policy;
  }
  if (kind == "recompute" && numbers.size() <= 1) {
    policy.kind = MemoryPolicy::Kind::recompute;
    if (!numbers.empty()) policy.every = numbers[0];
    return policy;
  }
  if (kind == "truncate" && !numbers.empty() && numbers.size() <= 2) {
    policy.kind = MemoryPolicy::Kind::truncate;
    policy.k1 = numbers[0];
    policy.k2 = numbers.back();
    if (policy.k1 < 1 || policy.k2 < 1)
      throw ArgumentError(fmt::format("memory: expected truncate(k1, k2) with k1 and k2 of 1 or more, found '{}'", text));
    return policy;
  }
  throw refuse();
}

std::string to_string(const MemoryPolicy& policy) {
  switch (policy.kind) {
    case MemoryPolicy::Kind::keep: break;
    case MemoryPolicy::Kind::spill: return "spill";
    case MemoryPolicy::Kind::recompute: return fmt::format("recompute({})", policy.every);
    case MemoryPolicy::Kind::truncate: return fmt::format("truncate({}, {})", policy.k1, policy.k2);
  }
  return "keep";
}

}  // namespace millrace
