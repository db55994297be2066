// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <memory>
#include <type_traits>
#include <vector>

#include <millrace/tensor/tensor.h>
#include <millrace/tensor/with_cuda/recording.h>
#include <millrace/tensor/with_cuda/each_index.cuh>

/// The common parts of graphs of loops and of live steps: kernels that move pieces of memory, and CUDA's objects owned.
namespace millrace::cuda {

/// Pieces of memory that a kernel moves between an iteration's places and the slots. Elements are counted in units of their size.
struct Piece {
  const void* from = nullptr;
  void* to = nullptr;
  std::int64_t word = 0;   // of a loop's table
  std::int64_t width = 0;  // units of a row; without rows of all of it
  std::int64_t count = 0;  // units of the first iteration
  int unit = 0;
};
constexpr int most_pieces = 8;
struct Pieces {
  Piece pieces[most_pieces];
  int count = 0;
};

MILLRACE_HD inline void move_unit(int unit, const void* from, std::int64_t source, void* to, std::int64_t target) {
  switch (unit) {
    case 8: static_cast<std::uint64_t*>(to)[target] = static_cast<const std::uint64_t*>(from)[source]; return;
    case 4: static_cast<std::uint32_t*>(to)[target] = static_cast<const std::uint32_t*>(from)[source]; return;
    case 2: static_cast<std::uint16_t*>(to)[target] = static_cast<const std::uint16_t*>(from)[source]; return;
    default: static_cast<std::uint8_t*>(to)[target] = static_cast<const std::uint8_t*>(from)[source]; return;
  }
}

/// The piece to which unit `i` of all of them belongs; `i` becomes its place there.
MILLRACE_HD inline const Piece& piece_at(const Pieces& all, std::int64_t& i) {
  int at = 0;
  while (at + 1 < all.count && i >= all.pieces[at].count) i -= all.pieces[at++].count;
  return all.pieces[at];
}

/// Starts the kernel for all pieces, a few at a time.
template <class Kernel>
void move_pieces(std::vector<Piece>& pieces, Kernel kernel, const Queue& queue) {
  std::erase_if(pieces, [](const Piece& one) { return one.count == 0; });
  for (std::size_t begin = 0; begin < pieces.size(); begin += most_pieces) {
    kernel.all = {};
    std::int64_t units = 0;
    for (std::size_t i = begin; i < std::min(pieces.size(), begin + most_pieces); ++i) {
      kernel.all.pieces[kernel.all.count++] = pieces[i];
      units += pieces[i].count;
    }
    each_index(queue, units, kernel);
  }
}

/// Memory of the recording.
inline Tensor room(DType dtype, const DDim& dims, const Recording& recording) {
  Tensor made(dtype, dims, recording.memory());
  made.storage()->mark_written();
  return made;
}

struct DestroyGraph {
  void operator()(cudaGraph_t graph) const { static_cast<void>(cudaGraphDestroy(graph)); }
};
struct DestroyExec {
  void operator()(cudaGraphExec_t exec) const { static_cast<void>(cudaGraphExecDestroy(exec)); }
};

using OwnedGraph = std::unique_ptr<std::remove_pointer_t<cudaGraph_t>, DestroyGraph>;
using OwnedExec = std::unique_ptr<std::remove_pointer_t<cudaGraphExec_t>, DestroyExec>;

}  // namespace millrace::cuda
