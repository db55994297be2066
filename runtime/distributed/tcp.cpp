// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/tcp.h>

#include <condition_variable>
#include <cstring>
#include <functional>
#include <mutex>

#include <fmt/format.h>

#include <millrace/runtime/distributed/internal/check.h>
#include <millrace/runtime/distributed/internal/local_operation.h>
#include <millrace/runtime/distributed/internal/tcp_world.h>
#include <millrace/runtime/distributed/internal/when_all.h>
#include <millrace/runtime/task/start_run.h>
#include <millrace/tensor/copy.h>

namespace millrace {
namespace {

using detail::Asked, detail::Call, detail::TcpMessage, detail::TcpWorld;

/// The world as its communicators hold it: with the last of them it ends.
struct Presence {
  explicit Presence(std::shared_ptr<TcpWorld> whole) : world(std::move(whole)) {}
  ~Presence() { world->finish(); }
  Presence(const Presence&) = delete;
  Presence& operator=(const Presence&) = delete;
  std::shared_ptr<TcpWorld> world;
};

class TcpCommunicator final : public Communicator {
 public:
  TcpCommunicator(std::shared_ptr<Presence> presence, std::string channel)
      : presence_(std::move(presence)), world_(*presence_->world), channel_(std::move(channel)), name_(world_.name() + channel_) {
    world_.enter(channel_);
  }
  ~TcpCommunicator() override {
    world_.leave(channel_);
    world_.leave(collectives());
  }

  int rank() const noexcept override { return world_.rank(); }
  int world_size() const noexcept override { return world_.size(); }
  const std::string& name() const noexcept override { return name_; }
  std::unique_ptr<Communicator> duplicate(const std::string& name) override {
    world_.check_not_aborted();
    return std::make_unique<TcpCommunicator>(presence_, channel_ + "/" + name);
  }

  Point all_reduce(const Tensor& in, Tensor& out, Reduce reduce, StreamRef stream) override {
    const Asked asked{Call::all_reduce, reduce, 0, in.dtype(), in.dims()};
    const std::string what = text(asked);
    detail::check_reduced(in, out, what);
    give(in, what, stream);
    take(out, what, stream);
    Tensor all(in.dtype(), in.dims().inserted(0, world_size()));
    const auto finish = [all, out, reduce, ranks = world_size()] {
      all.storage()->mark_written();
      std::vector<Tensor> values;
      for (int rank = 0; rank < ranks; ++rank) values.push_back(all.select(0, rank));
      put(detail::reduced(reduce, values), out);
    };
    const Point done = gather(asked, what, in, all, {stream.position(), in.ready(), out.ready()}, finish);
    return given(out, done);
  }

  Point broadcast(Tensor& value, int root, StreamRef stream) override {
    const Asked asked{Call::broadcast, Reduce::sum, root, value.dtype(), value.dims()};
    const std::string what = text(asked);
    if (root < 0 || root >= world_size())
      throw ArgumentError(fmt::format("{}: expected a root from 0 to {}, found {}", what, world_size() - 1, root));
    const bool gives = root == rank();
    gives ? give(value, what, stream) : take(value, what, stream);
    check_host(value, what);
    const std::vector<Point> behind{stream.position(), value.ready()};
    std::vector<Point> parts = behind;
    for (int other = 0; other < world_size(); ++other)
      if (other != rank() && (gives || other == root)) parts.push_back(part(asked, what, value, other, gives, behind));
    const Point done = joined(parts, nullptr);
    return gives ? done : given(value, done);
  }

  Point all_gather(const Tensor& in, Tensor& out, StreamRef stream) override {
    const Asked asked{Call::all_gather, Reduce::sum, 0, in.dtype(), in.dims()};
    const std::string what = text(asked);
    detail::check_gathered(in, out, world_size(), what);
    give(in, what, stream);
    take(out, what, stream);
    const Tensor own = in.shares_storage_with(out) ? clone(in, stream) : in;
    const Point done = gather(asked, what, own, out, {stream.position(), own.ready(), out.ready()}, nullptr);
    return given(out, done);
  }

  Point send(const Tensor& value, int to, StreamRef stream) override {
    const std::string what = text(fmt::format("send to rank {} of {}{}", to, name_of(value.dtype()), value.dims().to_string()));
    detail::check_peer(to, rank(), world_size(), what);
    give(value, what, stream);
    return message(value, to, true, what, stream);
  }
  Point recv(Tensor& value, int from, StreamRef stream) override {
    const std::string what = text(fmt::format("recv from rank {} of {}{}", from, name_of(value.dtype()), value.dims().to_string()));
    detail::check_peer(from, rank(), world_size(), what);
    take(value, what, stream);
    return given(value, message(value, from, false, what, stream));
  }

  void abort(const std::string& reason) noexcept override { world_.abort(fmt::format("by rank {}: {}", rank(), reason)); }
  bool aborted() const noexcept override { return world_.aborted(); }

 private:
  /// Where its collectives meet: messages have an order of their own.
  std::string collectives() const { return channel_ + "\n"; }
  std::string text(const std::string& call) const {
    world_.check_not_aborted();
    return call + " " + world_.title(channel_);
  }
  std::string text(const Asked& asked) const { return text(asked.to_string()); }

