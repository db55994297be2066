// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/array/array_core.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include <millrace/runtime/array/errors.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/task_info.h>
#include <millrace/tensor/checked.h>
#include <millrace/tensor/pool.h>

namespace millrace::detail {

Tensor FilledSlots::slot(std::int64_t index) const {
  if (items) return whole.select(0, index);
  Tensor rows = whole.rows(offsets[static_cast<std::size_t>(index)], offsets[static_cast<std::size_t>(index) + 1]);
  if (watermark == nullptr || rows.elements() == 0 || rows.ready().reached()) return rows;
  return part_of(rows, Point(watermark, static_cast<std::uint64_t>(index) + 1));
}

std::optional<Tensor> FilledSlots::stacked() const {
  if (items) return whole;
  const auto slots = static_cast<std::int64_t>(offsets.size()) - 1;
  if (slots < 1) return std::nullopt;
  for (std::int64_t slot = 0; slot < slots; ++slot)
    if (offsets[static_cast<std::size_t>(slot)] != slot * offsets[1]) return std::nullopt;
  if (offsets.back() != slots * offsets[1]) return std::nullopt;
  DDim dims = whole.dims().inserted(0, slots);
  dims[1] = offsets[1];
  return whole.reshape(dims);
}

namespace {

/// While kernels go on to write other slots, a reader gets a part by itself, which it may share and freeze, and whose point stays.
LoDTensor taken_from(const FilledSlots& filled, bool all_issued, std::int64_t index) {
  const Tensor slot = filled.slot(index);
  if (all_issued) return LoDTensor(slot);
  if (slot.elements() == 0) return LoDTensor(part_of(slot, Point()));
  return LoDTensor(part_of(slot, filled.watermark ? Point(filled.watermark, static_cast<std::uint64_t>(index) + 1) : slot.ready()));
}

/// A slot of picked rows that stand side by side, where they are; none where they do not, or are not picked.
std::optional<LoDTensor> picked_in_line(const FilledSlots& filled, std::int64_t index) {
  const std::int64_t begin = filled.offsets[static_cast<std::size_t>(index)], end = filled.offsets[static_cast<std::size_t>(index) + 1];
  if (filled.picked == nullptr || begin == end) return std::nullopt;
  const std::int64_t* const rows = filled.picked->rows.data();
  for (std::int64_t at = begin + 1; at < end; ++at)
    if (rows[at] != rows[at - 1] + 1) return std::nullopt;
  return LoDTensor(filled.picked->from.rows(rows[begin], rows[begin] + (end - begin)));
}

}  // namespace

/// Waiters taken off their lists; the destructor wakes them, so it must stand before the lock whose end frees the mutex.
class ArrayCore::Wakeups {
 public:
  Wakeups() = default;
  Wakeups(const Wakeups&) = delete;
  Wakeups& operator=(const Wakeups&) = delete;
  ~Wakeups() {
    if (value_ > 0) timeline_->advance(static_cast<std::uint64_t>(value_));
    if (error_) timeline_->fail(error_);
    while (first_ != nullptr) std::exchange(first_, first_->next_)->decided();  // which may destroy the waiter
  }
  void add(ArrayWaiter& waiter) noexcept {
    waiter.next_ = nullptr;
    *end_ = &waiter;
    end_ = &waiter.next_;
  }
  /// Where the watermark has come to, or why it comes no further: its own waiters are woken outside too.
  void mark(const std::shared_ptr<Timeline>& timeline, std::int64_t value) {
    timeline_ = timeline;
    value_ = value;
  }
  void mark_failed(const std::shared_ptr<Timeline>& timeline, std::exception_ptr error) {
    timeline_ = timeline;
    error_ = std::move(error);
  }
  /// Released after the waiters were woken: until then the run has something under way.
  std::optional<ExternalHold> hold;

