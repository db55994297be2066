// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/heartbeat.h>

#include <array>
#include <charconv>
#include <map>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/post.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <millrace/runtime/task/asio.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/start_run.h>
#include <millrace/tensor/start_thread.h>

namespace millrace {
namespace {

using tcp = asio::ip::tcp;
using Clock = std::chrono::steady_clock;

// The lines that ranks say: "rank N" first, then any number of the others.
constexpr std::string_view beat = "beat", farewell = "farewell", lost_word = "lost ";
constexpr std::size_t longest_line = 4096;
/// Connections that have not said their rank yet, besides one of each rank.
constexpr std::size_t most_strangers = 64;

int number_behind(const std::string& line, std::string_view word) {
  int number = -1;
  if (line.starts_with(word)) std::from_chars(line.data() + word.size(), line.data() + line.size(), number);
  return number;
}

/// One connection. Lines are written one behind the other.
struct Link : std::enable_shared_from_this<Link> {
  explicit Link(tcp::socket made) : socket(std::move(made)) {}

  void say(std::string_view line) {
    waiting += fmt::format("{}\n", line);
    if (writing.empty()) write();
  }
  void write() {
    writing = std::exchange(waiting, {});
    asio::async_write(socket, asio::buffer(writing), [self = shared_from_this()](const boost::system::error_code& error, std::size_t) {
      self->writing.clear();
      if (!error && !self->waiting.empty()) self->write();
    });
  }

  tcp::socket socket;
  int rank = -1;  ///< of the other end
  bool parted = false;
  Clock::time_point heard = Clock::now();
  std::string incoming, waiting, writing;
};
using LinkPtr = std::shared_ptr<Link>;

}  // namespace

class Heartbeat::Watch {
 public:
  Watch(Rendezvous& ranks, std::function<void(const std::string&)> lost, HeartbeatOptions options)
      : rank_(ranks.rank()), size_(ranks.world_size()), lost_(std::move(lost)), options_(options) {
    if (size_ == 1) return;
    connect(ranks);
    for (const auto& [rank, link] : links_) listen(link);
    tick();
    thread_ = start_thread(fmt::format("rank {}: the thread of its heartbeat", rank_), [this] { io_.run(); });
  }
  ~Watch() {
    if (!thread_.joinable()) return;
    asio::post(io_, [this] {
      leaving_ = true;
      for (const auto& [rank, link] : links_) {
        boost::system::error_code ignored;
        asio::write(link->socket, asio::buffer(fmt::format("{}\n", farewell)), ignored);
        link->socket.shutdown(tcp::socket::shutdown_send, ignored);
        // A socket that is closed with bytes to read resets its connection, and the farewell may be lost by that.
        std::array<char, longest_line> rest{};
        while (link->socket.available(ignored) > 0) link->socket.read_some(asio::buffer(rest), ignored);
        link->socket.close(ignored);
      }
      io_.stop();
    });
    thread_.join();
  }

 private:
  // ---- The meeting, in the constructor ----

  void connect(Rendezvous& ranks) {
    std::unique_ptr<tcp::acceptor> door;
    std::string where;
    if (rank_ == 0) {
      const auto address = asio::ip::make_address(ranks.address());
      door = std::make_unique<tcp::acceptor>(io_, tcp::endpoint(address, 0));
      where = fmt::format("{} {}", ranks.address(), door->local_endpoint().port());
    }
    const std::string met = ranks.exchange("heartbeat", where).at(0);
    const Clock::time_point end = Clock::now() + options_.meeting;
    rank_ == 0 ? accept(*door, end) : join(met);
  }

  void accept(tcp::acceptor& door, Clock::time_point end) {
    accept_next(door);
    while (static_cast<int>(links_.size()) < size_ - 1 && Clock::now() < end) io_.run_one_until(end);
    io_.restart();
    io_.poll();  // ranks whose word is there already
    door.close();
    for (const LinkPtr& stranger : strangers_) stranger->socket.close();
    io_.restart();
    io_.poll();  // no handler that knows the door is left behind it
    io_.restart();
    if (static_cast<int>(links_.size()) == size_ - 1) return;
    std::string missing;
    for (int rank = 1; rank < size_; ++rank)
      if (!links_.contains(rank)) missing += fmt::format("{}{}", missing.empty() ? "" : ", ", rank);
    throw DeadlineError(
        fmt::format("heartbeat of {} ranks: no connection from rank {} within {} ms", size_, missing, options_.meeting.count()));
  }
  void accept_next(tcp::acceptor& door) {
    door.async_accept([this, &door](const boost::system::error_code& error, tcp::socket socket) {
      if (error || !door.is_open()) return;
      // The oldest goes: a rank speaks at once.
      if (strangers_.size() >= most_strangers + static_cast<std::size_t>(size_)) strangers_.front()->socket.close();
      greet(std::make_shared<Link>(std::move(socket)));
      accept_next(door);
    });
  }

