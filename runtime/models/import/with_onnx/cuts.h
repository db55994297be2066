// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <set>
#include <string>

#include <millrace_onnx.pb.h>

namespace millrace::importing {

/// Values of a graph of which a later node may leave elements out. A convolution that looks ahead goes live where the elements that it looks at are cut
/// off again, and nowhere else.
class Cuts {
 public:
  /// The nodes stand in the order in which they can be run.
  explicit Cuts(const onnx::GraphProto& graph);
  bool behind(const std::string& value) const { return cut_.contains(value); }

 private:
  std::set<std::string> cut_;
};

}  // namespace millrace::importing