 private:
  std::shared_ptr<Timeline> timeline_;
  std::int64_t value_ = 0;
  std::exception_ptr error_;
  ArrayWaiter* first_ = nullptr;
  ArrayWaiter** end_ = &first_;
};

/// Waits, for its array, until a slot's elements are there.
class ArrayCore::AtPoint final : public Waiter, public Pooled {
 public:
  explicit AtPoint(ArrayCore& core) : core_(core) {}
  /// False when the point is reached, or never will be.
  bool arm(const Point& point) {
    if (point.reached()) return false;
    self_ = core_.shared_from_this();
    if (point.timeline()->add(*this, point.value())) return true;
    self_ = nullptr;
    return false;
  }
  void complete(std::exception_ptr) noexcept override {
    const std::shared_ptr<ArrayCore> alive = std::move(self_);
    core_.point_reached(*this);
  }
  bool armed = false;
  std::optional<ExternalHold> hold;

 private:
  ArrayCore& core_;
  std::shared_ptr<ArrayCore> self_;  // while armed
};

ArrayCore::ArrayCore(Kind kind, std::int64_t size, std::optional<SequenceOrder> order)
    : kind_(kind),
      limit_(size),
      order_(std::move(order)),
      room_at_(std::make_unique<AtPoint>(*this)),
      mark_at_(std::make_unique<AtPoint>(*this)) {}

ArrayCore::~ArrayCore() = default;

// ---- State ----------------------------------------------------------------------------------------------------------

bool ArrayCore::is_written(std::int64_t index) const {
  if (is_of_fill(index)) return true;
  const auto at = slots_.find(index);
  return at != slots_.end() && at->second.written;
}

std::int64_t ArrayCore::size() const {
  const std::lock_guard lock(mutex_);
  return kind_ == Kind::fixed ? limit_ : size_;
}

bool ArrayCore::closed() const {
  const std::lock_guard lock(mutex_);
  return closed_;
}

SlotState ArrayCore::state(std::int64_t index) const {
  const std::lock_guard lock(mutex_);
  check_index(index);
  const auto at = slots_.find(index);
  if (is_written(index) || index < base_) return SlotState::written;
  if (failed_) return cancelled_ ? SlotState::cancelled : SlotState::failed;
  if (is_decided(index)) return SlotState::failed;
  return at != slots_.end() && at->second.first != nullptr ? SlotState::waited : SlotState::empty;
}

std::optional<LoDTensor> ArrayCore::peek(std::int64_t index) const {
  const std::lock_guard lock(mutex_);
  if (!is_written(index) || kind_ == Kind::window) return std::nullopt;
  if (is_of_fill(index)) {
    if (std::optional<LoDTensor> rows = picked_in_line(*filled_, index)) return std::move(*rows);
    copy_picked();
    return taken_from(*filled_, issued_ == limit_, index);
  }
  return slots_.at(index).value;
}

// ---- Reading --------------------------------------------------------------------------------------------------------

/// No waiting will change what is known about the slot.
bool ArrayCore::is_decided(std::int64_t index) const {
  if (is_written(index)) return true;
  for (const ArrayWaiter* waiter = parked_; waiter != nullptr; waiter = waiter->next_)
    if (waiter->index == index) return false;
  return closed_ || failed_ != nullptr || !orphaned_by_.empty() || index < base_;
}

bool ArrayCore::arm(ArrayWaiter& waiter) {
  const std::lock_guard lock(mutex_);
  if (waiter.want == ArrayWaiter::Want::room) {  // a parked write was registered when it was made
    waiter.waiting = !waiter.placed && !waiter.refused;
    return !waiter.waiting;
  }
  waiter.next_ = nullptr;
  if (is_decided(waiter.index)) return true;
  ArrayWaiter** end = &slots_[waiter.index].first;
  while (*end != nullptr) end = &(*end)->next_;
  *end = &waiter;
  return false;
}

bool ArrayCore::disarm(ArrayWaiter& waiter) noexcept {
  const std::lock_guard lock(mutex_);
  if (waiter.want == ArrayWaiter::Want::room) {
    if (waiter.placed || waiter.refused) return false;
    waiter.waiting = false;
    return true;
  }
  const auto slot = slots_.find(waiter.index);
  if (slot == slots_.end()) return false;
  for (ArrayWaiter** at = &slot->second.first; *at != nullptr; at = &(*at)->next_) {
    if (*at != &waiter) continue;
    *at = waiter.next_;
    if (slot->second.first == nullptr && !slot->second.written) slots_.erase(slot);  // a forgotten wait leaves no trace
    return true;
  }
  return false;
}

std::exception_ptr ArrayCore::failure_of(std::int64_t index, const TaskInfo* who) const {
  if (failed_) return failed_;
  const std::string waits = who == nullptr ? std::string() : "; task '" + who->name() + "' waits for it";
  if (!orphaned_by_.empty())
    return std::make_exception_ptr(NeverWrittenError(slot_text(index) + " was never written and can no longer be: its last writer " +
                                                     orphaned_by_ + " is gone" + waits));
  if (kind_ != Kind::fixed && index >= size_)
    return std::make_exception_ptr(ClosedError(slot_text(index) + " is past the end: the array was closed at size " +
                                               std::to_string(size_) + "; ask `co_await array.has(i)` first" + waits));
  return std::make_exception_ptr(NeverWrittenError(slot_text(index) + " was never written before the array was closed" + waits));
}

LoDTensor ArrayCore::take(std::int64_t index, const TaskInfo* who) {
  Wakeups wakeups;
  const std::lock_guard lock(mutex_);
  if (is_of_fill(index)) {
    if (std::optional<LoDTensor> rows = picked_in_line(*filled_, index)) return std::move(*rows);
    copy_picked();
    return taken_from(*filled_, issued_ == limit_, index);
  }
  const auto at = slots_.find(index);
  if (index < base_ || (at != slots_.end() && kind_ == Kind::window && at->second.readings >= readers_))
    throw WindowError(slot_text(index) + " was already read " + std::to_string(readers_) +
                      " times, and left the window; set more readers, or keep the value");
  if (at == slots_.end() || !at->second.written) rethrow_own(failure_of(index, who));
  Slot& slot = at->second;
  if (kind_ != Kind::window || ++slot.readings < readers_) return slot.value;
  slot.point = slot.value.ready();
  LoDTensor value = std::exchange(slot.value, LoDTensor());
  if (who != nullptr) reader_run_ = Ref<Run>(&who->run());
  release(wakeups);
  return value;
}

bool ArrayCore::exists(std::int64_t index, const TaskInfo* who) const {
  const std::lock_guard lock(mutex_);
  if (kind_ == Kind::fixed) return index >= 0 && index < limit_;
  if (is_written(index) || index < base_) return true;
  if (closed_ && !failed_) return index < size_;
  rethrow_own(failure_of(index, who));
}

// ---- Writing --------------------------------------------------------------------------------------------------------

bool ArrayCore::write(std::int64_t index, LoDTensor value, ArrayWaiter& waiter, WriterEntry* writer) {
  Wakeups wakeups;
  const std::lock_guard lock(mutex_);
  const bool appended = index == append;
  if (appended) index = size_;
  check_write(index, value);
  check_value(index, value);
  const bool fits = kind_ != Kind::window || index - base_ < room();
  if (fits) slots_.try_emplace(index);  // memory that runs out leaves no gap, which an append would skip
  take_type(value.dtype(), value.dims());
  value.tensor().storage()->freeze();
  value.tensor().ready().expect();  // readers come later, when the writer's stream is at other slots
  if (writer != nullptr) writer->last = index;
  size_ = std::max(size_, index + 1);
  if (fits && !is_rendezvous()) {
    place(index, std::move(value), wakeups);
    return true;
  }
  waiter.want = ArrayWaiter::Want::room;
  waiter.index = index;
  waiter.offered = fits;
  waiter.appended = appended;
  if (fits)
    place(index, std::move(value), wakeups);
  else
    waiter.parked = std::move(value);
  ArrayWaiter** end = &parked_;
  while (*end != nullptr) end = &(*end)->next_;
  waiter.next_ = nullptr;
  *end = &waiter;
  return false;
}

void ArrayCore::scatter(const std::vector<std::int64_t>& indices, const Tensor& rows) {
  std::map<std::int64_t, Slot> made;  // nothing below the checks throws
  Wakeups wakeups;
  const std::lock_guard lock(mutex_);
  for (std::size_t k = 0; k < indices.size(); ++k) {
    const std::int64_t index = indices[k];
    const LoDTensor value(rows.select(0, static_cast<std::int64_t>(k)));
    check_write(index, value);
    check_value(index, value);
    if (kind_ == Kind::window && (is_rendezvous() || index - base_ >= room()))
      throw WindowError(
          slot_text(index) +
          ": expected room for all slots of a scatter, found none for this one: a scatter cannot wait; write the slots one by one");
    Slot slot;
    slot.value = value;
    slot.written = true;
    if (!made.emplace(index, std::move(slot)).second)
      throw WrittenTwiceError(slot_text(index) + ": expected each slot once in a scatter, found it twice");
  }
  if (made.empty()) return;
  rows.storage()->freeze();
  rows.ready().expect();  // as in `write`
  take_type(rows.dtype(), made.begin()->second.value.dims());
  size_ = std::max(size_, made.rbegin()->first + 1);
  for (auto& [index, slot] : made) {
    const auto waited = slots_.find(index);
    if (waited == slots_.end()) continue;
    waited->second.value = std::move(slot.value);
    waited->second.written = true;
    wake_slot(waited->second, wakeups);
  }
  slots_.merge(made);
  advance_watermark(wakeups);
}

void ArrayCore::fill(FilledSlots slots, std::int64_t issued) {
  Wakeups wakeups;
  const std::lock_guard lock(mutex_);
  if (kind_ == Kind::fixed && filled_ == nullptr) {  // else check_fill says what is wrong
    check_issue(issued);
    if (issued < limit_ && !slots.whole.is_contiguous())
      throw ArgumentError(text() + ": expected contiguous rows to be filled piece by piece, found " + slots.whole.to_string());
  }
  check_fill(slots);
  if (limit_ > 0) take_type(slots.whole.dtype(), slots.slot(0).dims());
  filled_ = std::make_shared<const FilledSlots>(std::move(slots));
  issued_ = issued;
  wake_issued(wakeups);
}

void ArrayCore::issue(std::int64_t slots) {
  Wakeups wakeups;
  const std::lock_guard lock(mutex_);
  if (filled_ == nullptr) throw ArgumentError(text() + ": expected begin_fill before issue");
  check_issue(slots);
  if (slots > issued_) check_write(issued_, LoDTensor(filled_->whole));
  issued_ = slots;
  wake_issued(wakeups);
}

void ArrayCore::wake_issued(Wakeups& wakeups) {
  if (issued_ == limit_) filled_->whole.storage()->freeze();  // until then its kernels write it
  const auto end = slots_.lower_bound(issued_);
  for (auto at = slots_.begin(); at != end; ++at) wake_slot(at->second, wakeups);
  slots_.erase(slots_.begin(), end);
  advance_watermark(wakeups);
}

bool ArrayCore::untouched() const {
  const std::lock_guard lock(mutex_);
  return slots_.empty() && filled_ == nullptr && base_ == 0 && !failed_ && parked_ == nullptr && orphaned_by_.empty();
}

std::shared_ptr<const FilledSlots> ArrayCore::filled() const {
  const std::lock_guard lock(mutex_);
  copy_picked();
  return issued_ == limit_ ? filled_ : nullptr;
}

std::shared_ptr<const FilledSlots> ArrayCore::filling() const {
  const std::lock_guard lock(mutex_);
  copy_picked();
  return filled_;
}

std::shared_ptr<const FilledSlots> ArrayCore::picked() const {
  const std::lock_guard lock(mutex_);
  return filled_ != nullptr && filled_->picked != nullptr ? filled_ : nullptr;
}

/// In the calling thread: the rows are there, and whoever asks goes on with them.
void ArrayCore::copy_picked() const {
  if (filled_ == nullptr || filled_->picked == nullptr) return;
  const PickedRows& picked = *filled_->picked;
  FilledSlots made = *filled_;
  made.picked = nullptr;
  made.whole = Tensor(filled_->whole.dtype(), filled_->whole.dims(), picked.memory);
  const std::size_t row = picked.rows.empty() ? 0 : static_cast<std::size_t>(made.whole.bytes()) / picked.rows.size();
  auto* to = static_cast<std::byte*>(made.whole.raw_mutable());
  for (const std::int64_t at : picked.rows) {
    std::memcpy(to, static_cast<const std::byte*>(picked.from.raw()) + static_cast<std::size_t>(at) * row, row);
    to += row;
  }
  made.whole.storage()->mark_written();
  made.whole.storage()->freeze();
  filled_ = std::make_shared<const FilledSlots>(std::move(made));
}

std::int64_t ArrayCore::issued() const {
  const std::lock_guard lock(mutex_);
  return issued_;
}

void ArrayCore::place(std::int64_t index, LoDTensor value, Wakeups& wakeups) {
  Slot& slot = slots_[index];
  slot.value = std::move(value);
  slot.written = true;
  wake_slot(slot, wakeups);
  advance_watermark(wakeups);
}

void ArrayCore::wake_slot(Slot& slot, Wakeups& wakeups) {
  while (slot.first != nullptr) {
    ArrayWaiter* waiter = std::exchange(slot.first, slot.first->next_);
    wakeups.add(*waiter);
  }
}

/// Waiters for slots that no longer can be written.
void ArrayCore::wake_all(Wakeups& wakeups) {
  for (auto& [index, slot] : slots_)
    if (is_decided(index)) wake_slot(slot, wakeups);
  advance_watermark(wakeups);
}

/// Lets the front of a window go, as far as it was read and its elements are there, and places what was parked.
void ArrayCore::release(Wakeups& wakeups) {
  for (auto front = slots_.begin(); front != slots_.end() && front->first == base_ && front->second.readings >= readers_;
       front = slots_.begin()) {
    if (room_at_->armed) return;
    if (room_at_->arm(front->second.point)) {
      room_at_->armed = true;                                 // seen by `point_reached` only after the mutex is free
      if (reader_run_) room_at_->hold.emplace(*reader_run_);  // writers now wait for a stream
      return;
    }
    slots_.erase(front);
    ++base_;
    place_parked(wakeups);
  }
}

/// Places each parked write that has room, and ends it.
void ArrayCore::place_parked(Wakeups& wakeups) {
  for (ArrayWaiter** at = &parked_; *at != nullptr;) {
    ArrayWaiter* waiter = *at;
    if (!waiter->offered && waiter->index - base_ < room()) {
      place(waiter->index, std::move(waiter->parked), wakeups);
      waiter->offered = true;
    }
    // The write of a rendezvous waits until its slot has left.
    if (!waiter->offered || (is_rendezvous() && waiter->index >= base_)) {
      at = &waiter->next_;
      continue;
    }
    *at = waiter->next_;
    waiter->placed = true;
    if (waiter->waiting) wakeups.add(*waiter);
  }
}

void ArrayCore::point_reached(AtPoint& at) noexcept {
  Wakeups wakeups;
  const std::lock_guard lock(mutex_);
  at.armed = false;
  if (&at == mark_at_.get()) return advance_watermark(wakeups);
  if (at.hold) wakeups.hold.emplace(std::move(*at.hold));
  at.hold.reset();
  release(wakeups);
}

/// Takes a write off the list of parked ones, and back what it offered, unless that was read. False when it is not on the list.
bool ArrayCore::unpark(ArrayWaiter& waiter) noexcept {
  ArrayWaiter** at = &parked_;
  while (*at != nullptr && *at != &waiter) at = &(*at)->next_;
  if (*at == nullptr) return false;
  *at = waiter.next_;
  const auto slot = waiter.offered ? slots_.find(waiter.index) : slots_.end();
  if (slot != slots_.end() && slot->second.readings == 0) slots_.erase(slot);
  return true;
}

/// Slot `index` of an append was withdrawn: the appends behind it close the gap, unless a write chose a slot behind it.
void ArrayCore::move_appends_down(std::int64_t index) noexcept {
  std::int64_t behind = 0;
  for (const ArrayWaiter* waiter = parked_; waiter != nullptr; waiter = waiter->next_)
    if (waiter->appended && !waiter->offered && waiter->index > index) ++behind;
  if (index + 1 + behind != size_) return;
  for (ArrayWaiter* waiter = parked_; waiter != nullptr; waiter = waiter->next_)
    if (waiter->index > index) --waiter->index;
  --size_;
}

bool ArrayCore::withdraw(ArrayWaiter& waiter) noexcept {
  Wakeups wakeups;
  const std::lock_guard lock(mutex_);
  if (!unpark(waiter)) return !waiter.placed;
  const bool was_read = waiter.offered && slots_.count(waiter.index) > 0;
  if (was_read) return false;
  if (waiter.appended) move_appends_down(waiter.index);
  place_parked(wakeups);  // a rendezvous offers the next value
  if (closed_ || !orphaned_by_.empty()) wake_all(wakeups);
  return true;
}

void ArrayCore::drop(ArrayWaiter& waiter) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (!unpark(waiter)) return;
  }
  fail(std::make_exception_ptr(
           WindowError("slot " + std::to_string(waiter.index) + " of " + to_string() +
                       ": the window was full and its write was not awaited: await the result of each write to a window")),
       false);
}

