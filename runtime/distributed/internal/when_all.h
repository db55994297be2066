// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <functional>
#include <vector>

#include <millrace/tensor/point.h>

namespace millrace::detail {

/// Calls `then` once all points are decided, with the first error or null: in the thread that decided the last of them, with nothing locked,
/// or at once. It must neither block nor throw.
void when_all(const std::vector<Point>& points, std::function<void(std::exception_ptr)> then);

}  // namespace millrace::detail
