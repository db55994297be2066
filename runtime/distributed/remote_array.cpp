// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/remote_array.h>

#include <algorithm>
#include <cstring>

#include <fmt/format.h>

#include <millrace/runtime/array/errors.h>
#include <millrace/runtime/distributed/internal/slot_run.h>
#include <millrace/runtime/task/await_point.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/cpu_stream.h>
#include <millrace/tensor/work_failure.h>

namespace millrace {
namespace {

/// The header of a message: the kind of its contents, the first slot, their number, words that describe them, bytes of their elements or of a text.
enum class Kind : std::int64_t { slots, end, failed };
constexpr std::int64_t header_words = 5;

/// One end of an array that lives on two ranks.
struct Link {
  Link(std::unique_ptr<Communicator> own, TensorArray slots, int other, StreamRef where, std::int64_t steps, std::int64_t most_steps)
      : communicator(std::move(own)), array(std::move(slots)), peer(other), stream(where), run(steps), most(most_steps) {}
  std::unique_ptr<Communicator> communicator;
  TensorArray array;
  int peer;
  StreamRef stream;
  std::int64_t run;
  std::int64_t most;
  CpuStream host{std::make_shared<ThreadTeam>(1)};  // of what describes the elements
};
using LinkPtr = std::shared_ptr<Link>;

TensorArray like(const TensorArray& array, std::int64_t window) {
  if (array.is_fixed()) return (array.order() ? TensorArray(array.size(), *array.order()) : TensorArray(array.size())).named(array.name());
  return (array.is_window() ? TensorArray::window(window) : TensorArray::growable()).named(array.name());
}

void trace_arrival(const TaskInfo& me, const TensorArray& array, const std::string& where, std::int64_t slot) {
  if (Tracer* tracer = me.tracer())
    tracer->instant("slot", fmt::format("{}[{}] on {}", array.name(), slot, where), tracer->add_track(array.name() + " on " + where), slot);
}

/// The slots from `next` on will not come: their waiters get the reason.
void fail_rest(const TensorArray& array, std::int64_t next, const std::string& from) {
  try {
    throw;
  } catch (const CancelledError&) {
    array.cancel();
  } catch (Error& error) {
    error.add_context(fmt::format(" ({} from slot {} on, which come from {})", array.to_string(), next, from));
    array.fail(std::current_exception());
  } catch (...) {
    array.fail(std::current_exception());
  }
}

task<bool> exists(TensorArray array, std::int64_t slot) {
  if (array.is_fixed()) co_return slot < array.size();
  const bool has = co_await array.has(slot);
  co_return has;
}

// ---- To another place ----

task<void> copy_slots(TensorArray from, TensorArray to, ArrayWriter writer, Device* device) {
  TaskInfo& me = co_await this_task::info();
  writer.bind(me);
  std::int64_t slot = 0;
  std::exception_ptr cancelled;
  try {
    for (;; ++slot) {
      const bool more = co_await exists(from, slot);
      if (!more) break;
      const SlotValue value = co_await from.read(slot);
      const Point there = value.ready();
      co_await ready(there);
      const StreamRef stream = device->stream(static_cast<std::size_t>(slot));
      SlotWrite written = writer.write(slot, LoDTensor(clone(value.tensor(), stream), value.lod()));
      if (to.is_window()) co_await written;
      trace_arrival(me, to, device->place().to_string(), slot);
    }
    if (!to.is_fixed()) to.close();
  } catch (const CancelledError&) {
    fail_rest(to, slot, "another place");
    cancelled = std::current_exception();
  } catch (...) {
    fail_rest(to, slot, "another place");
  }
  if (cancelled != nullptr) std::rethrow_exception(cancelled);
}

// ---- To another rank ----

Tensor header(Kind kind, std::int64_t first, std::int64_t count, std::int64_t words, std::int64_t bytes) {
  return Tensor::from<std::int64_t>({static_cast<std::int64_t>(kind), first, count, words, bytes});
}

task<void> send_run(LinkPtr link, std::int64_t first, std::vector<SlotValue> values) {
  for (const SlotValue& value : values) {
    const Point there = value.ready();
    co_await ready(there);
  }
  const detail::SlotRun packed = detail::pack_run(values, link->stream);
  const Tensor begin = header(Kind::slots, first, static_cast<std::int64_t>(values.size()), packed.words.dim(0), packed.bytes.dim(0));
  std::vector<Point> sent;
  sent.push_back(link->communicator->send(begin, link->peer, link->host));
  sent.push_back(link->communicator->send(packed.words, link->peer, link->host));
  sent.push_back(link->communicator->send(packed.bytes, link->peer, link->stream));
  for (const Point& point : sent) co_await ready(point);
}

/// Sends the error, without waiting: a sent message arrives.
void send_failure(Link& link, std::int64_t next) noexcept {
  try {
    const std::string text = text_of_error(std::current_exception());
    Tensor bytes(DType::u8, DDim{static_cast<std::int64_t>(text.size())});
    std::memcpy(bytes.mutable_data<std::uint8_t>(), text.data(), text.size());
    static_cast<void>(link.communicator->send(header(Kind::failed, next, 0, 0, bytes.dim(0)), link.peer, link.host));
    static_cast<void>(link.communicator->send(bytes, link.peer, link.host));
  } catch (const std::exception&) {  // then the other side hears that this rank has left
  }
}

/// Written, and its elements made.
bool is_there(const TensorArray& array, std::int64_t slot) {
  const std::optional<LoDTensor> value = array.peek(slot);
  return value && value->ready().reached();
}

/// Bytes of elements in one message, once it has slots enough.
constexpr std::size_t most_bytes = 1 << 20;

/// The slots from `first` on, as many as go into one message; fewer at the end of the array, or before a slot that will not come.
task<std::vector<SlotValue>> next_run(LinkPtr link, std::int64_t first, std::exception_ptr* gap) {
  std::vector<SlotValue> values;
  std::size_t bytes = 0;
  try {
    for (;;) {
      const bool enough = std::cmp_greater_equal(values.size(), link->run);
      if (enough && (!link->array.is_fixed() || std::cmp_greater_equal(values.size(), link->most) || bytes >= most_bytes)) break;
      const std::int64_t slot = first + static_cast<std::int64_t>(values.size());
      const bool more = co_await exists(link->array, slot);
      if (!more || (enough && !is_there(link->array, slot))) break;
      SlotValue value = co_await link->array.read(slot);
      bytes += value.tensor().bytes();
      values.push_back(std::move(value));
    }
  } catch (const NeverWrittenError&) {
    *gap = std::current_exception();
  }
  co_return std::move(values);
}

task<void> send_slots(LinkPtr link) {
  std::int64_t next = 0;
  try {
    for (bool more = true; more;) {
      std::exception_ptr gap;
      std::vector<SlotValue> values = co_await next_run(link, next, &gap);
      const auto count = static_cast<std::int64_t>(values.size());
      if (count > 0) co_await send_run(link, next, std::move(values));
      next += count;
      if (gap != nullptr) std::rethrow_exception(gap);
      more = link->array.is_fixed() ? next < link->array.size() : count == link->run;
    }
    const Point ended = link->communicator->send(header(Kind::end, next, 0, 0, 0), link->peer, link->host);
    co_await ready(ended);
  } catch (const NeverWrittenError&) {  // a reader of the slot there gets the error; the slot need not be read at all
    send_failure(*link, next);
  } catch (const DeadlockError&) {
    send_failure(*link, next);
  } catch (...) {
    send_failure(*link, next);
    throw;
  }
}

task<Tensor> receive(LinkPtr link, DType dtype, std::int64_t count, bool on_host) {
  const StreamRef stream = on_host ? StreamRef(link->host) : link->stream;
  Tensor made(dtype, DDim{count}, stream.memory());
  const Point come = link->communicator->recv(made, link->peer, stream);
  co_await ready(come);
  co_return made;
}

[[noreturn]] void throw_failure(const Link& link, const Tensor& text) {
  throw PeerError(
      fmt::format("rank {} said: {}", link.peer,
                  std::string(reinterpret_cast<const char*>(text.data<std::uint8_t>()), static_cast<std::size_t>(text.dim(0)))));
}

task<void> receive_slots(LinkPtr link, ArrayWriter writer) {
  TaskInfo& me = co_await this_task::info();
  writer.bind(me);
  std::int64_t next = 0;
  std::exception_ptr cancelled;
  const std::string where = fmt::format("rank {}", link->communicator->rank());
  try {
    for (;;) {
      const Tensor begin = co_await receive(link, DType::i64, header_words, true);
      const std::int64_t* said = begin.data<std::int64_t>();
      const auto kind = static_cast<Kind>(said[0]);
      if (kind == Kind::end) break;
      if (kind == Kind::failed) {
        const Tensor text = co_await receive(link, DType::u8, said[4], true);
        throw_failure(*link, text);
      }
      detail::SlotRun run;
      run.words = co_await receive(link, DType::i64, said[3], true);
      run.bytes = co_await receive(link, DType::u8, said[4], false);
      const std::vector<LoDTensor> values = detail::unpack_run(run, said[2]);
      for (const LoDTensor& value : values) {
        SlotWrite written = writer.write(next, value);
        if (link->array.is_window()) co_await written;
        trace_arrival(me, link->array, where, next++);
      }
    }
    if (!link->array.is_fixed()) link->array.close();
  } catch (const CancelledError&) {
    fail_rest(link->array, next, fmt::format("rank {}", link->peer));
    cancelled = std::current_exception();
  } catch (...) {
    fail_rest(link->array, next, fmt::format("rank {}", link->peer));
  }
  if (cancelled != nullptr) std::rethrow_exception(cancelled);
}

}  // namespace

TensorArray OnPlace::carry(const TensorArray& array) const {
  TensorArray there = like(array, window_);
  std::string name = fmt::format("'{}' to {}", array.name(), device_.place().to_string());
  ArrayWriter writer = there.writer(name);
  scope_.spawn(copy_slots(array, there, std::move(writer), &device_), std::move(name));
  return there;
}

TensorArray OnRank::carry(const TensorArray& array) const {
  const int rank = communicator_.rank();
  const std::string name = fmt::format("'{}' from rank {} to rank {}", array.name(), from_, to_);
  if (from_ == to_ || (rank != from_ && rank != to_))
    throw ArgumentError(fmt::format("array {}: expected two ranks, this one ({}) among them", name, rank));
  if (run_ < 1) throw ArgumentError(fmt::format("array {}: expected runs of at least 1 step, found {}", name, run_));
  const bool sends = rank == from_;
  auto link = std::make_shared<Link>(communicator_.duplicate(name), array, sends ? to_ : from_, stream_, run_, most_);
  if (sends)
    scope_.spawn(send_slots(std::move(link)), name);
  else
    scope_.spawn(receive_slots(link, array.writer(name)), name);
  return array;
}

}  // namespace millrace
