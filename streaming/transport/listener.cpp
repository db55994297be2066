// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/transport/listener.h>

#include <fcntl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <boost/asio/compose.hpp>
#include <boost/asio/steady_timer.hpp>

#include <array>
#include <chrono>
#include <new>
#include <utility>

#include <millrace/runtime/task/asio.h>
#include <millrace/tensor/error.h>

namespace millrace {

using asio::ip::tcp;

namespace {

int open_spare() noexcept { return ::open("/dev/null", O_RDONLY | O_CLOEXEC); }

// Descriptors are given out lowest first, so a high number means that as many are in use.
bool near_limit(int descriptor) noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
  return static_cast<rlim_t>(descriptor) >= limit.rlim_cur - limit.rlim_cur / 10;
}

bool out_of_descriptors(const error_code& error) {
  using namespace boost::system::errc;
  return error == too_many_files_open || error == too_many_files_open_in_system;
}
bool out_of_resources(const error_code& error) {
  using namespace boost::system::errc;
  return out_of_descriptors(error) || error == no_buffer_space || error == not_enough_memory;
}
// The newcomer went before it was taken.
bool nobody_there(const error_code& error) {
  using namespace boost::system::errc;
  return error == asio::error::would_block || error == asio::error::try_again || error == connection_aborted || error == interrupted;
}

tcp::endpoint endpoint_of(const std::string& address, std::uint16_t port, Listener::Reach reach) {
  error_code error;
  const auto parsed = asio::ip::make_address(address, error);
  if (error) throw ArgumentError("listen: expected an IP address, found '" + address + "'");
  if (!parsed.is_loopback() && reach == Listener::Reach::loopback)
    throw ArgumentError("listen: expected a loopback address such as 127.0.0.1, found " + address +
                        ": others can reach it, which takes TLS and a token");
  return {parsed, port};
}

}  // namespace

struct Listener::State {
  State(const asio::any_io_executor& executor, const tcp::endpoint& endpoint) : acceptor(executor), timer(executor), spare(open_spare()) {
    acceptor.open(endpoint.protocol());
    acceptor.set_option(tcp::acceptor::reuse_address(true));
    acceptor.bind(endpoint);
    acceptor.listen(4096);
    acceptor.non_blocking(true);
    local = acceptor.local_endpoint();
  }
  ~State() {
    if (spare >= 0) ::close(spare);
    if (held >= 0) ::close(held);
  }
  // A newcomer that is there, or why there is none.
  error_code take(tcp::socket& socket) {
    error_code error;
    // One connection goes, whose descriptor may be free only later: more that go would be no help.
    for (bool again = true, tried = false; again; tried = true) {
      try {
        acceptor.accept(socket, error);
      } catch (const std::bad_alloc&) {
        error = boost::system::errc::make_error_code(boost::system::errc::not_enough_memory);
      }
      again = !tried && out_of_descriptors(error) && make_room();
    }
    if (error || !near_limit(socket.native_handle()) || takes_last || make_room()) return error;
    held = socket.release(error);
    return boost::system::errc::make_error_code(boost::system::errc::too_many_files_open);
  }
  // Closes a connection that is worth less than a newcomer, if there is one.
  bool make_room() const {
    try {
      return room_maker && room_maker();
    } catch (const std::bad_alloc&) {
      return false;
    }
  }
  // Without a descriptor the newcomer would wait in the backlog and wake the acceptor for ever: it is taken with the spare one.
  void hold_one() noexcept {
    if (spare >= 0) ::close(spare);
    spare = -1;
    held = ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC);
  }
  // Tells the newcomer on the spare descriptor why it goes. Its first byte, which is there by now, says how it speaks. Its bytes are read, so that closing does
  // not take the answer back.
  void refuse_held() {
    if (held >= 0) {
      if (refused) refused();
      std::array<char, 4096> first;
      const ssize_t count = ::recv(held, first.data(), first.size(), MSG_DONTWAIT);
      const std::string& text = count > 0 && first[0] >= 'A' && first[0] <= 'Z' ? over_http : otherwise;
      [[maybe_unused]] const ssize_t sent = ::send(held, text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
      ::shutdown(held, SHUT_WR);
      while (::recv(held, first.data(), first.size(), MSG_DONTWAIT) > 0) {
      }
      ::close(held);
    }
    held = -1;
    if (spare < 0) spare = open_spare();
  }
  void say_scarce(const error_code& error) {
    if (std::exchange(scarce, true)) return;
    try {
      const auto call = told;  // a copy, since the call may replace it
      if (call) call(held >= 0 ? "nearly all descriptors are in use" : error.message());
    } catch (const std::bad_alloc&) {  // the listener goes on without a word
    }
  }
  tcp::acceptor acceptor;
  asio::steady_timer timer;
  tcp::endpoint local;
  int spare;
  int held = -1;  // a newcomer that is about to be refused
  bool scarce = false;
  std::string over_http{}, otherwise{};
  std::function<void(const std::string&)> told{};
  std::function<bool()> room_maker{};
  std::function<void()> refused{};
  bool takes_last = false;
  // Members of `accept_all`:
  std::function<void(tcp::socket)> taker{};
  std::function<std::size_t()> at_once{};
  bool deaf = false;  // nobody waits for newcomers, for want of memory
};

