// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <vector>

namespace millrace::cuda {

/// A header that the source of a cell's kernel includes (kernels/cell_sequence.h), by the name under which it is included.
struct DeviceHeader {
  const char* name;
  const char* text;
};
const std::vector<DeviceHeader>& device_headers();

/// The identifier of the kernel in each source.
inline constexpr const char* cell_entry = "millrace_cell";

}  // namespace millrace::cuda
