// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/task/wait.h>

namespace millrace::testing {

/// The least that a slot has: a value that is written once, readers that wait for it, live writers. Later writes are
/// ignored. Thread-safe.
class TestSlot {
 public:
  explicit TestSlot(std::string what) : what_(std::move(what)) {}

  class Read final : public Blocker {
   public:
    explicit Read(TestSlot& slot) noexcept : slot_(slot) {}
    int await_resume() const {
      Wait::await_resume();
      return slot_.value_;
    }

   private:
    Armed arm() noexcept override {
      std::lock_guard lock(slot_.mutex_);
      if (slot_.written_) return Armed::ready;
      slot_.readers_.push_back(this);
      return Armed::waiting;
    }
    bool disarm() noexcept override {
      std::lock_guard lock(slot_.mutex_);
      return std::erase(slot_.readers_, this) != 0;
    }
    std::string describe() const override { return slot_.what_; }
    void writers(WriterVisitor& visitor) const override {
      std::lock_guard lock(slot_.mutex_);
      for (TaskInfo* const writer : slot_.writers_) visitor.visit(*writer);
    }
    TestSlot& slot_;
  };
  Read read() noexcept { return Read(*this); }

  void write(int value) {
    std::vector<Read*> readers;
    {
      std::lock_guard lock(mutex_);
      if (std::exchange(written_, true)) return;
      value_ = value;
      readers.swap(readers_);
    }
    for (Read* reader : readers) reader->wake();
  }

 private:
  friend class TestWriter;
  std::mutex mutex_;
  const std::string what_;
  bool written_ = false;
  int value_ = 0;
  std::vector<Read*> readers_;
  std::vector<TaskInfo*> writers_;
};

/// Makes a task a live writer of a slot.
class TestWriter {
 public:
  TestWriter(TestSlot& slot, TaskInfo& task) : slot_(slot), task_(task) {
    std::lock_guard lock(slot_.mutex_);
    slot_.writers_.push_back(&task_);
  }
  ~TestWriter() {
    std::lock_guard lock(slot_.mutex_);
    slot_.writers_.erase(std::find(slot_.writers_.begin(), slot_.writers_.end(), &task_));
  }
  TestWriter(const TestWriter&) = delete;
  TestWriter& operator=(const TestWriter&) = delete;

 private:
  TestSlot& slot_;
  TaskInfo& task_;
};

}  // namespace millrace::testing
