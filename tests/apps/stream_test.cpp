// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <thread>
#include <utility>

#include <sys/socket.h>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <doctest/doctest.h>

#include <apps/process.h>
#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/protocol/frame.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

/// A server that answers the one client that it takes with `reply`, whatever the client says.
class Answering {
 public:
  explicit Answering(std::string reply)
      : acceptor_(context_, {asio::ip::make_address("127.0.0.1"), 0}), thread_([this, reply = std::move(reply)] {
          boost::system::error_code error;
          asio::ip::tcp::socket client = acceptor_.accept(error);
          if (!error) asio::write(client, asio::buffer(encode_frame(text_message(reply))), error);
          std::string said;
          if (!error) asio::read(client, asio::dynamic_buffer(said), error);
        }) {}
  ~Answering() {
    ::shutdown(acceptor_.native_handle(), SHUT_RDWR);  // where nobody came
    thread_.join();
  }
  Answering(const Answering&) = delete;
  Answering& operator=(const Answering&) = delete;
  std::string url() const { return "tcp://127.0.0.1:" + std::to_string(acceptor_.local_endpoint().port()); }

 private:
  asio::io_context context_;
  asio::ip::tcp::acceptor acceptor_;
  std::thread thread_;
};

}  // namespace

TEST_CASE("what a server says reaches the terminal without characters that it obeys") {
  const Answering server(R"({"type":"error","code":"failed","message":"a\u001b[31mb\u202ec\u0085d\u2066e\nf\u200f"})");
  check_refused({"stream", server.url(), "x.npy"}, 1, {"failed: a?[31mb?c?d?e f?"});
}

TEST_CASE("an error code that the client does not know is shown as it came") {
  const Answering server(R"({"type":"error","code":"of\u202etomorrow","message":"why"})");
  check_refused({"stream", server.url(), "x.npy"}, 1, {": of?tomorrow: why"});
}
