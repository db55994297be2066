// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <concepts>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <millrace/runtime/array/array_writer.h>
#include <millrace/runtime/array/errors.h>
#include <millrace/runtime/array/slot_value.h>
#include <millrace/runtime/array/slot_waits.h>
#include <millrace/runtime/task/task.h>
#include <millrace/tensor/stream.h>

namespace millrace {

/// The number of a slot, or of slots: an integer, or a tensor with one element that the host may read (NotReadyError: await its `ready()`
/// first).
class SlotIndex {
 public:
  template <std::integral T>
  SlotIndex(T index) noexcept : value_(static_cast<std::int64_t>(index)) {}
  SlotIndex(const Tensor& index) : value_(index.item_int()) {}
  std::int64_t value() const noexcept { return value_; }

 private:
  std::int64_t value_;
};

/// Numbered slots, each a one-shot future of a tensor: written once, read any number of times, before or after. A handle: copies share the
/// array. Thread-safe; the tasks that wait go on through their own executors. Each member of a handle that was moved from throws ArgumentError.
///
/// Four kinds. *Fixed*: a size. *Growable*: as long as what is written; open until `close`. *Window*: a bounded ring for endless input; a
/// writer waits while `capacity` slots are unread, slots are read in order or not, each `readers` times, and then leave. *Unstacked*:
/// fixed, with all slots written.
///
/// A slot is *issued* when it is written: its value has a point, so that a reader may enqueue behind it and the host never blocks; it is
/// *ready* when that point is reached. `read` waits for the former; `value.ready()` is the latter.
///
/// An array made with an order checks that slot t has one row (or one outermost sequence) for each sequence alive at iteration t, and what is
/// read from it carries (order, iteration) for `shrink`.
///
/// Errors, all naming array, index and size: IndexError, WrittenTwiceError, ClosedError, DTypeError and ShapeError (the first slot written,
/// or `of`, says what fits), NeverWrittenError (the array was closed, or its last registered writer is gone), WindowError; from a run that
/// comes to rest or waits in a circle, DeadlockError.
class TensorArray {
 public:
  /// The way in which `write` keeps a value: `share`, the designs' `data_shared = true`: no copy, and no one may write the value's storage from then on;
  /// or `copy`.
  enum Mode : std::uint8_t { share, copy };

  TensorArray() : TensorArray(growable()) {}
  /// Fixed, of `size` slots: a number or a scalar tensor. ArgumentError below 0.
  template <std::integral T>
  explicit TensorArray(T size) : TensorArray(make(detail::ArrayCore::Kind::fixed, static_cast<std::int64_t>(size), std::nullopt)) {}
  explicit TensorArray(const Tensor& size) : TensorArray(size.item_int()) {}
  /// Fixed, for a loop over an order. ArgumentError unless `size` is its number of steps.
  TensorArray(SlotIndex size, SequenceOrder order);
  /// `unstack(x)`. LoDError when x has levels: `unpack` gives the steps of sequences, `peel` the sequences.
  explicit TensorArray(const LoDTensor& x);
  static TensorArray growable();
  /// A capacity of 0 is a rendezvous: the result of `write` is done when the slot was read. ArgumentError for a capacity below 0 or a number
  /// of readings below 1.
  static TensorArray window(std::int64_t capacity, int readers = 1);

  /// Slot i is index i of `axis`, which goes away; a view. ArgumentError for more than 2^24 slots without elements.
  static TensorArray unstack(const Tensor& x, int axis = 0);
  /// Slot i is the next `lengths[i]` rows; a view. ShapeError unless the lengths sum to the rows; OverflowError for a sum beyond 64 bits.
  static TensorArray split(const Tensor& x, const std::vector<std::int64_t>& lengths);
  /// Slot i is sequence i of the outermost level, with one level less; a view.
  static TensorArray peel(const LoDTensor& x);

  /// Names the array in errors; gives the same array: `auto states = TensorArray(n).named("states");`
  TensorArray named(std::string name) const;
  /// The type of every slot, where the first write shall not decide: −1 (`DDim::unknown`) stands for any extent. DTypeError and ShapeError
  /// where a slot of another type is written already. `levels`: the levels of LoD of a slot, which `pack` and
  /// `concat` of no slots give; −1: not known.
  TensorArray of(DType dtype, const DDim& dims, int levels = -1) const;

  std::string name() const { return core().name(); }
  /// DTypeError, ShapeError or LoDError unless the array has the type of slots that `of` takes: the one that it was told, or that of the slots that are
  /// written. One that knows nothing of its slots takes it, as by `of`.
  void expect(DType dtype, const DDim& dims, int levels = -1) const {
    if (core().knows_slots()) return core().check_slots(dtype, dims, levels);
    core().expect(dtype, dims, levels);
  }

