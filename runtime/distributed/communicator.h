// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <millrace/runtime/distributed/errors.h>
#include <millrace/tensor/stream.h>
#include <millrace/tensor/tensor.h>

namespace millrace {

/// The way in which the values of ranks become one. Added in the order of the ranks, each addition rounded to the dtype: same values and world size, same
/// bits, on every rank. In `min` and `max` NaN wins.
enum class Reduce : std::uint8_t { sum, min, max };
/// "sum".
std::string to_string(Reduce reduce);

/// The means of one rank to exchange tensors with the others. Implementations: `make_self_communicator`, `make_local_communicators`;
/// those over NCCL and MPI have the same contract.
///
/// Every rank calls the same collectives in the same order; messages from one rank to another arrive in the order of sending. A call never
/// waits: the operation comes behind what was enqueued on `stream` before and behind the producers of the tensors, and the result is the
/// point at which it is done on this rank: `co_await ready(point)`, or `out.ready()`, behind which other work may be enqueued. Until then the
/// tensors must not be written by others. Tensors are contiguous (ArgumentError); `stream` is of the place where they lie (PlaceError) and
/// must live until the point is decided. An implementation may hold the stream up until then, so ranks that do more than one thing at a
/// time give each its own.
///
/// An error decides the points of all ranks that take part, and names operation, ranks, dtype and extents: MismatchError when ranks asked
/// for different operations, dtypes or extents; RankError when a rank has left or its work failed; DeadlineError when not all came in time,
/// which also aborts; AbortedError after `abort`. A stream that waits for such a point fails with it: where it has other work to do, await
/// the point first. Thread safety: calls of one rank come one at a time, for they are an order; `abort` and the queries from any thread.
///
/// Destroying it leaves: operations that others still expect of this rank fail with a RankError that names it. Sent tensors arrive.
class Communicator {
 public:
  virtual ~Communicator() = default;
  Communicator(const Communicator&) = delete;
  Communicator& operator=(const Communicator&) = delete;

  virtual int rank() const noexcept = 0;
  virtual int world_size() const noexcept = 0;
  /// For errors and the trace.
  virtual const std::string& name() const noexcept = 0;
  /// The same ranks under another name, with an order of their own: messages and collectives of the two never meet. Every rank that uses it
  /// asks for it. ArgumentError for a name that this rank already asked for.
  virtual std::unique_ptr<Communicator> duplicate(const std::string& name) = 0;

  /// out = the values of all ranks, reduced. `in` and `out` have one dtype, f16 to f64 or an integer (DTypeError), and the same extents; they
  /// may be the same tensor.
  virtual Point all_reduce(const Tensor& in, Tensor& out, Reduce reduce, StreamRef stream) = 0;
  /// `value` of `root` becomes that of all.
  virtual Point broadcast(Tensor& value, int root, StreamRef stream) = 0;
  /// out[r] = `in` of rank r: an axis 0 of `world_size()` before those of `in`.
  virtual Point all_gather(const Tensor& in, Tensor& out, StreamRef stream) = 0;
  /// Done when the value was taken out of `value`. ArgumentError for this rank itself.
  virtual Point send(const Tensor& value, int to, StreamRef stream) = 0;
  virtual Point recv(Tensor& value, int from, StreamRef stream) = 0;

  /// The calls until `end_group` are one operation: each may need the others to come about. Not nested. See CommunicatorGroup.
  virtual void begin_group() {}
  virtual void end_group() {}

  /// Ends every operation that is under way, on all ranks, with an AbortedError that quotes `reason`; later calls throw it. Also reaches the
  /// duplicates. The first call counts.
  virtual void abort(const std::string& reason) noexcept = 0;
  virtual bool aborted() const noexcept = 0;

 protected:
  Communicator() = default;
};

/// `begin_group` and `end_group` around a block.
class CommunicatorGroup {
 public:
  explicit CommunicatorGroup(Communicator& communicator) : communicator_(communicator) { communicator_.begin_group(); }
  ~CommunicatorGroup() { communicator_.end_group(); }
  CommunicatorGroup(const CommunicatorGroup&) = delete;
  CommunicatorGroup& operator=(const CommunicatorGroup&) = delete;

 private:
  Communicator& communicator_;
};

/// The one rank of a world of one: every collective gives back what it was given.
std::unique_ptr<Communicator> make_self_communicator(std::string name = "self");

}  // namespace millrace
