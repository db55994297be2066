// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <tuple>
#include <utility>

#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// The tensors that one launch reads or writes. They are checked and ordered before the launch; nothing is copied.
template <std::size_t N>
using TensorRefs = std::array<const Tensor*, N>;

namespace detail {
inline void order_read(const Tensor& tensor, StreamRef stream) {
  tensor.check_written();
  const Point point = tensor.ready();
  if (!point.reached()) stream.wait(point);
  stream.uses(tensor.storage());
}
inline void order_write(const Tensor& tensor, StreamRef stream) {
  if (tensor.is_read_only()) throw ReadOnlyError("launch: " + tensor.to_string() + " is shared and frozen: write a tensor of your own");
  const Point point = tensor.ready();
  if (!point.reached()) stream.wait(point);
  stream.uses(tensor.storage());
}
template <std::size_t R, std::size_t W>
void order(const TensorRefs<R>& reads, const TensorRefs<W>& writes, StreamRef stream) {
  for (const Tensor* tensor : reads)
    if (tensor != nullptr) order_read(*tensor, stream);
  for (const Tensor* tensor : writes)
    if (tensor != nullptr) order_write(*tensor, stream);
}
template <std::size_t W>
void mark(const TensorRefs<W>& writes, StreamRef stream) {
  const Point done = stream.position();
  for (const Tensor* tensor : writes) {
    if (tensor == nullptr) continue;
    tensor->storage()->set_ready(done);
    tensor->storage()->mark_written();
  }
}
}  // namespace detail

/// Enqueues `f(context)` on `stream` behind whatever produces the tensors of `reads` and `writes`, and makes the stream's new position the
/// point at which `writes` are ready. `f` owns the tensors it touches (captured by value) and uses their `raw()` pointers. Null entries are
/// skipped. Two launches that write the same storage from different streams are ordered; a reader on another stream that is still to run
/// when the storage is written again is the caller's to avoid: tensors are written once, or always on one stream.
template <std::size_t R, std::size_t W, class F>
void launch(const TensorRefs<R>& reads, const TensorRefs<W>& writes, F&& f, StreamRef stream) {
  detail::order(reads, writes, stream);
  stream.enqueue(std::forward<F>(f));
  detail::mark(writes, stream);
}
/// The same with `f(context, operands...)`, which owns none of the operands: they are copied where the work runs later, and only there.
template <std::size_t R, std::size_t W, class F, class... Operands>
void launch(const TensorRefs<R>& reads, const TensorRefs<W>& writes, std::tuple<const Operands&...> operands, F f, StreamRef stream) {
  detail::order(reads, writes, stream);
  stream.enqueue(operands, f);
  detail::mark(writes, stream);
}

}  // namespace millrace
