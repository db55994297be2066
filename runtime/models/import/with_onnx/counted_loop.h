// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <millrace/runtime/models/import/with_onnx/importer.h>

namespace millrace::importing {

/// A Loop in the form that its count alone says how often it runs, where it counts by states of its own and compares these with a limit, as TensorFlow's
/// exporters write all loops over time:
///
///     carried: i = 0, n, W;  condition: 0 < n;  body: x[i], …; i' = i + 1, n' = n, W' = W, condition' = i' < n
///
/// States that are never changed are values of outside there, and those that count from 0 the number of the iteration. A condition that compares counters
/// with limits outside becomes the number of iterations. (Exporters that compare integers as floats mean the integers.) Outputs of states that are left out are
/// bound. Null where there is nothing of that kind.
const onnx::NodeProto* counted_loop(Importer& to, const Node& node, const onnx::GraphProto& body);

}  // namespace millrace::importing
