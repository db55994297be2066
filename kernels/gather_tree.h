// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// The back-trace of a beam search over equal beams, as TensorFlow and PaddlePaddle Fluid have it: `ids` and `parents` [T, N, W], both i64
/// or both i32; row t of beam w says a token, and which beam of row t − 1 it goes on from. Column w of the result holds the tokens of the
/// hypothesis that ends in beam w, in their order.
///
/// `lengths` (i64 or i32 [N], undefined: all T) is how many rows of each of the N count; rows behind them, and behind the first
/// `end_token` where one is given, are `end_token`, or −1. Parents of row 0 are not read. A parent outside [0, W) is an IndexError that
/// fails the stream and names its place (on a CUDA device the parent); lengths above T count as T, those below 0 as 0.
/// ShapeError, DTypeError; ArgumentError for an end token that the dtype cannot hold.
Tensor gather_tree(const Tensor& ids, const Tensor& parents, const Tensor* lengths, std::optional<std::int64_t> end_token,
                   StreamRef stream);

}  // namespace millrace
