// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/admin/admin_port.h>

#include <array>
#include <memory>
#include <string>

#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <doctest/doctest.h>

#include <millrace/streaming/protocol/frame.h>
#include <millrace/tensor/error.h>
#include <streaming/live/live_model.h>
#include <streaming/live/served.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

/// A server with its port of administration, on the server's thread.
struct Administered {
  explicit Administered(ServerOptions options = {}) : random(1), served(live_listing(random, 3, 4), std::move(options)) {
    served.ask([this] {
      port = std::make_unique<AdminPort>(served.context(), *served.server, "127.0.0.1", 0);
      return true;
    });
  }
  ~Administered() {
    served.ask([this] {
      port.reset();
      return true;
    });
  }
  std::string get(const std::string& path, const std::string& host = "localhost") const {
    return ask("GET " + path + " HTTP/1.1\r\nHost: " + host + "\r\n\r\n");
  }
  std::string ask(const std::string& request) const {
    asio::io_context context;
    asio::ip::tcp::socket socket(context);
    socket.connect({asio::ip::make_address("127.0.0.1"), port->port()});
    asio::write(socket, asio::buffer(request));
    std::string text;
    error_code error;
    asio::read(socket, asio::dynamic_buffer(text), error);
    return text;
  }

  Random random;
  Served served;
  std::unique_ptr<AdminPort> port;
};

}  // namespace

TEST_CASE("the port answers its pages, and nothing else") {
  const Administered all;
  CHECK(all.get("/health").starts_with("HTTP/1.1 200 "));
  CHECK(all.get("/ready").ends_with("\r\n\r\nready\n"));
  CHECK(all.get("/sessions").ends_with("\r\n\r\n{\"sessions\":[]}\n"));
  CHECK(all.get("/capacity").find("\"max_sessions\":1024") != std::string::npos);
  const std::string metrics = all.get("/metrics");
  CHECK((metrics.starts_with("HTTP/1.1 200 ") || metrics.starts_with("HTTP/1.1 501 ")));  // a build without prometheus-cpp
  CHECK(all.get("/").starts_with("HTTP/1.1 404 "));
  CHECK(all.get("/stream").starts_with("HTTP/1.1 404 "));
  CHECK(all.get("/stream").ends_with("\r\n\r\nmillrace: 404 Not Found\n"));
  for (const char* host : {"LOCALHOST", "LocalHost:1", "127.0.0.1", "[::1]:80"})
    CHECK(all.get("/health", host).starts_with("HTTP/1.1 200 "));
  CHECK(all.get("http://localhost/health", "rebound.example").starts_with("HTTP/1.1 200 "));
  CHECK(all.get("/health", "rebound.example").starts_with("HTTP/1.1 403 "));
  CHECK(all.get("http://rebound.example/health").starts_with("HTTP/1.1 403 "));
  CHECK(all.ask("GET /health HTTP/1.0\r\n\r\n").starts_with("HTTP/1.1 200 "));  // as a probe of a load balancer's
  CHECK(all.ask("GET /health HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 400 "));
}

TEST_CASE("a server that is full, or drains, is not ready and stays healthy") {
  ServerOptions options;
  options.limits.sessions = 0;
  const Administered full(options);
  CHECK(full.get("/ready").starts_with("HTTP/1.1 503 "));
  CHECK(full.get("/ready").ends_with("full\n"));
  CHECK(full.get("/health").starts_with("HTTP/1.1 200 "));
}

TEST_CASE("a server that has no steps left for another session is not ready") {
  ServerOptions options;
  options.admission.capacity = 10;
  options.admission.session_rate = 10;
  const Administered all(options);
  CHECK(all.get("/ready").ends_with("\r\n\r\nready\n"));
  asio::io_context context;
  asio::ip::tcp::socket session(context);
  session.connect({asio::ip::make_address("127.0.0.1"), all.served.server->port()});
  asio::write(session, asio::buffer(encode_frame(text_message(R"({"type":"start","version":1})"))));
  std::array<char, 1> first;
  asio::read(session, asio::buffer(first));
  CHECK(all.get("/ready").starts_with("HTTP/1.1 503 "));
  CHECK(all.get("/ready").ends_with("no steps are left for another session\n"));
}

TEST_CASE("requests that never end keep nobody out") {
  const Administered all;
  asio::io_context context;
  std::vector<asio::ip::tcp::socket> silent;
  for (int i = 0; i < 100; ++i) {
    silent.emplace_back(context).connect({asio::ip::make_address("127.0.0.1"), all.port->port()});
    asio::write(silent.back(), asio::buffer(std::string("GET /hea")));
  }
  CHECK(all.get("/health").starts_with("HTTP/1.1 200 "));
}

TEST_CASE("an address that others can reach is refused") {
  asio::io_context context;
  Random random(1);
  Server server(context, std::make_shared<const ServedModel>(live_listing(random, 3, 4), StreamConfig()), {});
  CHECK_THROWS_WITH_AS(AdminPort(context, server, "0.0.0.0", 0), doctest::Contains("0.0.0.0"), ArgumentError);
}
