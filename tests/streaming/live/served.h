// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <future>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/live/server.h>
#include <millrace/streaming/transport/connection.h>

namespace millrace::testing {

/// A server on a thread of its own. `stop` drains it and waits.
class Served {
 public:
  explicit Served(const Program& program, ServerOptions options = {})
      : server(std::make_unique<Server>(context_, std::make_shared<const ServedModel>(program, StreamConfig()), std::move(options))),
        thread_([this] { run_servers(context_); }) {}
  explicit Served(std::vector<ServedRoute> routes, ServerOptions options = {})
      : server(std::make_unique<Server>(context_, std::move(routes), std::move(options))), thread_([this] { run_servers(context_); }) {}
  ~Served() { stop(); }

  /// Runs `f` on the server's thread.
  template <class F>
  auto ask(F f) {
    std::packaged_task<decltype(f())()> task(std::move(f));
    auto future = task.get_future();
    asio::post(context_, [&task] { task(); });
    return future.get();
  }
  void stop() {
    if (!thread_.joinable()) return;
    asio::post(context_, [this] { server->drain(); });
    thread_.join();
  }
  asio::io_context& context() noexcept { return context_; }
  StreamUrl url(StreamUrl::Scheme scheme = StreamUrl::Scheme::tcp) const {
    StreamUrl url;
    url.scheme = scheme;
    url.host = "127.0.0.1";
    url.port = server->port();
    return url;
  }

 private:
  asio::io_context context_{1};

 public:
  std::unique_ptr<Server> server;

 private:
  std::thread thread_;
};

}  // namespace millrace::testing