bool ArrayCore::placed(const ArrayWaiter& waiter) const {
  const std::lock_guard lock(mutex_);
  return waiter.placed;
}

std::int64_t ArrayCore::slot_of(const ArrayWaiter& waiter) const {
  const std::lock_guard lock(mutex_);
  return waiter.index;
}

// ---- The end --------------------------------------------------------------------------------------------------------

void ArrayCore::close() {
  Wakeups wakeups;
  const std::lock_guard lock(mutex_);
  if (closed_) return;
  closed_ = true;
  wake_all(wakeups);
}

void ArrayCore::fail(std::exception_ptr error, bool cancelled) {
  if (error == nullptr) throw ArgumentError(to_string() + ": expected an error to fail with, found null");
  Wakeups wakeups;
  const std::lock_guard lock(mutex_);
  if (failed_) return;
  failed_ = std::move(error);
  cancelled_ = cancelled;
  while (parked_ != nullptr) {
    ArrayWaiter* waiter = std::exchange(parked_, parked_->next_);
    waiter->refused = failed_;
    if (waiter->waiting) wakeups.add(*waiter);
  }
  wake_all(wakeups);
}

void ArrayCore::set_readers(int readers) {
  if (readers < 1) throw ArgumentError("window: expected at least 1 reader, found " + std::to_string(readers));
  const std::lock_guard lock(mutex_);
  readers_ = readers;
}

