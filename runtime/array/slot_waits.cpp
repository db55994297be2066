// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/array/slot_waits.h>

#include <new>

#include <millrace/runtime/task/task_info.h>

namespace millrace {

void detail::throw_moved_array() { throw ArgumentError("array: expected an array, found one that was moved from"); }
namespace {

bool is_window(const detail::ArrayCore& core) { return core.kind() == detail::ArrayCore::Kind::window; }

/// The point of a value that is written. UninitializedError for one that was moved from.
Point point_of(const detail::ArrayCore& core, std::int64_t slot, const LoDTensor& value) {
  if (value.tensor().storage() != nullptr) return value.ready();
  throw UninitializedError(core.to_string() + ": expected a tensor for " +
                           (slot < 0 ? "the slot behind the last" : "slot " + std::to_string(slot)) + ", found one that was moved from");
}

/// Whether the reader need not wait. One for whose place in the array there is no memory does not: its error is in `refused`.
bool is_ready(detail::ArrayCore& core, detail::ArrayWaiter& reader) noexcept {
  try {
    return core.arm(reader);
  } catch (const std::bad_alloc&) {
    reader.refused = std::current_exception();
    return true;
  }
}

}  // namespace

SlotRead::SlotRead(std::shared_ptr<detail::ArrayCore> core, std::int64_t slot) : core_(std::move(core)) {
  index = slot;
  want = Want::value;
  detail::expect_array(core_).check_read(slot);
}

SlotRead::SlotRead(std::shared_ptr<detail::ArrayCore> core, SlotValue value) : core_(std::move(core)), boot_(std::move(value)) {
  index = -1;
}

Wait::Armed SlotRead::arm() noexcept { return boot_ || is_ready(*core_, *this) ? Armed::ready : Armed::waiting; }

std::string SlotRead::describe() const { return "slot " + std::to_string(index) + " of " + core_->to_string(); }

SlotValue SlotRead::await_resume() {
  Wait::await_resume();
  if (refused) rethrow_own(refused);
  if (boot_) return std::move(*boot_);
  return SlotValue(core_->take(index, &task()), core_->order(), index);
}

SlotHas::SlotHas(std::shared_ptr<detail::ArrayCore> core, std::int64_t slot) : core_(std::move(core)) {
  index = slot;
  want = Want::existence;
  const detail::ArrayCore& array = detail::expect_array(core_);
  if (slot < 0) throw IndexError(array.to_string() + ": expected an index from 0 on, found " + std::to_string(slot));
}

Wait::Armed SlotHas::arm() noexcept {
  const bool sized = core_->kind() == detail::ArrayCore::Kind::fixed;  // its size is no question of time
  return sized || is_ready(*core_, *this) ? Armed::ready : Armed::waiting;
}

std::string SlotHas::describe() const { return "slot " + std::to_string(index) + ", or the end, of " + core_->to_string(); }

bool SlotHas::await_resume() {
  Wait::await_resume();
  if (refused) rethrow_own(refused);
  return core_->exists(index, &task());
}

SlotWrite::SlotWrite(std::shared_ptr<detail::ArrayCore> core, std::int64_t slot, LoDTensor value, detail::WriterEntry* writer)
    : Wait(is_window(detail::expect_array(core)) ? Kind::blocker : Kind::external),
      core_(std::move(core)),
      ready_(point_of(*core_, slot, value)) {
  parks_ = !core_->write(slot, std::move(value), *this, writer);
}

SlotWrite::~SlotWrite() {
  if (parks_) core_->drop(*this);
}

Wait::Armed SlotWrite::arm() noexcept {
  bool done = true;
  if (parks_)
    done = core_->arm(*this);
  else if (!is_window(*core_))
    done = ready_.reached() || !ready_.timeline()->add(*this, ready_.value());
  return done ? Armed::ready : Armed::waiting;
}

bool SlotWrite::disarm() noexcept { return parks_ ? core_->disarm(*this) : ready_.timeline()->remove(*this); }

std::string SlotWrite::describe() const {
  return parks_ ? "room for slot " + std::to_string(core_->slot_of(*this)) + " in " + core_->to_string()
                : "the elements of a slot of " + core_->to_string();
}

void SlotWrite::await_resume() {
  try {
    Wait::await_resume();
  } catch (...) {
    if (!parks_ || core_->withdraw(*this)) throw;
  }
  if (parks_ && refused) rethrow_own(refused);
  if (!is_window(*core_)) ready_.check();
}

}  // namespace millrace
