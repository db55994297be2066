// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <cstdint>
#include <deque>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <millrace/runtime/distributed/internal/tcp_link.h>
#include <millrace/runtime/distributed/tcp.h>

namespace millrace::detail {

/// The failure with which a world or a message ends.
enum class TcpFailure : std::uint32_t { aborted, deadline, mismatch, rank, communication };

/// One end of a message. Its members belong to the world's thread.
struct TcpMessage {
  std::string channel;
  std::string asked;  ///< the request, on which both ends must agree: "message of f32[2, 3]"
  std::string what;   ///< for errors: "send to rank 1 of f32[2, 3] by rank 0 on communicator 'x' of 2 ranks"
  int peer = 0;
  bool sends = false;
  Tensor tensor;
  std::optional<StreamRef> device;  ///< when the elements go over a device's way
  std::shared_ptr<Timeline> done = std::make_shared<Timeline>();

  bool ready = false;  ///< the points before it are decided
  bool over = false;
  std::exception_ptr lost;  ///< why there are no elements to send
  std::uint64_t index = 0;  ///< of those that were asked for on its way
  std::optional<boost::asio::steady_timer> timer;
};
using TcpMessagePtr = std::shared_ptr<TcpMessage>;

/// The connections of this rank to all others, and who waits for which message on which channel: a communicator is a channel, and its
/// duplicates are others. A thread of its own does everything but what its callers are told at once.
class TcpWorld final : public std::enable_shared_from_this<TcpWorld> {
 public:
  /// Meets the others, and blocks until it has.
  TcpWorld(Rendezvous& ranks, TcpOptions options);
  /// The ways for what is on devices, before the first message. When they do not come about, it throws, after `finish`.
  void open_ways();
  /// After `finish`.
  ~TcpWorld();
  TcpWorld(const TcpWorld&) = delete;
  TcpWorld& operator=(const TcpWorld&) = delete;

  int rank() const noexcept { return rank_; }
  int size() const noexcept { return size_; }
  const std::string& name() const noexcept { return options_.name; }
  bool has_way(int peer, bool sends) const { return (sends ? device_.to : device_.from).contains(peer); }
  /// "by rank 0 on communicator 'x' of 2 ranks".
  std::string title(const std::string& channel) const;

  /// ArgumentError when this rank is there already.
  void enter(const std::string& channel);
  void leave(const std::string& channel) noexcept;
  /// Starts a message behind the points of `begin`; messages go in the order of the calls. The point is decided once.
  Point start(TcpMessagePtr message, const std::vector<Point>& begin);

  void abort(const std::string& reason) noexcept;
  bool aborted() const noexcept;
  void check_not_aborted() const;
  /// Once, when nobody will call any more: sent messages arrive, or are not taken in time; then all connections end, and the thread.
  void finish() noexcept;

 private:
  using Way = std::pair<std::string, int>;  // channel, the other rank
  struct Want {
    std::uint64_t number = 0;
    std::string asked;
  };

  void connect(Rendezvous& ranks);
  void greet(int peer, const std::string& said, const std::string& token);
  void accept(boost::asio::ip::tcp::acceptor& acceptor, const std::string& token);
  void listen();
  std::string title() const;

  // Called on the world's thread.
  void add(const TcpMessagePtr& message);
  void begin(const TcpMessagePtr& message, std::exception_ptr error);
  void start_clock(const TcpMessagePtr& message);
  void ask(const Way& way);
  void serve(const Way& way);
  void give(const TcpMessagePtr& message, const Want& want);
  void over_device(const TcpMessagePtr& message);
  void handle(int peer, const TcpFrame& frame);
  void want(int peer, const TcpFrame& frame);
  std::shared_ptr<void> room(int peer, std::uint64_t number, std::uint64_t bytes, void** to);
  TcpMessagePtr take_request(int peer, std::uint64_t number);
  void left(const Way& way, std::uint64_t promised);
  void gone(int peer);
  void lost(int peer, const std::string& why);
  void end(const TcpMessagePtr& message, std::exception_ptr error) noexcept;
  void fail(TcpFailure failure, const std::string& text) noexcept;
  void fail_with(std::exception_ptr error) noexcept;
  std::vector<TcpMessagePtr> take_all();
  void leave_all();
  void leave_if_done();
  void stop() noexcept;

  const int rank_;
  const int size_;
  TcpOptions options_;
  DeviceWays device_;
  boost::asio::io_context io_{1};
  std::optional<boost::asio::executor_work_guard<boost::asio::io_context::executor_type>> work_;
  std::optional<boost::asio::steady_timer> leaving_;
  std::thread thread_;

  mutable std::mutex mutex_;
  std::set<std::string> channels_;
  std::optional<std::string> reason_;    // why the world has ended
  std::optional<std::string> departed_;  // the first rank that has left

  // Used by the thread alone.
  std::map<int, TcpLinkPtr> links_;
  std::vector<TcpLinkPtr> strangers_;
  std::map<Way, std::deque<TcpMessagePtr>> sends_;   // not yet wanted
  std::map<Way, std::deque<Want>> wants_;            // not yet sent
  std::map<Way, std::deque<TcpMessagePtr>> recvs_;   // not yet asked for
  std::map<std::uint64_t, TcpMessagePtr> requests_;  // asked for
  std::set<TcpMessagePtr> flying_;                   // on their way
  std::map<Way, std::uint64_t> sent_, asked_for_;
  std::map<Way, std::uint64_t> promised_;  // how many will have come from who has left
  std::set<int> gone_;
  std::uint64_t next_request_ = 0;
  std::exception_ptr failure_;
  bool said_bye_ = false;
};

}  // namespace millrace::detail
