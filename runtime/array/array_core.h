// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <exception>
#include <limits>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include <millrace/runtime/array/slab.h>
#include <millrace/runtime/task/run.h>
#include <millrace/tensor/lod_tensor.h>
#include <millrace/tensor/point.h>
#include <millrace/tensor/sequence_order.h>
#include <millrace/tensor/watermark.h>

namespace millrace {

/// The state of a slot. It only moves to the right: EMPTY → WAITED → WRITTEN | FAILED | CANCELLED (a cancelled wait is forgotten).
enum class SlotState : std::uint8_t { empty, waited, written, failed, cancelled };

namespace detail {

/// A waiter at an array: for a slot to be decided, or for a window to have room for a parked write.
class ArrayWaiter {
 public:
  enum class Want : std::uint8_t { value, existence, room };
  /// Called once, with no lock held, when it is worth asking the array again. May destroy the waiter.
  virtual void decided() noexcept = 0;

  std::int64_t index = 0;
  Want want = Want::value;
  LoDTensor parked;            ///< `room`: the value that waits to be placed
  std::exception_ptr refused;  ///< `room`: why it never will be
  bool offered = false;        ///< `room`: readers see the value
  bool placed = false;         ///< `room`: it has its place, or, of a rendezvous, was taken
  bool waiting = false;        ///< `room`: a waiter is to be woken; until then the array only notes it
  bool appended = false;       ///< `room`: the array chose the index, and may lower it

 protected:
  ArrayWaiter() = default;
  ~ArrayWaiter() = default;

 private:
  friend class ArrayCore;
  ArrayWaiter* next_ = nullptr;
};

/// A registered writer, as the array knows it.
struct WriterEntry {
  std::string name;
  TaskInfo* task = nullptr;  ///< null until it is bound to a task
  std::int64_t last = -1;    ///< the slot it wrote last
  bool outside = false;      ///< belongs to no run: see TensorArray::feeder
};

/// Rows of a tensor on the host, which are there: those that `rows` names, in this order. They are copied once somebody asks for them side by side.
struct PickedRows {
  Tensor from;  ///< contiguous
  std::vector<std::int64_t> rows;
  std::shared_ptr<MemoryResource> memory;  ///< of the copy
};

/// All slots of a fixed array as one tensor: slot t is the rows [offsets[t], offsets[t + 1]) of `whole`, or, with `items`, its item t along
/// axis 0, which goes away.
struct FilledSlots {
  Tensor whole;
  std::vector<std::int64_t> offsets;  ///< with `items`: 0, 1, 2, …
  bool items = false;
  /// Where a kernel says how far it is: slot t is there at (watermark, t + 1), maybe long before `whole`, which is contiguous then.
  std::shared_ptr<Watermark> watermark;
  /// The rows of `whole`, which has their extents and no elements; null: `whole` has them.
  std::shared_ptr<const PickedRows> picked = nullptr;

  Tensor slot(std::int64_t index) const;
  /// All slots with an axis 0 of their number; nothing when they differ in rows.
  std::optional<Tensor> stacked() const;
};

/// The state that the handles of one TensorArray share. The contract is that of tensor_array.h; this is the one-shot machine of the slots.
/// Thread-safe: one mutex, never held while a waiter is woken.
class ArrayCore : public std::enable_shared_from_this<ArrayCore> {
 public:
  enum class Kind : std::uint8_t { fixed, growable, window };
  /// `size`: slots of a fixed array, capacity of a window.
  ArrayCore(Kind kind, std::int64_t size, std::optional<SequenceOrder> order);
  ~ArrayCore();

  Kind kind() const noexcept { return kind_; }
  const std::optional<SequenceOrder>& order() const noexcept { return order_; }
  std::int64_t capacity() const noexcept { return limit_; }
  std::string name() const;
  void rename(std::string name);
  std::int64_t size() const;
  bool closed() const;
  SlotState state(std::int64_t index) const;
  /// The value of a written slot, without taking it; nothing otherwise.
  std::optional<LoDTensor> peek(std::int64_t index) const;
  /// "array 'states' of 3 slots", "window 'x' (capacity 4, slots from 7)".
  std::string to_string() const;

  /// IndexError, ClosedError, WindowError when slot `index` can never be read, now or later.
  void check_read(std::int64_t index) const;

  /// True when the answer is known now: the waiter is not registered. Else `decided` will be called.
  bool arm(ArrayWaiter& waiter);
  /// False when `decided` was or will be called. A parked write stays parked: `withdraw` takes it back.
  bool disarm(ArrayWaiter& waiter) noexcept;
  /// The value of slot `index`, which in a window counts as one reading of it; throws what the slot failed with. `who` reads.
  LoDTensor take(std::int64_t index, const TaskInfo* who);
  /// Whether slot `index` has been written; false when the array was closed at or before it. Throws what the array failed with.
  bool exists(std::int64_t index, const TaskInfo* who) const;

