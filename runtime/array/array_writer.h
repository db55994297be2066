// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <utility>

#include <millrace/runtime/array/array_core.h>
#include <millrace/runtime/array/slot_waits.h>
#include <millrace/tensor/error.h>

namespace millrace {

/// A registered writer of a TensorArray, for as long as this object lives. Once an array has had registered writers and the last one goes,
/// the slots that are still unwritten fail by name, unless the array was closed. Register a writer before the last one goes.
///
///     task<> producer(TensorArray states) {
///       TaskInfo& me = co_await this_task::info();
///       ArrayWriter writer = states.writer(me, "encoder loop");
///       for (…) writer.write(t, value);
///     }
///
/// A writer that is bound to a task (given at registration, or by `bind` in a task it was handed to) must go before that task ends; it lets
/// a cycle of tasks that wait for each other's slots be found while other tasks still run. Move-only, used by one task at a time; each member of a writer
/// that was moved from throws ArgumentError.
class ArrayWriter {
 public:
  ArrayWriter(std::shared_ptr<detail::ArrayCore> core, std::string name, TaskInfo* task, bool outside = false)
      : core_(std::move(core)), entry_(std::make_unique<detail::WriterEntry>()) {
    entry_->name = std::move(name);
    entry_->task = task;
    entry_->outside = outside;
    core_->add_writer(*entry_);
  }
  ArrayWriter(ArrayWriter&& other) noexcept = default;
  ArrayWriter& operator=(ArrayWriter&& other) noexcept {
    std::swap(core_, other.core_);
    std::swap(entry_, other.entry_);
    return *this;
  }
  ~ArrayWriter() {
    if (core_ != nullptr) core_->remove_writer(*entry_);
  }

  /// Binds the writer to the task that writes from now on.
  void bind(TaskInfo& task) {
    detail::WriterEntry& mine = entry();
    core_->bind_writer(mine, &task);
  }
  const std::string& name() const { return entry().name; }

  /// The calls of the array, made by this writer: the array's errors then name it, and the slot that it wrote last.
  SlotWrite write(std::int64_t index, LoDTensor value) { return SlotWrite(core_, index, std::move(value), &entry()); }
  SlotWrite append(LoDTensor value) { return SlotWrite(core_, detail::ArrayCore::append, std::move(value), &entry()); }

 private:
  detail::WriterEntry& entry() const {
    if (entry_ == nullptr) throw ArgumentError("array writer: expected a writer, found one that was moved from");
    return *entry_;
  }

  std::shared_ptr<detail::ArrayCore> core_;
  std::unique_ptr<detail::WriterEntry> entry_;
};

}  // namespace millrace
