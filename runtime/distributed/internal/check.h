// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

/// Checks that every communicator makes of tensors before anything is ordered; `what` begins the message.
namespace millrace::detail {

/// ArgumentError unless contiguous, PlaceError unless where the stream is.
void check_exchanged(const Tensor& tensor, const std::string& what, StreamRef stream);
/// Checks as `check_exchanged` does; ReadOnlyError for a tensor that is frozen.
void check_result(const Tensor& tensor, const std::string& what, StreamRef stream);
/// DTypeError, ShapeError.
void check_reduced(const Tensor& in, const Tensor& out, const std::string& what);
void check_gathered(const Tensor& in, const Tensor& out, int world_size, const std::string& what);
/// ArgumentError unless `other` is another rank of `world_size` than `rank`.
void check_peer(int other, int rank, int world_size, const std::string& what);

}  // namespace millrace::detail
