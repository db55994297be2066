// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/distributed/rendezvous.h>

#include <algorithm>
#include <array>
#include <functional>
#include <list>
#include <map>
#include <optional>
#include <thread>

#include <fmt/format.h>
#include <fmt/ranges.h>
#include <boost/asio/connect.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/write.hpp>

#include <millrace/runtime/task/asio.h>
#include <millrace/runtime/task/errors.h>
#include <millrace/runtime/task/start_run.h>

namespace millrace {
namespace {

using asio::ip::tcp;
using boost::system::error_code;
using Clock = std::chrono::steady_clock;

/// A frame: "MLRV", its kind, the bytes that follow; little-endian.
///   hello    member → hub: version, world size, rank
///   welcome  hub → member, once all are there
///   blob     member → hub: length of the name, name, blob
///   all      hub → member: for each rank the length of its blob, and the blob
///   failed   hub → member: which error, and its text
enum class Kind : std::uint32_t { hello, welcome, blob, all, failed };
enum class Failure : std::uint32_t { rank, deadline, mismatch };
constexpr std::uint32_t magic = 0x56524c4d, version = 1;
constexpr std::size_t header_bytes = 16, most_name = 256, most_text = 4096;
/// Connections that have not said who they are yet.
constexpr std::size_t most_strangers = 64;
constexpr std::chrono::milliseconds pause{50};

template <class T>
void put(std::string& to, T value) {
  for (std::size_t i = 0; i < sizeof(T); ++i) to += static_cast<char>(static_cast<unsigned char>(value >> (8 * i)));
}

/// Reads the contents of a frame, from its start and never past its end.
class Reader {
 public:
  explicit Reader(const std::string& body) : body_(body) {}
  template <class T>
  T get() {
    T value = 0;
    const std::string bytes = take(sizeof(T));
    for (std::size_t i = 0; i < sizeof(T); ++i) value |= static_cast<T>(static_cast<T>(static_cast<unsigned char>(bytes[i])) << (8 * i));
    return value;
  }
  std::string take(std::size_t count) {
    if (count > body_.size() - at_) throw MismatchError("rendezvous: a message ends before what it says");
    at_ += count;
    return body_.substr(at_ - count, count);
  }
  std::string rest() { return take(body_.size() - at_); }

 private:
  const std::string& body_;
  std::size_t at_ = 0;
};

struct Frame {
  Kind kind = Kind::hello;
  std::string body;
};

std::string bytes_of(Kind kind, const std::string& body) {
  std::string made;
  put(made, magic);
  put(made, static_cast<std::uint32_t>(kind));
  put(made, static_cast<std::uint64_t>(body.size()));
  return made + body;
}

/// One connection. Its operations keep it alive.
class Link : public std::enable_shared_from_this<Link> {
 public:
  explicit Link(tcp::socket opened) : socket(std::move(opened)), timer(socket.get_executor()) {}
  tcp::socket socket;
  asio::steady_timer timer;
  int rank = -1;
  std::optional<Frame> inbox;
  bool closed = false;
  bool sending = false;

  /// The next frame, of at most `most` bytes: in `inbox`, or `closed`. Then `then`.
  void receive(std::size_t most, std::function<void()> then) {
    asio::async_read(socket, asio::buffer(header_),
                     [self = shared_from_this(), most, then = std::move(then)](error_code error, std::size_t) mutable {
                       const std::uint64_t size = self->size();
                       if (error || self->word(0) != magic || self->word(4) > static_cast<std::uint32_t>(Kind::failed) || size > most)
                         return self->end(then);
                       self->body_.resize(size);
                       self->receive_body(std::move(then));
                     });
  }
  void send(Kind kind, const std::string& body) {
    out_ = bytes_of(kind, body);
    sending = true;
    asio::async_write(socket, asio::buffer(out_), [self = shared_from_this()](error_code error, std::size_t) {
      self->sending = false;
      if (error) self->close();
    });
  }
  void close() noexcept {
    error_code ignored;
    closed = true;
    socket.close(ignored);
    timer.cancel();
  }