/// Whether extents agree as far as both are known.
static bool may_be_alike(const DDim& a, const DDim& b) {
  bool alike = a.rank() == b.rank();
  for (int axis = 0; alike && axis < a.rank(); ++axis) alike = a[axis] == DDim::unknown || b[axis] == DDim::unknown || a[axis] == b[axis];
  return alike;
}

void ArrayCore::expect(DType dtype, const DDim& dims, int levels) {
  const std::lock_guard lock(mutex_);
  const bool written = dtype_ && (size_ > 0 || issued_ > 0);
  if (written && *dtype_ != dtype)
    throw DTypeError(text() + ": expected " + std::string(name_of(*dtype_)) + " as in the slots that are written, found " +
                     std::string(name_of(dtype)));
  const auto expect_fit = [&](const DDim& slot) {
    if (!may_be_alike(slot, dims))
      throw ShapeError(text() + ": expected " + slot.to_string() + " as in the slots that are written, found " + dims.to_string());
  };
  if (written) expect_fit(*dims_);
  for (std::int64_t index = 0; index < issued_; ++index) expect_fit(filled_->slot(index).dims());
  for (const auto& [index, slot] : slots_)
    if (slot.written && (kind_ != Kind::window || slot.readings < readers_)) expect_fit(slot.value.dims());
  dtype_ = dtype;
  dims_ = dims;
  if (levels >= 0) levels_ = levels;
}

