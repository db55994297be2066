// SPDX-License-Identifier: Apache-2.0
#include <climits>
#include <csignal>
#include <sstream>
#include <string>
#include <vector>

#include <boost/asio/buffer.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <doctest/doctest.h>

#include <apps/serving.h>
#include <millrace/runtime/files/utf8.h>
#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/protocol/frame.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

std::string repeated(const std::string& text, int count) {
  std::string all;
  for (int i = 0; i < count; ++i) all += text;
  return all;
}

/// Sends a start that the server refuses, because nobody knows the key, and waits until it has closed.
void send_unknown_key(const std::string& port, const std::string& key) {
  asio::io_context context;
  asio::ip::tcp::socket client(context);
  client.connect({asio::ip::make_address("127.0.0.1"), static_cast<std::uint16_t>(std::stoi(port))});
  asio::write(client, asio::buffer(encode_frame(text_message("{\"type\":\"start\",\"version\":1,\"" + key + "\":1}"))));
  std::string told;
  boost::system::error_code error;
  asio::read(client, asio::dynamic_buffer(told), error);
}

}  // namespace

TEST_CASE("a client cannot keep its line out of the log by a long text") {
  for (const std::vector<std::string>& flags : {std::vector<std::string>{}, {"--log-json"}}) {
    Serving serving(flags);
    // The last one takes six bytes for each character in JSON.
    for (const std::string& key : {std::string(5000, 'x'), "y" + repeated("\xc3\xa9", 2500), repeated("\\u0001", 2500)})
      send_unknown_key(serving.port, key);
    serving.server->signal(SIGTERM);
    CHECK(serving.server->wait() == 0);
    std::istringstream log(serving.server->err());
    std::size_t lines = 0;
    for (std::string line; std::getline(log, line); ++lines) {
      INFO("line ", line);
      CHECK(line.size() < PIPE_BUF);
      CHECK(is_utf8(line));
      CHECK(line.find("bad_message") != std::string::npos);
      CHECK(line.find("\xe2\x80\xa6") != std::string::npos);
      CHECK(line.find("found no room") == std::string::npos);
    }
    CHECK(lines == 3);
  }
}
