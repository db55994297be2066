// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>

#include <millrace_onnx.pb.h>

namespace millrace::importing {

/// The values of a graph of which something further on may take a part. A convolution that looks ahead goes live where what it looks at is cut off
/// again; where nothing is, it cannot.
class Cuts {
 public:
  /// The nodes stand in the order in which they can be run.
  explicit Cuts(const onnx::GraphProto& graph);
  bool behind(const std::string& value) const { return cut_.contains(value); }

 private:
  std::set<std::string> cut_;
};

}  // namespace millrace::importing
