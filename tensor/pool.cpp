// SPDX-License-Identifier: Apache-2.0
#include <millrace/tensor/pool.h>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

#include <millrace/tensor/sanitized.h>

namespace millrace {
namespace {

constexpr std::size_t class_bytes = internal::line_bytes;
constexpr std::size_t most_bytes = 8 << 10;
/// The blocks and bytes that a thread keeps of a size class, and the bytes in all. Memory beyond them goes back to the heap.
constexpr std::size_t kept_blocks = 512, kept_of_class = 256 << 10, kept_in_all = 4 << 20;

/// Blocks that a thread has given back, by size class.
template <std::align_val_t alignment>
class FreeBlocks {
 public:
  FreeBlocks() = default;
  FreeBlocks(const FreeBlocks&) = delete;
  FreeBlocks& operator=(const FreeBlocks&) = delete;
  ~FreeBlocks() {
    for (List& list : lists_)
      while (list.first != nullptr) to_heap(std::exchange(list.first, list.first->next));
  }

  /// Null: there is none.
  void* take(std::size_t size_class) noexcept {
    List& list = lists_[size_class];
    if (list.first == nullptr) return nullptr;
    --list.count;
    kept_ -= bytes_of(size_class);
    return std::exchange(list.first, list.first->next);
  }
  bool keep(void* memory, std::size_t size_class) noexcept {
    List& list = lists_[size_class];
    const std::size_t bytes = bytes_of(size_class);
    if (list.count == std::min(kept_blocks, kept_of_class / bytes) || kept_ + bytes > kept_in_all) return false;
    ++list.count;
    kept_ += bytes;
    list.first = new (memory) Block{list.first};
    return true;
  }
  static constexpr std::size_t bytes_of(std::size_t size_class) { return (size_class + 1) * class_bytes; }
  static void* from_heap(std::size_t bytes) noexcept {
    if constexpr (is_usual) return ::operator new(bytes, std::nothrow);
    return ::operator new(bytes, alignment, std::nothrow);
  }
  static void to_heap(void* memory) noexcept {
    if constexpr (is_usual) return ::operator delete(memory);
    ::operator delete(memory, alignment);
  }

 private:
  static constexpr bool is_usual = alignment == std::align_val_t{__STDCPP_DEFAULT_NEW_ALIGNMENT__};
  struct Block {
    Block* next;
  };
  struct List {
    Block* first = nullptr;
    std::size_t count = 0;
  };
  std::array<List, most_bytes / class_bytes> lists_{};
  std::size_t kept_ = 0;
};

using Objects = FreeBlocks<std::align_val_t{__STDCPP_DEFAULT_NEW_ALIGNMENT__}>;
using Lines = FreeBlocks<std::align_val_t{internal::line_bytes}>;

constinit thread_local bool thread_ends = false;

struct ThreadBlocks {
  Objects objects;
  Lines lines;
  ~ThreadBlocks() { thread_ends = true; }
};

/// Null while the thread is ending: then memory comes from the heap.
ThreadBlocks* thread_blocks() {
  if (thread_ends) return nullptr;
  thread_local ThreadBlocks blocks;
  return &blocks;
}

template <class Blocks>
void* take(Blocks ThreadBlocks::* of, std::size_t bytes) noexcept {
  const std::size_t size_class = (bytes - 1) / class_bytes;  // of no bytes: the last one
  if (sanitized || size_class >= most_bytes / class_bytes) return Blocks::from_heap(bytes);
  ThreadBlocks* const blocks = thread_blocks();
  void* const kept = blocks == nullptr ? nullptr : (blocks->*of).take(size_class);
  return kept != nullptr ? kept : Blocks::from_heap(Blocks::bytes_of(size_class));
}

template <class Blocks>
void give(Blocks ThreadBlocks::* of, void* memory, std::size_t bytes) noexcept {
  const std::size_t size_class = (bytes - 1) / class_bytes;
  const bool large = sanitized || size_class >= most_bytes / class_bytes;
  ThreadBlocks* const blocks = large ? nullptr : thread_blocks();
  if (blocks == nullptr || !(blocks->*of).keep(memory, size_class)) Blocks::to_heap(memory);
}

}  // namespace

void* pool_allocate(std::size_t bytes) {
  void* const memory = take(&ThreadBlocks::objects, bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void pool_free(void* memory, std::size_t bytes) noexcept { give(&ThreadBlocks::objects, memory, bytes); }

void* internal::take_lines(std::size_t bytes) noexcept { return take(&ThreadBlocks::lines, bytes); }
void internal::give_lines(void* memory, std::size_t bytes) noexcept { give(&ThreadBlocks::lines, memory, bytes); }

}  // namespace millrace