  /// Fixed: the size. Growable, window: one past the highest slot written so far.
  std::int64_t size() const { return core().size(); }
  /// The levels of LoD of a slot, where `of` said its type.
  std::optional<int> slot_levels() const { return core().slot_levels(); }
  /// IndexError for a slot that the array does not have.
  SlotState state(SlotIndex index) const { return core().state(index.value()); }
  const std::optional<SequenceOrder>& order() const { return core().order(); }
  bool is_window() const { return core().kind() == detail::ArrayCore::Kind::window; }
  bool is_fixed() const { return core().kind() == detail::ArrayCore::Kind::fixed; }
  bool closed() const { return core().closed(); }
  /// "array 'states' of 3 slots".
  std::string to_string() const { return core().to_string(); }

  // ---- Reading ----
  /// `co_await array.read(i)`: the value of slot i, as soon as it is issued. Reading −1, or past the end of a fixed array, is an error at
  /// once.
  SlotRead read(SlotIndex index) const { return SlotRead(core_, index.value()); }
  /// Slot `index`, as above; −1 gives `boot`, re-ordered on `stream` like the batch when the array has an order: boot has one row (or outermost
  /// sequence) for each sequence, the empty ones too, in the caller's order.
  SlotRead read(SlotIndex index, const LoDTensor& boot, StreamRef stream) const;
  /// `co_await array.has(i)`, which is `i < size` on an array that is still open: true once slot i is written, false once the array closed
  /// at or before i. Of a fixed array it is known at once.
  SlotHas has(SlotIndex index) const { return SlotHas(core_, index.value()); }

  /// The value of a slot that was written, without waiting and without taking it; nothing otherwise, and of windows.
  std::optional<LoDTensor> peek(SlotIndex index) const { return core().peek(index.value()); }

  // ---- Writing ----
  SlotWrite write(SlotIndex index, LoDTensor value, Mode mode = share) const;
  SlotWrite write(SlotIndex index, LoDTensor value, Mode mode, StreamRef stream) const;
  /// Writes the slot behind the highest written.
  SlotWrite append(LoDTensor value) const { return SlotWrite(core_, detail::ArrayCore::append, std::move(value), nullptr); }
  /// Writes all slots of a fixed array at once: slot t is the rows [offsets[t], offsets[t + 1]) of `rows`, a view. Costs next to nothing for
  /// a slot; none may be written already. With `watermark`, which the kernel raises that makes contiguous `rows`, slot t is ready at
  /// (watermark, t + 1).
  void fill(Tensor rows, std::vector<std::int64_t> offsets, std::shared_ptr<Watermark> watermark = nullptr) const {
    core().fill({std::move(rows), std::move(offsets), false, std::move(watermark)}, core().capacity());
  }
  /// As `fill`, of which the first `slots`, one at least, are written now and others by `issue`: work is enqueued for them piece by piece, and
  /// their readers enqueue theirs meanwhile. Slots that are not issued may be written one by one instead. Nobody but that work writes to
  /// `rows`. ArgumentError for a number of slots that the array does not have, and for rows that are not contiguous.
  void begin_fill(Tensor rows, std::vector<std::int64_t> offsets, std::shared_ptr<Watermark> watermark, std::int64_t slots) const {
    core().fill({std::move(rows), std::move(offsets), false, std::move(watermark)}, slots);
  }
  /// The first `slots` of a fill that was begun are written: no fewer than before. ArgumentError, WrittenTwiceError.
  void issue(std::int64_t slots) const { core().issue(slots); }
  /// Writes all slots of a fixed array at once, as `fill`: slot t is item t along axis 0 of `items`, which has as many as the array has slots.
  void fill_items(Tensor items) const;
  /// All slots of an array that was filled, or made by `unpack` or `unstack` (axis 0), as one value; null for others.
  std::shared_ptr<const detail::FilledSlots> filled() const { return core().filled(); }
  /// As `filled`, from `begin_fill` on: the first `issued()` slots of it are written.
  std::shared_ptr<const detail::FilledSlots> filling() const { return core().filling(); }
  std::int64_t issued() const { return core().issued(); }
  /// As `fill`: the rows are rows of a tensor, and are copied when they are read; one who takes `picked` reads them where they are. ArgumentError unless
  /// the tensor lies on the host, is contiguous and there, and each row is one of its rows.
  void fill_picked(detail::PickedRows rows, std::vector<std::int64_t> offsets) const;
  /// All slots of an array that `fill_picked` filled and nobody has read; null for others.
  std::shared_ptr<const detail::FilledSlots> picked() const { return core().picked(); }
  /// Whether no slot was written yet, and none is waited for.
  bool untouched() const { return core().untouched(); }
  /// Waits until slot 0 is issued, or all slots of a fill that was begun; then gives `filled()`. Null for arrays of no fixed size.
  task<std::shared_ptr<const detail::FilledSlots>> once_filled() const { return filled_of(*this); }
  /// Memory for slot `index`, to be written in place and then given to `write`, which neither copies it nor takes it for foreign. Of a
  /// fixed array it is part of one slab, sized by the order or by the first call; else, or when it does not fit there, or when the array has
  /// no order and more than 2^20 slots, it is memory of its own. OverflowError for a slab beyond 64 bits.
  Tensor prepare(SlotIndex index, DType dtype, const DDim& dims, StreamRef stream) const {
    return core().prepare(index.value(), dtype, dims, stream.memory());
  }
  /// See ArrayWriter. With a task, the writer is bound to it.
  ArrayWriter writer(std::string name) const { return ArrayWriter(held(), std::move(name), nullptr); }
  ArrayWriter writer(TaskInfo& task, std::string name) const { return ArrayWriter(held(), std::move(name), &task); }
  /// A writer outside every run, such as the handler of a socket. While it lives, a task that waits for a slot is not taken for deadlocked.
  ArrayWriter feeder(std::string name) const { return ArrayWriter(held(), std::move(name), nullptr, true); }
  /// Whether a writer is registered now.
  bool has_writers() const { return core().has_writers(); }