void ArrayCore::check_slots(DType dtype, const DDim& dims, int levels) const {
  const std::lock_guard lock(mutex_);
  if (dtype_ && *dtype_ != dtype)
    throw DTypeError(text() + ": expected slots of " + std::string(name_of(dtype)) + ", found " + std::string(name_of(*dtype_)));
  const auto check_dims = [&](const DDim& slot) {
    if (!may_be_alike(slot, dims)) throw ShapeError(text() + ": expected slots of " + dims.to_string() + ", found " + slot.to_string());
  };
  const auto check_slot = [&](const DDim& slot, int depth) {
    check_dims(slot);
    if (levels >= 0 && depth != levels)
      throw LoDError(text() + ": expected slots with " + std::to_string(levels) + " levels of LoD, found " + std::to_string(depth));
  };
  if (dims_) check_dims(*dims_);
  if (levels >= 0 && levels_ && *levels_ != levels)
    throw LoDError(text() + ": expected slots with " + std::to_string(levels) + " levels of LoD, found " + std::to_string(*levels_));
  for (std::int64_t index = 0; index < issued_; ++index) check_slot(filled_->slot(index).dims(), 0);
  for (const auto& [index, slot] : slots_)
    if (slot.written && (kind_ != Kind::window || slot.readings < readers_)) check_slot(slot.value.dims(), slot.value.lod().depth());
}

