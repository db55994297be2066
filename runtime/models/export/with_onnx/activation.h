// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <millrace/kernels/unary.h>
#include <millrace/runtime/models/export/with_onnx/exporter.h>

namespace millrace::exporting {

/// `x` through one of our activations; one without an op of ONNX is written out.
std::string activation(Exporter& to, DType dtype, Unary kind, const UnaryParams& params, const std::string& x);

}  // namespace millrace::exporting
