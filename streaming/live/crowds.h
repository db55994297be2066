// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string>
#include <tuple>
#include <utility>

namespace millrace {

/// Connections in the order of their numbers, by the address that they count for. The one that goes for another is the oldest of the address that has the most,
/// so that one address keeps no other out. `add` and `remove` take a time logarithmic in the connections. Not thread-safe.
template <class T>
class Crowds {
 public:
  std::size_t size() const noexcept { return size_; }
  bool empty() const noexcept { return size_ == 0; }

  void add(const std::string& address, std::uint64_t number, T* member) {
    auto& crowd = by_address_[address];
    const Rank before = rank(crowd);
    if (!crowd.emplace(number, member).second) return;
    try {
      by_size_.insert(rank(crowd));
    } catch (...) {
      crowd.erase(number);
      throw;
    }
    by_size_.erase(before);
    ++size_;
  }
  void remove(const std::string& address, std::uint64_t number) noexcept {
    const auto found = by_address_.find(address);
    if (found == by_address_.end()) return;
    auto& crowd = found->second;
    const auto member = crowd.find(number);
    if (member == crowd.end()) return;
    auto place = by_size_.extract(rank(crowd));
    crowd.erase(member);
    --size_;
    if (crowd.empty()) {
      by_address_.erase(found);
    } else {
      place.value() = rank(crowd);
      by_size_.insert(std::move(place));
    }
  }
  /// The oldest of the largest crowd; of crowds of one size, of that with the oldest member. There is one.
  T& first_to_go() const { return *std::get<2>(*by_size_.rbegin())->begin()->second; }

 private:
  using Crowd = std::map<std::uint64_t, T*>;
  using Rank = std::tuple<std::size_t, std::uint64_t, const Crowd*>;  // a greater second is an older member
  static Rank rank(const Crowd& crowd) { return {crowd.size(), crowd.empty() ? 0 : ~crowd.begin()->first, &crowd}; }

  std::map<std::string, Crowd> by_address_;
  std::set<Rank> by_size_;
  std::size_t size_ = 0;
};

}  // namespace millrace
