// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/tensor/device.h>

namespace millrace::ops {

/// A host stream of its own for packing weights when a program is compiled: what was packed is there when `prepare`
/// returns.
class PackingStream {
 public:
  operator StreamRef() { return device_.stream(0); }

 private:
  CpuDevice device_;
};

}  // namespace millrace::ops