  /// `co_await states[i]` reads, `states[i] = value` writes.
  class Slot;
  Slot operator[](SlotIndex index) const;

  // ---- The end ----
  /// No more slots: a waiter for an unwritten one fails, `has` says false. A second close does nothing.
  void close() const { core().close(); }
  /// Unwritten slots fail with `error`, or are cancelled. The first call counts. ArgumentError for a null `error`.
  void fail(std::exception_ptr error) const { core().fail(std::move(error), false); }
  void cancel() const;

  /// The same slots on another place or rank: `array.on(OnPlace(scope, device))`, `array.on(OnRank(scope, communicator, 0, 1, stream))`. A
  /// value that `write` gives this array is sent, and `read` of the array that this returns receives it. See runtime/distributed/remote_array.h.
  template <class Elsewhere>
  TensorArray on(const Elsewhere& elsewhere) const {
    return elsewhere.carry(*this);
  }

  // ---- Points ----
  /// (watermark, k) is reached when the slots before k are written and their elements are there; fails when that becomes impossible. Of
  /// windows: UnsupportedError. Each call gives the same timeline, but for more slots than a fixed array has, whose point fails at once.
  Point watermark(std::int64_t slots) const;

  // ---- All slots ---- Tasks: they wait until every slot is issued (growable: until the array is closed), then enqueue on `stream`. Where
  // the slots lie one behind the other, as in a slab, nothing is copied. Of windows: UnsupportedError.

  /// All values, in order.
  task<std::vector<SlotValue>> values() const { return values_of(*this); }
  /// One tensor with an axis 0 of `size()`. ShapeError names two slots that differ, or an array of no slots whose shape is unknown. LoDError
  /// for a slot with levels.
  task<Tensor> stack(StreamRef stream) const { return stack_of(*this, stream); }
  /// The rows of all slots, one behind the other; when all have levels, the sequences too.
  task<LoDTensor> concat(StreamRef stream) const { return concat_of(*this, stream); }
  /// The named slots, stacked: errors as those of `stack`. Of no named slots, the rows are those of the lowest slot written so far.
  task<Tensor> gather(std::vector<std::int64_t> indices, StreamRef stream) const { return gather_of(*this, std::move(indices), stream); }
  /// Row k of `x` goes to slot `indices[k]`; views. All slots are written or, where one of them cannot be, none. ShapeError when the counts differ;
  /// WrittenTwiceError for an index that stands twice; WindowError for a slot that a window has no room for.
  void scatter(const std::vector<std::int64_t>& indices, const Tensor& x) const;

  /// Two handles of one array.
  friend bool operator==(const TensorArray& a, const TensorArray& b) noexcept { return a.core_ == b.core_; }

 private:
  explicit TensorArray(std::shared_ptr<detail::ArrayCore> core) noexcept : core_(std::move(core)) {}
  static TensorArray make(detail::ArrayCore::Kind kind, std::int64_t size, std::optional<SequenceOrder> order);
  static task<std::vector<SlotValue>> values_of(TensorArray array);
  static task<std::shared_ptr<const detail::FilledSlots>> filled_of(TensorArray array);
  static task<Tensor> stack_of(TensorArray array, StreamRef stream);
  static task<LoDTensor> concat_of(TensorArray array, StreamRef stream);
  static task<Tensor> gather_of(TensorArray array, std::vector<std::int64_t> indices, StreamRef stream);

  detail::ArrayCore& core() const { return detail::expect_array(core_); }
  const std::shared_ptr<detail::ArrayCore>& held() const {
    detail::expect_array(core_);
    return core_;
  }

  std::shared_ptr<detail::ArrayCore> core_;
};

/// `write(i, value, share)`, as the listings spell it.
inline constexpr TensorArray::Mode share = TensorArray::share;

/// One slot of an array, by number. Lives as long as the expression it stands in.
class TensorArray::Slot {
 public:
  Slot(const TensorArray& array, SlotIndex index) : array_(array), index_(index) {}
  Slot(const Slot&) = delete;
  Slot& operator=(const Slot&) = delete;

  SlotRead operator co_await() const { return array_.read(index_); }
  SlotWrite operator=(LoDTensor value) const { return array_.write(index_, std::move(value)); }

 private:
  const TensorArray& array_;
  SlotIndex index_;
};

inline TensorArray::Slot TensorArray::operator[](SlotIndex index) const { return Slot(*this, index); }

}  // namespace millrace
