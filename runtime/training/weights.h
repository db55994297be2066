// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <map>
#include <string>

#include <millrace/tensor/tensor.h>

namespace millrace::training {

/// Tensors on the host by name: the weights of a model, their gradients, the state of an optimizer. What goes over them goes in the order of
/// their names.
using Tensors = std::map<std::string, Tensor>;

}  // namespace millrace::training
