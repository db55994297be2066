// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <exception>
#include <string>

#include <millrace/tensor/error.h>
#include <millrace/tensor/place.h>

namespace millrace {

MILLRACE_ERROR(DeviceError, Error);  ///< work on a device that did not run to its end

/// A device that is gone for the rest of the process: a kernel trapped, or its streams failed and cannot be renewed.
MILLRACE_ERROR(PlaceLostError, Error);
/// A PlaceLostError that names the place and carries the text of the cause: "cuda:0 is lost: …".
std::exception_ptr place_lost(const Place& place, const std::exception_ptr& cause);

/// The failure of work that threw `error` on a stream: an Error of the same type that also names the origin and the place of the work,
/// " (op matmul of block 1; on sim:0, stream 1)"; of any other exception, a DeviceError. `origin` empty: not known. `stream` −1: the place has
/// no numbers for them.
std::exception_ptr failure_of_work(const std::exception_ptr& error, const std::string& origin, const Place& place, int stream = -1);

/// The text of an exception, or that it is no std::exception.
std::string text_of_error(const std::exception_ptr& error);

}  // namespace millrace
