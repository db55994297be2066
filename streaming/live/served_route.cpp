// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/served_route.h>

#include <algorithm>

namespace millrace {

bool is_route_name(std::string_view name) {
  constexpr std::size_t longest = 64;
  const auto known = [](char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '-' || c == '_';
  };
  return !name.empty() && name.size() <= longest && std::all_of(name.begin(), name.end(), known) && name != "stream" && name != "now";
}

}  // namespace millrace
