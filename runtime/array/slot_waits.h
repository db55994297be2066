// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <coroutine>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/array/array_core.h>
#include <millrace/runtime/array/slot_value.h>
#include <millrace/runtime/task/wait.h>

/// The awaitables that the calls of a TensorArray return. All three: the task goes on through its own executor; cancellable (a cancelled wait
/// leaves no trace); they wait for another task of the run, so that a slot that no task can write becomes a DeadlockError that names array, slot
/// and task; each is awaited at most once and must not be destroyed while a task waits for it; tasks of different threads may wait at one
/// array.
namespace millrace {

namespace detail {

[[noreturn]] void throw_moved_array();

/// The array of a handle. ArgumentError for a handle that was moved from.
inline ArrayCore& expect_array(const std::shared_ptr<ArrayCore>& core) {
  if (core == nullptr) throw_moved_array();
  return *core;
}

}  // namespace detail

/// `co_await array.read(i)`: goes on when slot i is issued; gives its value, or throws what the slot failed with.
class [[nodiscard]] SlotRead final : public Blocker, private detail::ArrayWaiter {
 public:
  SlotRead(std::shared_ptr<detail::ArrayCore> core, std::int64_t slot);
  /// One that has its value already: a boot.
  SlotRead(std::shared_ptr<detail::ArrayCore> core, SlotValue value);
  SlotValue await_resume();

 private:
  Armed arm() noexcept override;
  bool disarm() noexcept override { return core_->disarm(*this); }
  std::string describe() const override;
  void writers(WriterVisitor& visitor) const override { core_->writers(visitor); }
  bool fed_from_outside() const override { return core_->fed_from_outside(); }
  void decided() noexcept override { wake(); }

  std::shared_ptr<detail::ArrayCore> core_;
  std::optional<SlotValue> boot_;
};

/// `co_await array.has(i)`: true when slot i is written, false when the array closed at or before i; throws when neither can happen any
/// more.
class [[nodiscard]] SlotHas final : public Blocker, private detail::ArrayWaiter {
 public:
  SlotHas(std::shared_ptr<detail::ArrayCore> core, std::int64_t slot);
  bool await_resume();

 private:
  Armed arm() noexcept override;
  bool disarm() noexcept override { return core_->disarm(*this); }
  std::string describe() const override;
  void writers(WriterVisitor& visitor) const override { core_->writers(visitor); }
  bool fed_from_outside() const override { return core_->fed_from_outside(); }
  void decided() noexcept override { wake(); }

  std::shared_ptr<detail::ArrayCore> core_;
};

/// The result of `write`. It need not be awaited, but for a window, whose writer waits for room. Awaited: done when the slot's elements are
/// there (an external wait), in a window when the value has its place, in a window of capacity 0 when the slot was read. A value that found a
/// window full is placed only while its result
/// lives: when that is dropped instead, the array fails with a WindowError that says so. A cancelled wait for room withdraws the value, and the next append takes
/// its slot; where the value got its place before the writer could withdraw it, the wait ends as if nobody had cancelled it.
class SlotWrite final : public Wait, private detail::ArrayWaiter, private Waiter {
 public:
  SlotWrite(std::shared_ptr<detail::ArrayCore> core, std::int64_t slot, LoDTensor value, detail::WriterEntry* writer);
  ~SlotWrite();
  /// False while the value waits for room.
  bool placed() const { return !parks_ || core_->placed(*this); }
  void await_resume();

  /// Awaits a write that is named, moved from, or the result of a call. Without this class g++ 12 copies a write that is no lvalue.
  class Awaiter {
   public:
    explicit Awaiter(SlotWrite& write) noexcept : write_(&write) {}
    bool await_ready() const noexcept { return false; }
    template <class Promise>
    bool await_suspend(std::coroutine_handle<Promise> at) const noexcept {
      return write_->await_suspend(at);
    }
    void await_resume() const { write_->await_resume(); }

   private:
    SlotWrite* write_;
  };
  Awaiter operator co_await() noexcept { return Awaiter(*this); }

 private:
  Armed arm() noexcept override;
  bool disarm() noexcept override;
  std::string describe() const override;
  void decided() noexcept override { wake(); }
  void complete(std::exception_ptr) noexcept override { wake(); }  // the point keeps the error: see await_resume

  std::shared_ptr<detail::ArrayCore> core_;
  Point ready_;
  bool parks_ = false;  // the window was full when it was made
};

}  // namespace millrace