void ArrayCore::add_writer(WriterEntry& writer) {
  const std::lock_guard lock(mutex_);
  if (closed_ || failed_ || !orphaned_by_.empty())
    throw ClosedError(text() + ": writer '" + writer.name + "' came after the array was " + (closed_ ? "closed" : "failed") +
                      ": register writers before the last one goes");
  writers_.push_back(&writer);
}

void ArrayCore::remove_writer(WriterEntry& writer) noexcept {
  {
    Wakeups wakeups;
    const std::lock_guard lock(mutex_);
    std::erase(writers_, &writer);
    if (writers_.empty() && !closed_ && !failed_) {
      try {
        orphaned_by_ = "'" + writer.name + "' (" +
                       (writer.last < 0 ? "which wrote nothing" : "whose last iteration wrote slot " + std::to_string(writer.last)) + ")";
      } catch (const std::bad_alloc&) {
        orphaned_by_ = "a task";  // few letters are stored inline
      }
      wake_all(wakeups);
    }
  }
  // The others may now wait for each other alone.
  if (writer.task != nullptr) writer.task->run().recheck();
}

void ArrayCore::bind_writer(WriterEntry& writer, TaskInfo* task) {
  const std::lock_guard lock(mutex_);
  writer.task = task;
}

void ArrayCore::writers(WriterVisitor& visitor) const {
  const std::lock_guard lock(mutex_);
  for (const WriterEntry* writer : writers_)
    if (writer->task == nullptr) return;
  for (const WriterEntry* writer : writers_) visitor.visit(*writer->task);
}

