// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

namespace millrace {

/// The way in which loops run. All backends give the same bits. A loop that does not fit the backend runs iteration by iteration.
enum class Backend : std::uint8_t {
  automatic,    ///< the fastest that a loop fits; interpreted where none does, or where a trace or kept step scopes show the iterations
  interpreted,  ///< each iteration a task
  captured,     ///< on CUDA: a graph of the iteration's kernels, which the device runs until the loop ends
  fused         ///< the loop as one kernel, also when the run is traced
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

}  // namespace millrace