 private:
  void receive_body(std::function<void()> then) {
    asio::async_read(socket, asio::buffer(body_), [self = shared_from_this(), then = std::move(then)](error_code error, std::size_t) {
      if (error) return self->end(then);
      self->inbox = Frame{static_cast<Kind>(self->word(4)), std::move(self->body_)};
      self->body_.clear();
      then();
    });
  }
  void end(const std::function<void()>& then) {
    close();
    then();
  }
  std::uint32_t word(std::size_t at) const {
    std::uint32_t value = 0;
    for (std::size_t i = 0; i < 4; ++i) value |= static_cast<std::uint32_t>(header_[at + i]) << (8 * i);
    return value;
  }
  std::uint64_t size() const { return word(8) | (static_cast<std::uint64_t>(word(12)) << 32); }

  std::array<unsigned char, header_bytes> header_{};
  std::string body_, out_;
};
using LinkPtr = std::shared_ptr<Link>;

/// Runs what is under way until `done` says so: false when `until` came first.
template <class Done>
bool run_until(asio::io_context& io, Clock::time_point until, const Done& done) {
  io.restart();
  while (!done())
    if (io.run_one_until(until) == 0) return done();
  return true;
}

[[noreturn]] void throw_failure(Failure failure, const std::string& text) {
  if (failure == Failure::deadline) throw DeadlineError(text);
  if (failure == Failure::mismatch) throw MismatchError(text);
  throw RankError(text);
}

tcp::endpoint endpoint_of(asio::io_context& io, const RankEnvironment& where) {
  error_code error;
  tcp::resolver resolver(io);
  const auto found = resolver.resolve(where.address, std::to_string(where.port), error);
  if (error || found.empty())
    throw ArgumentError(fmt::format("rendezvous: expected the address of rank 0, found '{}': {}", where.address, error.message()));
  return found.begin()->endpoint();
}

std::string list_of(const std::vector<int>& ranks) { return fmt::format("rank{} {}", ranks.size() > 1 ? "s" : "", fmt::join(ranks, ", ")); }

}  // namespace

// ---- Rank 0 ----

class Rendezvous::Hub {
 public:
  Hub(const RankEnvironment& where, const RendezvousOptions& options)
      : size_(where.world_size), options_(options), where_(fmt::format("{}:{}", where.address, where.port)), acceptor_(io_) {
    if (size_ == 1) return;
    const tcp::endpoint at = endpoint_of(io_, where);
    address_ = at.address().to_string();
    open(at);
    accept();
    const auto all = [this] { return std::cmp_equal(members_.size(), size_ - 1); };
    const bool met = run_until(io_, Clock::now() + options_.deadline, all);
    error_code ignored;
    acceptor_.close(ignored);
    for (const LinkPtr& stranger : strangers_) stranger->close();
    if (!met)
      fail(Failure::deadline,
           fmt::format("rendezvous at {}: {} did not come within {} ms", where_, list_of(absent()), options_.deadline.count()));
    send_all(Kind::welcome, {});
  }
  ~Hub() {
    for (const auto& [rank, link] : members_) link->close();
    for (const LinkPtr& stranger : strangers_) stranger->close();
    error_code ignored;
    acceptor_.close(ignored);
    io_.restart();
    io_.poll();  // operations that were cancelled let go of what they kept
  }

  const std::string& address() const noexcept { return address_; }

  std::vector<std::string> exchange(const std::string& name, const std::string& blob) {
    std::vector<std::string> blobs(static_cast<std::size_t>(size_));
    blobs[0] = blob;
    const auto left = [this] { return first([](const Link& link) { return link.closed && !link.inbox; }); };
    const auto waiting = [this] { return all([](const Link& link) { return !link.inbox && !link.closed; }); };
    run_until(io_, Clock::now() + options_.deadline, [&] { return left() >= 0 || waiting().empty(); });
    if (left() >= 0) fail(Failure::rank, fmt::format("rendezvous, exchange '{}': rank {} has left", name, left()));
    if (!waiting().empty())
      fail(Failure::deadline,
           fmt::format("rendezvous, exchange '{}': {} did not come within {} ms", name, list_of(waiting()), options_.deadline.count()));
    for (const auto& [rank, link] : members_) blobs[static_cast<std::size_t>(rank)] = take(*link, name);
    std::string body;
    for (const std::string& each : blobs) {
      put(body, static_cast<std::uint32_t>(each.size()));
      body += each;
    }
    send_all(Kind::all, body);
    for (const auto& [rank, link] : members_) listen(link);
    return blobs;
  }