bool ArrayCore::fed_from_outside() const {
  const std::lock_guard lock(mutex_);
  return std::any_of(writers_.begin(), writers_.end(), [](const WriterEntry* writer) { return writer->outside; });
}

// ---- Memory and points ----------------------------------------------------------------------------------------------

std::shared_ptr<Timeline> ArrayCore::watermark() {
  Wakeups wakeups;
  const std::lock_guard lock(mutex_);
  if (kind_ == Kind::window) throw UnsupportedError(text() + ": a window has no watermark: its slots leave");
  if (watermark_ == nullptr && filled_ != nullptr && issued_ == limit_ && filled_->watermark != nullptr) return filled_->watermark;
  if (watermark_ == nullptr) {
    watermark_ = std::make_shared<Timeline>();
    if (closed_ || failed_ || !orphaned_by_.empty())
      wake_all(wakeups);
    else
      advance_watermark(wakeups);
  }
  return watermark_;
}

void ArrayCore::advance_watermark(Wakeups& wakeups) {
  if (watermark_ == nullptr || mark_at_->armed) return;
  for (;;) {
    if (!is_written(marked_)) {
      const bool whole = kind_ == Kind::fixed && marked_ == limit_;
      if (whole || !is_decided(marked_)) return;
      try {
        wakeups.mark_failed(watermark_, failure_of(marked_, nullptr));
      } catch (const std::bad_alloc&) {  // no memory is left for its text
        wakeups.mark_failed(watermark_, std::current_exception());
      }
      return;
    }
    const Point ready = is_of_fill(marked_) ? filled_->slot(marked_).ready() : slots_.at(marked_).value.ready();
    mark_at_->armed = mark_at_->arm(ready);
    if (mark_at_->armed) return;
    if (const std::exception_ptr error = ready.error()) return wakeups.mark_failed(watermark_, error);
    wakeups.mark(watermark_, ++marked_);
  }
}

