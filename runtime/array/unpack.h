// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <utility>

#include <millrace/runtime/array/tensor_array.h>

namespace millrace {

/// The steps of the sequences of `level` (0 = outermost): slot t holds item t of every sequence that still lives, a row, or, above the last
/// level, a sub-sequence with the levels below kept. With `sort_by_length` longest first, ties stable; else in the caller's order at each
/// step. With `reverse` each sequence goes from its last item to its first, and `pack` reverses it again. All slots share one slab,
/// ready in the order of `stream`; nothing is copied where the rows already lie so. The order is what `pack`, `shrink` and boots need.
/// LoDError when the level is missing: it lists those present.
std::pair<TensorArray, SequenceOrder> unpack(const LoDTensor& x, int level, bool sort_by_length, StreamRef stream, bool reverse = false);

/// An array that is still open has no lengths to sort by: UnsupportedError when `sort_by_length`. Unsorted, its slots are the steps as they
/// are.
TensorArray unpack(const TensorArray& open, bool sort_by_length);

}  // namespace millrace
