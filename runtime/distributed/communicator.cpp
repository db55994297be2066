// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/communicator.h>

#include <mutex>
#include <optional>
#include <set>

#include <fmt/format.h>

#include <millrace/runtime/distributed/internal/check.h>
#include <millrace/tensor/copy.h>

namespace millrace {

std::string to_string(Reduce reduce) {
  switch (reduce) {
    case Reduce::sum: return "sum";
    case Reduce::min: return "min";
    case Reduce::max: return "max";
  }
  return "?";
}

namespace detail {

void check_exchanged(const Tensor& tensor, const std::string& what, StreamRef stream) {
  if (!tensor.is_contiguous()) throw ArgumentError(what + ": expected contiguous elements, found " + tensor.to_string());
  if (tensor.place() != stream.place())
    throw PlaceError(what + ": expected a tensor on the place of the stream, " + stream.place().to_string() + ", found " +
                     tensor.to_string());
}

void check_result(const Tensor& tensor, const std::string& what, StreamRef stream) {
  check_exchanged(tensor, what, stream);
  if (tensor.is_read_only())
    throw ReadOnlyError(what + ": " + tensor.to_string() + " is shared and frozen: receive into a tensor of your own");
}

void check_reduced(const Tensor& in, const Tensor& out, const std::string& what) {
  if (in.dtype() == DType::boolean) throw DTypeError(what + ": expected numbers, found " + in.to_string());
  if (in.dtype() != out.dtype())
    throw DTypeError(what + ": expected a result of the dtype of " + in.to_string() + ", found " + out.to_string());
  if (in.dims() != out.dims())
    throw ShapeError(what + ": expected a result of the extents of " + in.to_string() + ", found " + out.to_string());
}

void check_gathered(const Tensor& in, const Tensor& out, int world_size, const std::string& what) {
  const DDim wanted = in.dims().inserted(0, world_size);
  if (in.dtype() != out.dtype())
    throw DTypeError(what + ": expected a result of the dtype of " + in.to_string() + ", found " + out.to_string());
  if (out.dims() != wanted) throw ShapeError(what + ": expected a result of extents " + wanted.to_string() + ", found " + out.to_string());
}

void check_peer(int other, int rank, int world_size, const std::string& what) {
  if (other < 0 || other >= world_size || other == rank)
    throw ArgumentError(fmt::format("{}: expected another rank from 0 to {}, found {}", what, world_size - 1, other));
}

}  // namespace detail

namespace {

class SelfCommunicator final : public Communicator {
 public:
  explicit SelfCommunicator(std::string name) : name_(std::move(name)) {}

  int rank() const noexcept override { return 0; }
  int world_size() const noexcept override { return 1; }
  const std::string& name() const noexcept override { return name_; }
  std::unique_ptr<Communicator> duplicate(const std::string& name) override {
    if (!duplicates_.insert(name).second) throw ArgumentError(text("duplicate") + ": '" + name + "' was already asked for");
    return make_self_communicator(name_ + "/" + name);
  }

  Point all_reduce(const Tensor& in, Tensor& out, Reduce, StreamRef stream) override {
    const std::string what = text("all_reduce");
    detail::check_exchanged(in, what, stream);
    detail::check_result(out, what, stream);
    detail::check_reduced(in, out, what);
    copy(in, out, stream);
    return out.ready();
  }
  Point broadcast(Tensor& value, int root, StreamRef stream) override {
    const std::string what = text("broadcast");
    detail::check_exchanged(value, what, stream);
    if (root != 0) throw ArgumentError(what + ": expected 0 as root, found " + std::to_string(root));
    value.check_written();
    return value.ready();
  }
  Point all_gather(const Tensor& in, Tensor& out, StreamRef stream) override {
    const std::string what = text("all_gather");
    detail::check_exchanged(in, what, stream);
    detail::check_result(out, what, stream);
    detail::check_gathered(in, out, 1, what);
    copy(in, out.select(0, 0), stream);
    return out.ready();
  }
  Point send(const Tensor&, int to, StreamRef) override { alone("send", to); }
  Point recv(Tensor&, int from, StreamRef) override { alone("recv", from); }

  void abort(const std::string& reason) noexcept override {
    const std::lock_guard lock(mutex_);
    if (!reason_) reason_ = reason;
  }
  bool aborted() const noexcept override {
    const std::lock_guard lock(mutex_);
    return reason_.has_value();
  }

 private:
  std::string text(const std::string& call) const {
    const std::lock_guard lock(mutex_);
    if (reason_) throw AbortedError("communicator '" + name_ + "' was aborted: " + *reason_);
    return call + " on communicator '" + name_ + "' of 1 rank";
  }
  [[noreturn]] void alone(const std::string& call, int other) const {
    throw ArgumentError(text(call) + ": there is no rank " + std::to_string(other) + " besides this one");
  }

  const std::string name_;
  std::set<std::string> duplicates_;
  mutable std::mutex mutex_;
  std::optional<std::string> reason_;
};

}  // namespace

std::unique_ptr<Communicator> make_self_communicator(std::string name) { return std::make_unique<SelfCommunicator>(std::move(name)); }

}  // namespace millrace