std::shared_ptr<Slab> ArrayCore::slab() const {
  const std::lock_guard lock(mutex_);
  return slab_;
}

bool ArrayCore::knows_slots() const {
  const std::lock_guard lock(mutex_);
  return dims_.has_value();
}

std::optional<int> ArrayCore::slot_levels() const {
  const std::lock_guard lock(mutex_);
  return levels_;
}

Tensor ArrayCore::empty_like() const {
  const std::lock_guard lock(mutex_);
  DDim dims = dims_ ? *dims_ : DDim{};
  // The first write leaves the rows open, since slots may differ in them: the written slots say more.
  const auto first = std::find_if(slots_.begin(), slots_.end(), [](const auto& slot) { return slot.second.written; });
  if (issued_ > 0)
    dims = filled_->slot(0).dims();
  else if (first != slots_.end() && kind_ != Kind::window)
    dims = first->second.value.dims();
  for (int axis = 0; axis < dims.rank(); ++axis)
    if (dims[axis] == DDim::unknown) dims[axis] = 0;
  // The extents matter, and no element is read: all of them are one.
  const DType dtype = dtype_.value_or(DType::f32);
  DDim strides = dims;
  for (int axis = 0; axis < strides.rank(); ++axis) strides[axis] = 0;
  return Tensor(dtype, dims, strides, 0, std::make_shared<Allocation>(host_memory(), size_of(dtype)));
}

namespace {

/// The first element of each slot in a slab. Slots of an order have its rows, else each is of `dims`. Nothing for many slots without an order: a
/// feed may say any number of slots, and the table takes memory for each.
std::optional<std::vector<std::int64_t>> slab_offsets(std::int64_t slots, const std::optional<SequenceOrder>& order, const DDim& dims) {
  constexpr std::int64_t most_slots = std::int64_t{1} << 20;
  const bool by_order = order && order->depth_below() == 0;
  if (!order && slots > most_slots) return std::nullopt;
  std::int64_t row = 1;
  for (int axis = 1; axis < dims.rank(); ++axis) row = checked_mul(row, dims[axis]);
  std::vector<std::int64_t> offsets{0};
  for (std::int64_t slot = 0; slot < slots; ++slot)
    offsets.push_back(checked_add(offsets.back(), by_order ? checked_mul(order->live(slot), row) : dims.elements()));
  return offsets;
}

}  // namespace

Tensor ArrayCore::prepare(std::int64_t index, DType dtype, const DDim& dims, const std::shared_ptr<MemoryResource>& memory) {
  const std::lock_guard lock(mutex_);
  check_index(index);
  if (kind_ != Kind::fixed) return Tensor(dtype, dims, memory);
  if (slab_ == nullptr) {
    std::optional<std::vector<std::int64_t>> offsets = slab_offsets(limit_, order_, dims);
    if (!offsets) return Tensor(dtype, dims, memory);
    slab_ = std::make_shared<Slab>(dtype, std::move(*offsets), memory);
  }
  if (slab_->dtype() != dtype || slab_->elements(index) != dims.elements()) return Tensor(dtype, dims, memory);
  return slab_->slot(index, dims);
}

}  // namespace millrace::detail
