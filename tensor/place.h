// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <compare>
#include <string>
#include <string_view>
#include <variant>

namespace millrace {

/// The host's memory and cores.
struct CpuPlace {
  friend auto operator<=>(const CpuPlace&, const CpuPlace&) = default;
};

/// CUDA device `index`.
struct CudaPlace {
  int index = 0;
  friend auto operator<=>(const CudaPlace&, const CudaPlace&) = default;
};
using CUDAPlace = CudaPlace;

/// Device `index` of a device type registered from outside, such as a simulator.
struct BackendPlace {
  std::string name;
  int index = 0;
  friend auto operator<=>(const BackendPlace&, const BackendPlace&) = default;
};

/// Where memory lives and work runs. Compares; prints and parses as `cpu`, `cuda:1`, `sim:0`.
class Place : public std::variant<CpuPlace, CudaPlace, BackendPlace> {
 public:
  using variant::variant;

  bool is_cpu() const noexcept { return std::holds_alternative<CpuPlace>(*this); }
  std::string to_string() const;
  /// ParseError names the text. `cuda` alone means `cuda:0`; any other name is a backend's.
  static Place parse(std::string_view text);
};

}  // namespace millrace
