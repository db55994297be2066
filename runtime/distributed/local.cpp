// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/local.h>

#include <fmt/format.h>

#include <millrace/runtime/distributed/internal/check.h>
#include <millrace/runtime/distributed/internal/local_world.h>
#include <millrace/tensor/copy.h>

namespace millrace {
namespace {

using detail::Asked, detail::Call, detail::LocalPart, detail::LocalWorld;

/// The host moves the elements, or a CUDA device does.
void check_reach(const Tensor& tensor, const std::string& what) {
  const Place place = tensor.place();
  if (!tensor.host_accessible() && !std::holds_alternative<CudaPlace>(place))
    throw PlaceError(what + ": expected memory that the host or CUDA can reach, found " + tensor.to_string());
}

class LocalCommunicator final : public Communicator {
 public:
  LocalCommunicator(std::shared_ptr<LocalWorld> world, std::string channel, int rank)
      : world_(std::move(world)), channel_(std::move(channel)), rank_(rank), name_(world_->name() + channel_) {
    world_->enter(channel_, rank_);
  }
  ~LocalCommunicator() override { world_->leave(channel_, rank_); }

  int rank() const noexcept override { return rank_; }
  int world_size() const noexcept override { return world_->size(); }
  const std::string& name() const noexcept override { return name_; }
  std::unique_ptr<Communicator> duplicate(const std::string& name) override {
    world_->check_not_aborted();
    return std::make_unique<LocalCommunicator>(world_, channel_ + "/" + name, rank_);
  }

  Point all_reduce(const Tensor& in, Tensor& out, Reduce reduce, StreamRef stream) override {
    const std::string what = text("all_reduce");
    give(in, what, stream);
    take(out, what, stream);
    detail::check_reduced(in, out, what);
    if (!in.host_accessible() || !out.host_accessible())
      throw PlaceError(what + ": expected memory that the host can reach, where sums are made, found " + in.to_string());
    // Where both are one, others read what was there while the sum goes out.
    const Tensor own = in.shares_storage_with(out) ? clone(in, stream) : in;
    return collective({Call::all_reduce, reduce, 0, in.dtype(), in.dims()}, own, out, true, stream);
  }
  Point broadcast(Tensor& value, int root, StreamRef stream) override {
    const std::string what = text("broadcast");
    if (root < 0 || root >= world_size())
      throw ArgumentError(fmt::format("{}: expected a root from 0 to {}, found {}", what, world_size() - 1, root));
    const bool gives = root == rank_;
    gives ? give(value, what, stream) : take(value, what, stream);
    return collective({Call::broadcast, Reduce::sum, root, value.dtype(), value.dims()}, value,
                      gives ? std::nullopt : std::optional<Tensor>(value), gives, stream);
  }
  Point all_gather(const Tensor& in, Tensor& out, StreamRef stream) override {
    const std::string what = text("all_gather");
    give(in, what, stream);
    take(out, what, stream);
    detail::check_gathered(in, out, world_size(), what);
    const Tensor own = in.shares_storage_with(out) ? clone(in, stream) : in;
    return collective({Call::all_gather, Reduce::sum, 0, in.dtype(), in.dims()}, own, out, true, stream);
  }
  Point send(const Tensor& value, int to, StreamRef stream) override {
    const std::string what = text("send");
    detail::check_peer(to, rank_, world_size(), what);
    give(value, what, stream);
    return world_->send(channel_, rank_, to, {message(value), value, std::nullopt, true, stream.position(), device(value, stream)});
  }
  Point recv(Tensor& value, int from, StreamRef stream) override {
    const std::string what = text("recv");
    detail::check_peer(from, rank_, world_size(), what);
    take(value, what, stream);
    return received(
        value, world_->recv(channel_, from, rank_, {message(value), Tensor(), value, false, stream.position(), device(value, stream)}));
  }

  void abort(const std::string& reason) noexcept override { world_->abort(fmt::format("by rank {}: {}", rank_, reason)); }
  bool aborted() const noexcept override { return world_->aborted(); }

 private:
  std::string text(const char* call) const {
    return fmt::format("{} by rank {} on communicator '{}' of {} ranks", call, rank_, name_, world_size());
  }
  static std::optional<StreamRef> device(const Tensor& value, StreamRef stream) {
    return value.host_accessible() ? std::nullopt : std::optional(stream);
  }
  static Asked message(const Tensor& value) { return {Call::message, Reduce::sum, 0, value.dtype(), value.dims()}; }
  static void give(const Tensor& tensor, const std::string& what, StreamRef stream) {
    detail::check_exchanged(tensor, what, stream);
    check_reach(tensor, what);
    tensor.check_written();
  }
  static void take(const Tensor& tensor, const std::string& what, StreamRef stream) {
    detail::check_result(tensor, what, stream);
    check_reach(tensor, what);
  }
  Point collective(Asked asked, const Tensor& in, std::optional<Tensor> out, bool gives, StreamRef stream) {
    std::optional<Tensor> result = out;
    const Point done =
        world_->collective(channel_, rank_, {std::move(asked), in, std::move(out), gives, stream.position(), device(in, stream)});
    return result ? received(*result, done) : done;
  }
  static Point received(const Tensor& tensor, const Point& done) {
    tensor.storage()->set_ready(done);
    tensor.storage()->mark_written();
    return done;
  }

  const std::shared_ptr<LocalWorld> world_;
  const std::string channel_;
  const int rank_;
  const std::string name_;
};

}  // namespace

std::vector<std::unique_ptr<Communicator>> make_local_communicators(int world_size, LocalOptions options) {
  if (world_size < 1) throw ArgumentError(fmt::format("local communicators: expected at least 1 rank, found {}", world_size));
  if (options.deadline && options.executor == nullptr)
    throw ArgumentError("local communicators: a deadline needs the clock of an executor, found none");
  const auto world = std::make_shared<LocalWorld>(world_size, std::move(options));
  std::vector<std::unique_ptr<Communicator>> made;
  for (int rank = 0; rank < world_size; ++rank) made.push_back(std::make_unique<LocalCommunicator>(world, "", rank));
  return made;
}

}  // namespace millrace