namespace {

/// Waits for a newcomer and then takes it. No error of that ends the listener: many are of the newcomer or of the network, and pass.
template <class State>
struct AcceptOp {
  std::shared_ptr<State> state;
  enum { waiting, pausing } stage = waiting;

  template <class Self>
  void operator()(Self& self) {
    if (state->held >= 0) return pause(self);
    const auto at = state;  // this op moves away with self
    stage = waiting;
    at->acceptor.async_wait(tcp::acceptor::wait_read, std::move(self));
  }
  template <class Self>
  void operator()(Self& self, error_code error) {
    if (stage == pausing) state->refuse_held();
    tcp::socket socket(state->acceptor.get_executor());
    if (error == asio::error::operation_aborted || !state->acceptor.is_open())
      return self.complete(asio::error::operation_aborted, std::move(socket));
    if (stage == pausing) return (*this)(self);
    if (!error) error = state->take(socket);
    if (!error) {
      state->scarce = false;
      return self.complete(error, std::move(socket));
    }
    if (nobody_there(error)) return (*this)(self);
    state->say_scarce(error);
    if (state->held < 0 && out_of_resources(error)) state->hold_one();
    pause(self);
  }
  template <class Self>
  void pause(Self& self) {
    const auto at = state;
    stage = pausing;
    at->timer.expires_after(std::chrono::milliseconds(100));
    at->timer.async_wait(std::move(self));
  }
};

}  // namespace

namespace {

template <class State>
void take_one(State& state, tcp::socket socket) {
  try {
    state.taker(std::move(socket));
  } catch (const std::exception&) {  // no memory is left for that newcomer
  }
}

template <class State>
void accept_next(const std::shared_ptr<State>& state) {
  // A handler that is destroyed uncalled belongs to an operation that threw.
  struct Called {
    explicit Called(const std::shared_ptr<State>& of) : state(of) {}
    Called(Called&&) noexcept = default;
    Called(const Called&) = delete;
    ~Called() {
      if (const auto there = state.lock()) there->deaf = true;
    }
    std::weak_ptr<State> state;
  };
  try {
    state->deaf = false;
    Listener::SocketHandler handler([state, called = Called(state)](error_code error, tcp::socket socket) mutable {
      called.state.reset();
      if (error) return;  // closed: all else is waited out
      const std::size_t most = state->at_once ? state->at_once() : 1;
      take_one(*state, std::move(socket));
      for (std::size_t taken = 1; taken < most && state->acceptor.is_open(); ++taken) {
        tcp::socket next(state->acceptor.get_executor());
        const error_code missing = state->take(next);
        if (missing && state->held >= 0) state->say_scarce(missing);
        if (missing) break;  // another want than that of a newcomer is found by the next wait
        take_one(*state, std::move(next));
      }
      accept_next(state);
    });
    asio::async_compose<Listener::SocketHandler, void(error_code, tcp::socket)>(AcceptOp<State>{state}, handler,
                                                                                state->acceptor.get_executor());
  } catch (const std::exception&) {  // no memory is left to wait for a newcomer
    state->deaf = true;
  }
}

}  // namespace

Listener::Listener(const asio::any_io_executor& executor, const std::string& address, std::uint16_t port, Reach reach) {
  const tcp::endpoint endpoint = endpoint_of(address, port, reach);
  try {
    state_ = std::make_shared<State>(executor, endpoint);
  } catch (const boost::system::system_error& error) {
    throw IoError("listen: " + address + ":" + std::to_string(port) + ": " + error.code().message());
  }
}

Listener::Listener(Listener&&) noexcept = default;
Listener::~Listener() { close(); }

std::string Listener::address() const { return state_->local.address().to_string(); }
std::uint16_t Listener::port() const { return state_->local.port(); }

void Listener::accept(SocketHandler handler) {
  AcceptOp<State> op{state_};
  asio::async_compose<SocketHandler, void(error_code, tcp::socket)>(std::move(op), handler, state_->acceptor.get_executor());
}

void Listener::accept_all(std::function<void(tcp::socket)> take, std::function<std::size_t()> at_once) {
  state_->taker = std::move(take);
  state_->at_once = std::move(at_once);
  accept_next(state_);
}

void Listener::wake() {
  if (state_->deaf && state_->acceptor.is_open()) accept_next(state_);
}

void Listener::refuse_with(std::string over_http, std::string otherwise) {
  state_->over_http = std::move(over_http);
  state_->otherwise = std::move(otherwise);
}
void Listener::on_scarce(std::function<void(const std::string&)> call) { state_->told = std::move(call); }
void Listener::on_refused(std::function<void()> call) { state_->refused = std::move(call); }
void Listener::make_room_with(std::function<bool()> call) { state_->room_maker = std::move(call); }
void Listener::take_last_descriptors() noexcept { state_->takes_last = true; }

void Listener::close() noexcept {
  if (!state_) return;
  error_code ignored;
  state_->acceptor.close(ignored);
  state_->timer.cancel();
}

}  // namespace millrace