 private:
  void open(const tcp::endpoint& at) {
    error_code error;
    acceptor_.open(at.protocol(), error);
    if (!error) acceptor_.set_option(tcp::acceptor::reuse_address(true), error);
    if (!error) acceptor_.bind(at, error);
    if (!error) acceptor_.listen(4096, error);
    if (error) throw CommunicationError(fmt::format("rendezvous: rank 0 cannot listen at {}: {}", where_, error.message()));
  }

  void accept() {
    acceptor_.async_accept([this](error_code error, tcp::socket socket) {
      if (error == asio::error::operation_aborted || !acceptor_.is_open()) return;
      strangers_.remove_if([](const LinkPtr& link) { return link->closed; });
      if (!error && strangers_.size() < most_strangers) greet(std::make_shared<Link>(std::move(socket)));
      accept();
    });
  }
  /// A peer that connects has a limited time to say who it is.
  void greet(const LinkPtr& link) {
    strangers_.push_back(link);
    link->timer.expires_after(options_.hello);
    link->timer.async_wait([link](error_code error) {
      if (!error && link->rank < 0) link->close();
    });
    link->receive(3 * sizeof(std::uint32_t), [this, link] {
      if (!link->closed) enter(link);
    });
  }
  void enter(const LinkPtr& link) {
    const Frame said = *std::exchange(link->inbox, std::nullopt);
    if (said.kind != Kind::hello || said.body.size() != 3 * sizeof(std::uint32_t)) return link->close();
    Reader words(said.body);
    const auto its_version = words.get<std::uint32_t>(), its_size = words.get<std::uint32_t>(), its_rank = words.get<std::uint32_t>();
    std::string wrong;
    if (its_version != version)
      wrong = fmt::format("expected version {}, found {}", version, its_version);
    else if (std::cmp_not_equal(its_size, size_))
      wrong = fmt::format("expected {} ranks, as rank 0 was told, found {}", size_, its_size);
    else if (its_rank == 0 || std::cmp_greater_equal(its_rank, size_))
      wrong = fmt::format("expected a rank from 1 to {}, found {}", size_ - 1, its_rank);
    else if (members_.contains(static_cast<int>(its_rank)))
      wrong = fmt::format("rank {} is there already", its_rank);
    if (!wrong.empty()) return refuse(*link, wrong);
    link->timer.cancel();
    link->rank = static_cast<int>(its_rank);
    strangers_.remove(link);
    members_[link->rank] = link;
    listen(link);
  }
  void refuse(Link& link, const std::string& wrong) { tell(link, Failure::mismatch, fmt::format("rendezvous at {}: {}", where_, wrong)); }

  /// For its next blob, and for its end: until all have come its place is free again then.
  void listen(const LinkPtr& link) {
    link->receive(options_.most_bytes + most_name + sizeof(std::uint32_t), [this, link] {
      if (link->closed && acceptor_.is_open()) members_.erase(link->rank);
    });
  }

  std::string take(Link& link, const std::string& name) {
    const Frame said = *std::exchange(link.inbox, std::nullopt);
    if (said.kind != Kind::blob)
      fail(Failure::mismatch, fmt::format("rendezvous, exchange '{}': rank {} sent something else", name, link.rank));
    std::string its_name, blob;
    try {
      Reader reader(said.body);
      its_name = reader.take(reader.get<std::uint32_t>());
      blob = reader.rest();
    } catch (const MismatchError& error) {
      fail(Failure::mismatch, fmt::format("{}: from rank {}", error.what(), link.rank));
    }
    if (its_name != name)
      fail(Failure::mismatch, fmt::format("rendezvous: rank 0 is at exchange '{}', rank {} at '{}'", name, link.rank, its_name));
    return blob;
  }

