// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <utility>

#include <millrace/tensor/memory.h>

namespace millrace::python {

/// Memory of somebody else's, who hears when no tensor views it any more: on any thread, with or without the GIL.
class BorrowedMemory final : public MemoryResource {
 public:
  BorrowedMemory(void* data, std::function<void()> release) : data_(data != nullptr ? data : &nothing_), release_(std::move(release)) {}
  ~BorrowedMemory() override { release_(); }
  BorrowedMemory(const BorrowedMemory&) = delete;
  BorrowedMemory& operator=(const BorrowedMemory&) = delete;

  void* allocate(std::size_t) override { return data_; }
  void deallocate(void*, std::size_t) noexcept override {}
  Place place() const override { return CpuPlace{}; }
  bool host_accessible() const noexcept override { return true; }

 private:
  alignas(64) std::byte nothing_{};
  void* data_;
  std::function<void()> release_;
};

}  // namespace millrace::python
