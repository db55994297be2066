// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include <millrace/streaming/live/server.h>
#include <millrace/streaming/transport/asio.h>
#include <millrace/streaming/transport/http_page.h>

namespace millrace {

/// The pages of those who run a server, by HTTP GET on a port of their own, which programs of this machine alone can reach:
///
/// | /health   | 200 while the server's thread serves at all |
/// | /ready    | 200 while it takes sessions, else 503: it drains, is full, or lost all its places |
/// | /metrics  | Prometheus; 501 in a build without prometheus-cpp |
/// | /sessions | JSON, see server_report.h |
/// | /capacity | likewise |
///
/// A request's Host must be an address or localhost, so that no page of a browser reaches it by a name. Use it on the context's thread; `server`
/// outlives it.
class AdminPort {
 public:
  /// Listens at once. ArgumentError for an address that others can reach; IoError names address, port and cause.
  AdminPort(boost::asio::io_context& context, const Server& server, const std::string& address, std::uint16_t port);
  ~AdminPort();
  AdminPort(const AdminPort&) = delete;
  AdminPort& operator=(const AdminPort&) = delete;

  std::string address() const;
  std::uint16_t port() const;
  /// Stops listening, and closes what is open.
  void close() noexcept;

 private:
  class State;
  std::shared_ptr<State> state_;
};

/// The pages of the port, by request.
HttpPages admin_pages(const Server& server);

}  // namespace millrace