  void greet(const LinkPtr& link) {
    strangers_.push_back(link);
    asio::async_read_until(link->socket, asio::dynamic_buffer(link->incoming, longest_line), '\n',
                           [this, link](const boost::system::error_code& failed, std::size_t bytes) {
                             std::erase(strangers_, link);
                             if (failed) return;
                             link->rank = number_behind(take_line(*link, bytes), "rank ");
                             if (link->rank > 0 && link->rank < size_) links_.emplace(link->rank, link);
                           });
  }

  void join(const std::string& where) {
    const std::size_t space = where.find(' ');
    const int port = number_behind(where, where.substr(0, space + 1));
    const auto link = std::make_shared<Link>(tcp::socket(io_));
    link->socket.connect(tcp::endpoint(asio::ip::make_address(where.substr(0, space)), static_cast<std::uint16_t>(port)));
    link->rank = 0;
    asio::write(link->socket, asio::buffer(fmt::format("rank {}\n", rank_)));
    links_.emplace(0, link);
  }

  // ---- On the thread ----

  static std::string take_line(Link& link, std::size_t bytes) {
    std::string line = link.incoming.substr(0, bytes - 1);
    link.incoming.erase(0, bytes);
    return line;
  }

  void listen(const LinkPtr& link) {
    asio::async_read_until(link->socket, asio::dynamic_buffer(link->incoming, longest_line), '\n',
                           [this, link](const boost::system::error_code& error, std::size_t bytes) {
                             if (leaving_ || link->parted) return;
                             if (error) return lose(link, "has died: its connection ended");
                             link->heard = Clock::now();
                             hear(link, take_line(*link, bytes));
                             if (!link->parted) listen(link);
                           });
  }
  void hear(const LinkPtr& link, const std::string& line) {
    if (line == farewell) link->parted = true;
    if (line.starts_with(lost_word)) tell(line.substr(lost_word.size()));
  }

  void lose(const LinkPtr& link, const std::string& how) {
    link->parted = true;
    const std::string sentence = fmt::format("rank {} {}", link->rank, how);
    for (const auto& [rank, other] : links_)
      if (!other->parted) other->say(std::string(lost_word) + sentence);
    tell(sentence);
  }
  void tell(const std::string& sentence) {
    if (!std::exchange(told_, true)) lost_(sentence);
  }

  void tick() {
    const Clock::time_point now = Clock::now();
    for (const auto& [rank, link] : links_) {
      if (link->parted) continue;
      // A rank that was stopped itself first hears what came meanwhile.
      if (now - link->heard > options_.silence && link->socket.available() == 0)
        lose(link, fmt::format("gave no sign of life for {} ms", options_.silence.count()));
      else
        link->say(beat);
    }
    timer_.expires_after(options_.interval);
    timer_.async_wait([this](const boost::system::error_code& error) {
      if (!error && !leaving_) tick();
    });
  }

  const int rank_, size_;
  const std::function<void(const std::string&)> lost_;
  const HeartbeatOptions options_;
  asio::io_context io_{1};
  asio::steady_timer timer_{io_};
  std::map<int, LinkPtr> links_;
  std::vector<LinkPtr> strangers_;  ///< connections without a rank; empty after the constructor
  bool told_ = false, leaving_ = false;
  std::thread thread_;
};

Heartbeat::Heartbeat(Rendezvous& ranks, std::function<void(const std::string&)> lost, HeartbeatOptions options) {
  throw_on_runtime_thread("Heartbeat");
  if (options.interval.count() <= 0 || options.silence <= options.interval)
    throw ArgumentError(fmt::format("heartbeat: expected an interval above 0 ms and a longer silence, found {} ms and {} ms",
                                    options.interval.count(), options.silence.count()));
  watch_ = std::make_unique<Watch>(ranks, std::move(lost), options);
}
Heartbeat::~Heartbeat() = default;

}  // namespace millrace
