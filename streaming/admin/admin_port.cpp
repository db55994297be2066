// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/admin/admin_port.h>

#include <chrono>
#include <map>
#include <utility>

#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>

#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/admin/server_report.h>
#include <millrace/streaming/transport/byte_stream.h>
#include <millrace/streaming/transport/listener.h>
#include <millrace/streaming/transport/websocket_stream.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

constexpr std::size_t most_requests = 32;  // at once: the oldest goes for one more
constexpr std::chrono::seconds request_limit{5};

HttpPage plain(int status, std::string text) {
  HttpPage page;
  page.status = status;
  page.body = std::move(text) + "\n";
  return page;
}
HttpPage json(std::string text) {
  HttpPage page;
  page.content_type = "application/json";
  page.body = std::move(text);
  return page;
}

HttpPage ready_page(const Server& server) {
  if (server.draining()) return plain(503, "draining");
  bool any = false;
  for (const Server::PlaceStats& one : server.places()) any = any || one.lost.empty();
  if (!any) return plain(503, "no place is left");
  if (server.live_sessions() >= server.max_sessions()) return plain(503, "full");
  if (const std::string why = server.refuses_all(); !why.empty()) return plain(503, why);
  return plain(200, "ready");
}

HttpPage metrics_page(const Server& server) {
  try {
    HttpPage page;
    page.content_type = metrics_content_type;
    page.body = metrics_text(metrics_of(server));
    return page;
  } catch (const UnsupportedError& error) {
    return plain(501, error.what());
  }
}

}  // namespace

HttpPages admin_pages(const Server& server) {
  return [&server](const HttpQuestion& question) -> std::optional<HttpPage> {
    const std::string_view path = question.path;
    if (path == "/health") return plain(200, "healthy");
    if (path == "/ready") return ready_page(server);
    if (path == "/metrics") return metrics_page(server);
    if (path == "/sessions") return json(sessions_json(server));
    if (path == "/capacity") return json(capacity_json(server));
    return std::nullopt;
  };
}

class AdminPort::State final : public std::enable_shared_from_this<AdminPort::State> {
 public:
  State(asio::io_context& context, const Server& server, const std::string& address, std::uint16_t port)
      : listener(context.get_executor(), address, port), context_(context), pages_(std::make_shared<const HttpPages>(admin_pages(server))) {
    listener.take_last_descriptors();
  }

  void accept() {
    listener.accept_all([weak = weak_from_this()](asio::ip::tcp::socket socket) {
      if (const auto self = weak.lock()) self->answer(std::move(socket));
    });
  }
  void close() noexcept {
    listener.close();
    for (auto& [number, request] : requests_) request.close();
  }

  Listener listener;

 private:
  struct Request {
    std::weak_ptr<ByteStream::Carrier> carrier;
    std::shared_ptr<asio::steady_timer> timer;
    void close() noexcept {
      timer->cancel();
      if (const auto open = carrier.lock()) open->close();
    }
  };

  void answer(asio::ip::tcp::socket socket) {
    if (requests_.size() >= most_requests) over(requests_.begin()->first);
    ByteStream bytes = make_byte_stream(std::move(socket));
    const std::uint64_t number = ++last_;
    Request request{bytes.carrier(), std::make_shared<asio::steady_timer>(context_, request_limit)};
    request.timer->async_wait([weak = request.carrier](error_code error) {
      const auto open = weak.lock();
      if (!error && open) open->close();
    });
    requests_.emplace(number, std::move(request));
    HttpAccess access;
    access.pages = pages_;
    access.only_pages = true;
    accept_websocket(std::move(bytes), Limits(), std::move(access),
                     [self = shared_from_this(), number](error_code, std::unique_ptr<MessageStream>) { self->over(number); });
  }
  void over(std::uint64_t number) {
    const auto found = requests_.find(number);
    if (found == requests_.end()) return;  // another took its place
    found->second.close();
    requests_.erase(found);
    listener.wake();
  }

  asio::io_context& context_;
  std::shared_ptr<const HttpPages> pages_;
  std::map<std::uint64_t, Request> requests_;
  std::uint64_t last_ = 0;
};

AdminPort::AdminPort(asio::io_context& context, const Server& server, const std::string& address, std::uint16_t port)
    : state_(std::make_shared<State>(context, server, address, port)) {
  state_->accept();
}
AdminPort::~AdminPort() { close(); }
std::string AdminPort::address() const { return state_->listener.address(); }
std::uint16_t AdminPort::port() const { return state_->listener.port(); }
void AdminPort::close() noexcept { state_->close(); }

}  // namespace millrace