  void send_all(Kind kind, const std::string& body) {
    for (const auto& [rank, link] : members_) link->send(kind, body);
    const auto sending = [this] { return all([](const Link& link) { return link.sending && !link.closed; }); };
    if (!run_until(io_, Clock::now() + options_.deadline, [&] { return sending().empty(); }))
      fail(Failure::deadline,
           fmt::format("rendezvous: {} did not take what was sent within {} ms", list_of(sending()), options_.deadline.count()));
  }

  /// All ranks that are there get it.
  [[noreturn]] void fail(Failure failure, const std::string& text) {
    for (const auto& [rank, link] : members_)
      if (!link->closed && !link->sending) tell(*link, failure, text);
    throw_failure(failure, text);
  }
  static void tell(Link& link, Failure failure, const std::string& text) {
    std::string body;
    put(body, static_cast<std::uint32_t>(failure));
    body += text.substr(0, most_text);
    error_code ignored;
    link.socket.non_blocking(true, ignored);  // a few words: they go, or nobody reads them
    asio::write(link.socket, asio::buffer(bytes_of(Kind::failed, body)), ignored);
    link.close();
  }

  std::vector<int> absent() const {
    std::vector<int> ranks;
    for (int rank = 1; rank < size_; ++rank)
      if (!members_.contains(rank)) ranks.push_back(rank);
    return ranks;
  }
  template <class Which>
  std::vector<int> all(const Which& which) const {
    std::vector<int> ranks;
    for (const auto& [rank, link] : members_)
      if (which(*link)) ranks.push_back(rank);
    return ranks;
  }
  template <class Which>
  int first(const Which& which) const {
    const std::vector<int> ranks = all(which);
    return ranks.empty() ? -1 : ranks[0];
  }

  const int size_;
  const RendezvousOptions options_;
  const std::string where_;
  std::string address_ = "127.0.0.1";
  asio::io_context io_{1};
  tcp::acceptor acceptor_;
  std::list<LinkPtr> strangers_;
  std::map<int, LinkPtr> members_;
};

// ---- The others ----

class Rendezvous::Member {
 public:
  Member(const RankEnvironment& where, const RendezvousOptions& options)
      : rank_(where.rank), size_(where.world_size), options_(options), where_(fmt::format("{}:{}", where.address, where.port)) {
    const Clock::time_point until = Clock::now() + options_.deadline;
    const tcp::endpoint at = endpoint_of(io_, where);
    // Rank 0 may come later, and shuts out whom it has no room for.
    while (!meet(at, until)) {
      if (Clock::now() + pause >= until)
        throw DeadlineError(
            fmt::format("rendezvous: rank {} did not reach rank 0 at {} within {} ms", rank_, where_, options_.deadline.count()));
      std::this_thread::sleep_for(pause);
    }
  }
  ~Member() {
    if (link_) link_->close();
    io_.restart();
    io_.poll();
  }

  std::string address() const {
    error_code error;
    const tcp::endpoint here = link_->socket.local_endpoint(error);
    if (error) throw RankError("rendezvous: the connection with rank 0 has ended");
    return here.address().to_string();
  }

  std::vector<std::string> exchange(const std::string& name, const std::string& blob) {
    std::string body;
    put(body, static_cast<std::uint32_t>(name.size()));
    body += name + blob;
    link_->send(Kind::blob, body);
    const Frame said = await(Clock::now() + options_.deadline + options_.hello, fmt::format("exchange '{}'", name));
    if (said.kind != Kind::all) throw MismatchError(fmt::format("rendezvous, exchange '{}': rank 0 sent something else", name));
    Reader reader(said.body);
    std::vector<std::string> blobs;
    for (int rank = 0; rank < size_; ++rank) blobs.push_back(reader.take(reader.get<std::uint32_t>()));
    return blobs;
  }