  static void give(const Tensor& tensor, const std::string& what, StreamRef stream) {
    detail::check_exchanged(tensor, what, stream);
    tensor.check_written();
  }
  static void take(const Tensor& tensor, const std::string& what, StreamRef stream) { detail::check_result(tensor, what, stream); }
  static void check_host(const Tensor& tensor, const std::string& what) {
    if (!tensor.host_accessible())
      throw PlaceError(what + ": expected memory that the host can reach, found " + tensor.to_string() +
                       ": collectives of a device are those of what carries its messages");
  }
  static void put(const Tensor& from, const Tensor& to) {
    if (from.bytes() > 0 && from.raw() != to.raw()) std::memcpy(to.raw_mutable(), from.raw(), from.bytes());
  }
  static Point given(const Tensor& tensor, const Point& done) {
    tensor.storage()->set_ready(done);
    tensor.storage()->mark_written();
    return done;
  }

  Point message(const Tensor& value, int peer, bool sends, const std::string& what, StreamRef stream) {
    const auto made = std::make_shared<TcpMessage>();
    if (!value.host_accessible()) {
      if (!world_.has_way(peer, sends))
        throw PlaceError(fmt::format("{}: expected memory that the host can reach, or a way for what is on a device, found {}", what,
                                     value.to_string()));
      made->device = stream;
    }
    made->channel = channel_;
    made->asked = Asked{Call::message, Reduce::sum, 0, value.dtype(), value.dims()}.to_string();
    made->what = what;
    made->peer = peer;
    made->sends = sends;
    made->tensor = value;
    return world_.start(made, {stream.position(), value.ready()});
  }
  /// A message of a collective.
  Point part(const Asked& asked, const std::string& what, const Tensor& value, int peer, bool sends, const std::vector<Point>& behind) {
    const auto made = std::make_shared<TcpMessage>();
    made->channel = collectives();
    made->asked = asked.to_string();
    made->what = what;
    made->peer = peer;
    made->sends = sends;
    made->tensor = value;
    return world_.start(made, behind);
  }
  Point gather(const Asked& asked, const std::string& what, const Tensor& in, const Tensor& out, const std::vector<Point>& behind,
               std::function<void()> then) {
    check_host(in, what);
    check_host(out, what);
    std::vector<Point> parts = behind;
    for (int other = 0; other < world_size(); ++other) {
      if (other == rank()) continue;
      parts.push_back(part(asked, what, in, other, true, behind));
      parts.push_back(part(asked, what, out.select(0, other), other, false, behind));
    }
    return joined(parts, [in, own = out.select(0, rank()), then = std::move(then)] {
      put(in, own);
      if (then) then();
    });
  }
  /// Done when all parts are, and `then` has run.
  static Point joined(const std::vector<Point>& parts, std::function<void()> then) {
    const auto done = std::make_shared<Timeline>();
    detail::when_all(parts, [done, then = std::move(then)](std::exception_ptr error) {
      try {
        if (error == nullptr && then) then();
      } catch (...) {
        error = std::current_exception();
      }
      error == nullptr ? done->advance(1) : done->fail(error);
    });
    return Point(done, 1);
  }

  const std::shared_ptr<Presence> presence_;
  TcpWorld& world_;
  const std::string channel_;
  const std::string name_;
};

}  // namespace

DeviceWays make_device_ways(std::unique_ptr<Communicator> world, const std::set<RankRoute>& routes, StreamRef stream,
                            const Hopeless& hopeless) {
  struct Meeting {
    std::mutex mutex;
    std::condition_variable changed;
    bool over = false;
    std::exception_ptr error;
  };
  constexpr std::chrono::milliseconds often(20);
  DeviceWays made;
  std::vector<Point> here;
  for (const auto& [from, to] : routes) {
    auto way = world->duplicate(fmt::format("rank {} to rank {}", from, to));
    Tensor one = clone(Tensor::scalar<std::int32_t>(1), stream);
    here.push_back(way->all_reduce(one, one, Reduce::sum, stream));
    if (from == world->rank())
      made.to[to] = std::move(way);
    else if (to == world->rank())
      made.from[from] = std::move(way);
    else
      made.others.push_back(std::move(way));
  }
  const auto meeting = std::make_shared<Meeting>();
  detail::when_all(here, [meeting](std::exception_ptr error) {
    const std::lock_guard lock(meeting->mutex);
    meeting->over = true;
    meeting->error = std::move(error);
    meeting->changed.notify_all();
  });
  std::unique_lock lock(meeting->mutex);
  while (!meeting->changed.wait_for(lock, often, [&] { return meeting->over; })) {
    const std::string why = hopeless();
    if (why.empty()) continue;
    lock.unlock();
    world->abort(why);
    throw RankError(why);
  }
  if (meeting->error) std::rethrow_exception(meeting->error);
  made.others.push_back(std::move(world));
  return made;
}

std::unique_ptr<Communicator> make_tcp_communicator(Rendezvous& ranks, TcpOptions options) {
  throw_on_runtime_thread("make_tcp_communicator");
  for (const std::chrono::milliseconds limit : {options.meeting, options.deadline, options.leaving})
    if (limit.count() <= 0)
      throw ArgumentError(fmt::format("communicator '{}': expected times above 0 ms, found {} ms", options.name, limit.count()));
  const auto world = std::make_shared<TcpWorld>(ranks, std::move(options));
  world->open_ways();
  return std::make_unique<TcpCommunicator>(std::make_shared<Presence>(world), "");
}

}  // namespace millrace
