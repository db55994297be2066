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

bool out_of_resources(const error_code& error) {
  using namespace boost::system::errc;
  return error == too_many_files_open || error == too_many_files_open_in_system || error == no_buffer_space || error == not_enough_memory;
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
    local = acceptor.local_endpoint();
  }
  ~State() {
    if (spare >= 0) ::close(spare);
    if (held >= 0) ::close(held);
  }
  // Without a descriptor the newcomer would wait in the backlog and wake the acceptor for ever: it is taken with the spare one.
  void hold_one() noexcept {
    if (spare >= 0) ::close(spare);
    spare = -1;
    error_code ignored;
    acceptor.non_blocking(true, ignored);
    held = ::accept4(acceptor.native_handle(), nullptr, nullptr, SOCK_CLOEXEC);
  }
  // By now it has said how it speaks. Its bytes are read, so that closing does not take back what it is told.
  void refuse_held() noexcept {
    if (held >= 0) {
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
  void say_scarce(const std::string& why) {
    if (std::exchange(scarce, true)) return;
    const auto call = told;  // a copy, since the call may replace it
    if (call) call(why);
  }
  tcp::acceptor acceptor;
  asio::steady_timer timer;
  tcp::endpoint local;
  int spare;
  int held = -1;  // a newcomer that is about to be refused
  bool scarce = false;
  std::string over_http{}, otherwise{};
  std::function<void(const std::string&)> told{};
};

namespace {

template <class State>
struct AcceptOp {
  std::shared_ptr<State> state;

  template <class Self>
  void operator()(Self& self) {
    if (state->held >= 0) return refuse(self);
    state->acceptor.async_accept(std::move(self));
  }
  template <class Self>
  void operator()(Self& self, error_code error, tcp::socket socket) {
    const bool scarce = error ? out_of_resources(error) : near_limit(socket.native_handle());
    if (!scarce) {
      state->scarce = state->scarce && error;
      return self.complete(error, std::move(socket));
    }
    state->say_scarce(error ? error.message() : "nearly all descriptors are in use");
    error_code ignored;
    if (error)
      state->hold_one();
    else
      state->held = socket.release(ignored);
    refuse(self);
  }
  template <class Self>
  void refuse(Self& self) {
    const auto at = state;  // this op moves away with self
    at->timer.expires_after(std::chrono::milliseconds(100));
    at->timer.async_wait(std::move(self));
  }
  template <class Self>
  void operator()(Self& self, error_code error) {
    state->refuse_held();
    if (error || !state->acceptor.is_open())
      return self.complete(asio::error::operation_aborted, tcp::socket(state->acceptor.get_executor()));
    (*this)(self);
  }
};

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

std::optional<tcp::socket> Listener::accept_waiting() {
  error_code error;
  state_->acceptor.non_blocking(true, error);
  if (error) return std::nullopt;
  tcp::socket socket = state_->acceptor.accept(error);
  if (error) return std::nullopt;  // what is no want of a newcomer is found by the next `async_accept`
  if (!near_limit(socket.native_handle())) return socket;
  state_->say_scarce("nearly all descriptors are in use");
  state_->held = socket.release(error);
  return std::nullopt;
}

void Listener::refuse_with(std::string over_http, std::string otherwise) {
  state_->over_http = std::move(over_http);
  state_->otherwise = std::move(otherwise);
}
void Listener::on_scarce(std::function<void(const std::string&)> call) { state_->told = std::move(call); }

void Listener::close() noexcept {
  if (!state_) return;
  error_code ignored;
  state_->acceptor.close(ignored);
  state_->timer.cancel();
}

}  // namespace millrace