  static constexpr std::int64_t append = std::numeric_limits<std::int64_t>::min();
  /// Writes slot `index`, or, with `append`, the one behind the highest written. True: placed. False: the window is full and the value is
  /// parked in `waiter`; or the window is a rendezvous (capacity 0), whose write waits until the slot was read.
  bool write(std::int64_t index, LoDTensor value, ArrayWaiter& waiter, WriterEntry* writer);
  /// The contracts of TensorArray::scatter, fill, begin_fill and issue.
  void scatter(const std::vector<std::int64_t>& indices, const Tensor& rows);
  void fill(FilledSlots slots, std::int64_t issued);
  void issue(std::int64_t slots);
  std::shared_ptr<const FilledSlots> filled() const;
  std::shared_ptr<const FilledSlots> filling() const;
  std::shared_ptr<const FilledSlots> picked() const;
  std::int64_t issued() const;
  bool untouched() const;
  /// A parked write without a waiter: its slot fails.
  void drop(ArrayWaiter& waiter) noexcept;
  /// Takes a parked write back; false when it has its place by now, or was read. The slot of an append goes to the append behind it, and so on, unless a
  /// write chose a later slot.
  bool withdraw(ArrayWaiter& waiter) noexcept;
  bool placed(const ArrayWaiter& waiter) const;
  /// The slot of a write, which moves down where a parked append before it is withdrawn.
  std::int64_t slot_of(const ArrayWaiter& waiter) const;

  void close();
  void fail(std::exception_ptr error, bool cancelled);
  void set_readers(int readers);
  void expect(DType dtype, const DDim& dims, int levels);

  void add_writer(WriterEntry& writer);
  void remove_writer(WriterEntry& writer) noexcept;
  void bind_writer(WriterEntry& writer, TaskInfo* task);
  bool has_writers() const {
    const std::lock_guard lock(mutex_);
    return !writers_.empty();
  }
  /// The registered writers' tasks; nothing unless all are bound.
  void writers(WriterVisitor& visitor) const;
  bool fed_from_outside() const;

  std::shared_ptr<Timeline> watermark();
  Tensor prepare(std::int64_t index, DType dtype, const DDim& dims, const std::shared_ptr<MemoryResource>& memory);
  std::shared_ptr<Slab> slab() const;
  /// A tensor of no rows, of the dtype and shape that slots have.
  Tensor empty_like() const;
  /// DTypeError, ShapeError or LoDError unless the type that `expect` named and the slots that are written fit this one; `levels` −1: any.
  void check_slots(DType dtype, const DDim& dims, int levels) const;
  /// Whether a slot was written, or `expect` was called.
  bool knows_slots() const;
  /// The levels that `expect` named, if any.
  std::optional<int> slot_levels() const;

 private:
  struct Slot {
    LoDTensor value;
    Point point;       // of a window's slot whose value was taken
    int readings = 0;  // how often a window's slot was taken
    bool written = false;
    ArrayWaiter* first = nullptr;
  };
  /// The waiters to wake once the mutex is free.
  class Wakeups;
  class AtPoint;

  bool is_written(std::int64_t index) const;
  bool is_of_fill(std::int64_t index) const { return index >= 0 && index < issued_; }
  void wake_issued(Wakeups& wakeups);
  std::string text() const;
  std::string slot_text(std::int64_t index) const;
  bool is_decided(std::int64_t index) const;
  std::exception_ptr failure_of(std::int64_t index, const TaskInfo* who) const;
  void check_index(std::int64_t index) const;
  void check_write(std::int64_t index, const LoDTensor& value) const;
  void check_value(std::int64_t index, const LoDTensor& value) const;
  void take_type(DType dtype, const DDim& dims);
  void check_fill(const FilledSlots& slots) const;
  void copy_picked() const;
  void check_issue(std::int64_t slots) const;
  void check_rows(std::int64_t index, const LoDTensor& value) const;
  /// Slots of a window that may be written and unread at once.
  std::int64_t room() const noexcept { return limit_ == 0 ? 1 : limit_; }
  bool is_rendezvous() const noexcept { return kind_ == Kind::window && limit_ == 0; }
  void place(std::int64_t index, LoDTensor value, Wakeups& wakeups);
  void wake_slot(Slot& slot, Wakeups& wakeups);
  void wake_all(Wakeups& wakeups);
  void release(Wakeups& wakeups);
  void place_parked(Wakeups& wakeups);
  bool unpark(ArrayWaiter& waiter) noexcept;
  void move_appends_down(std::int64_t index) noexcept;
  void advance_watermark(Wakeups& wakeups);
  void point_reached(AtPoint& at) noexcept;

  const Kind kind_;
  const std::int64_t limit_;
  const std::optional<SequenceOrder> order_;
  mutable std::mutex mutex_;
  std::string name_ = "array";
  std::map<std::int64_t, Slot> slots_;
  mutable std::shared_ptr<const FilledSlots> filled_;  // picked rows become rows side by side when they are read
  std::int64_t issued_ = 0;                            // slots of `filled_` that are written; others may be written one by one
  std::int64_t size_ = 0;                              // growable, window: one past the highest slot written or parked
  std::int64_t base_ = 0;                              // window: the first slot that has not left it
  int readers_ = 1;
  bool closed_ = false;
  std::exception_ptr failed_;
  bool cancelled_ = false;
  std::string orphaned_by_;  // the last writer, once it is gone
  ArrayWaiter* parked_ = nullptr;

  std::optional<DType> dtype_;
  std::optional<DDim> dims_;   // −1 for any extent
  std::optional<int> levels_;  // of LoD of each slot

  std::vector<WriterEntry*> writers_;
  std::shared_ptr<Slab> slab_;
  std::shared_ptr<Timeline> watermark_;
  Ref<Run> reader_run_;      // of the task that read a window last
  std::int64_t marked_ = 0;  // slots that the watermark has passed
  std::unique_ptr<AtPoint> room_at_;
  std::unique_ptr<AtPoint> mark_at_;
};

}  // namespace detail
}  // namespace millrace