 private:
  bool meet(const tcp::endpoint& at, Clock::time_point until) {
    tcp::socket socket(io_);
    std::optional<error_code> connected;
    socket.async_connect(at, [&connected](error_code error) { connected = error; });
    if (!run_until(io_, until, [&connected] { return connected.has_value(); })) {
      error_code ignored;
      socket.close(ignored);
      run_until(io_, Clock::now() + options_.hello, [&connected] { return connected.has_value(); });
      return false;
    }
    if (*connected) return false;
    link_ = std::make_shared<Link>(std::move(socket));
    std::string hello;
    put(hello, version);
    put(hello, static_cast<std::uint32_t>(size_));
    put(hello, static_cast<std::uint32_t>(rank_));
    link_->send(Kind::hello, hello);
    link_->receive(most_body(), [] {});
    if (!run_until(io_, until + options_.hello, [this] { return link_->inbox || link_->closed; }))
      throw DeadlineError(
          fmt::format("rendezvous: rank 0 at {} did not answer rank {} within {} ms", where_, rank_, options_.deadline.count()));
    if (!link_->inbox) return false;
    const Frame said = taken();
    if (said.kind != Kind::welcome) throw MismatchError(fmt::format("rendezvous: what listens at {} is no rank 0", where_));
    return true;
  }

  Frame await(Clock::time_point until, const std::string& what) {
    link_->receive(most_body(), [] {});
    if (!run_until(io_, until, [this] { return link_->inbox || link_->closed; }))
      throw DeadlineError(fmt::format("rendezvous, {}: rank 0 did not answer rank {}", what, rank_));
    if (!link_->inbox) throw RankError(fmt::format("rendezvous, {}: rank 0 has left", what));
    return taken();
  }
  Frame taken() {
    const Frame said = *std::exchange(link_->inbox, std::nullopt);
    if (said.kind != Kind::failed) return said;
    Reader reader(said.body);
    const auto failure = static_cast<Failure>(reader.get<std::uint32_t>());
    throw_failure(failure, reader.rest());
  }
  std::size_t most_body() const {
    return std::max(most_text + sizeof(std::uint32_t), static_cast<std::size_t>(size_) * (options_.most_bytes + sizeof(std::uint32_t)));
  }

  const int rank_;
  const int size_;
  const RendezvousOptions options_;
  const std::string where_;
  asio::io_context io_{1};
  LinkPtr link_;
};

Rendezvous::Rendezvous(const RankEnvironment& where, RendezvousOptions options)
    : rank_(where.rank), world_size_(where.world_size), options_(options) {
  throw_on_runtime_thread("rendezvous");
  if (rank_ < 0 || rank_ >= world_size_)
    throw ArgumentError(fmt::format("rendezvous: expected a rank from 0 to {}, found {}", world_size_ - 1, rank_));
  if (rank_ == 0)
    hub_ = std::make_unique<Hub>(where, options_);
  else
    member_ = std::make_unique<Member>(where, options_);
}
Rendezvous::~Rendezvous() = default;
int Rendezvous::rank() const noexcept { return rank_; }
int Rendezvous::world_size() const noexcept { return world_size_; }
std::string Rendezvous::address() const {
  if (!hub_ && !member_) throw RankError("rendezvous: it is over, an exchange failed before");
  return hub_ ? hub_->address() : member_->address();
}

std::vector<std::string> Rendezvous::exchange(const std::string& name, const std::string& blob) {
  throw_on_runtime_thread("rendezvous");
  if (name.empty() || name.size() > most_name)
    throw ArgumentError(fmt::format("rendezvous: expected a name of 1 to {} bytes, found {}", most_name, name.size()));
  if (blob.size() > options_.most_bytes)
    throw ArgumentError(
        fmt::format("rendezvous, exchange '{}': expected at most {} bytes, found {}", name, options_.most_bytes, blob.size()));
  if (!hub_ && !member_) throw RankError("rendezvous: it is over, an exchange failed before");
  try {
    return hub_ ? hub_->exchange(name, blob) : member_->exchange(name, blob);
  } catch (...) {
    hub_.reset();
    member_.reset();
    throw;
  }
}

}  // namespace millrace
