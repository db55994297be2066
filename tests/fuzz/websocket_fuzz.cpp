// SPDX-License-Identifier: Apache-2.0
#include <boost/asio/append.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <string>

#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/transport/websocket_stream.h>

using namespace millrace;

namespace {

const std::string request =
    "GET /stream HTTP/1.1\r\nHost: a\r\nUpgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
    "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n";

/// A peer whose bytes are known beforehand and that swallows what it is sent. The request ends a read, as a client waits for its answer.
class Script final : public ByteStream::Carrier {
 public:
  Script(asio::io_context& context, std::string request_text, std::string frames)
      : executor_(context.get_executor()), parts_{std::move(request_text), std::move(frames)} {}

  ByteStream::executor_type executor() override { return executor_; }
  void read_some(const ReadBuffers& buffers, ByteStream::TransferHandler handler) override {
    if (parts_[0].empty()) parts_[0].swap(parts_[1]);
    const std::size_t count = asio::buffer_copy(buffers, asio::buffer(parts_[0]));
    parts_[0].erase(0, count);
    const error_code error = closed_      ? error_code(asio::error::operation_aborted)
                             : count == 0 ? error_code(asio::error::eof)
                                          : error_code();
    asio::post(executor_, asio::append(std::move(handler), error, count));
  }
  void write_some(const WriteBuffers& buffers, ByteStream::TransferHandler handler) override {
    asio::post(executor_, asio::append(std::move(handler), error_code(), asio::buffer_size(buffers)));
  }
  void shut_down(ByteStream::DoneHandler handler) override { asio::post(executor_, asio::append(std::move(handler), error_code())); }
  void close() noexcept override { closed_ = true; }

 private:
  ByteStream::executor_type executor_;
  std::string parts_[2];
  bool closed_ = false;
};

void read_all(MessageStream& stream) {
  stream.async_read([&stream](error_code error, Message) {
    if (!error) read_all(stream);
  });
}

}  // namespace

// Bytes that begin with 'G' are a request, others the frames after a good one.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string text(reinterpret_cast<const char*>(data), size);
  const bool bare = text.starts_with('G');
  asio::io_context context(1);
  std::unique_ptr<MessageStream> held;
  Limits limits;
  limits.message = 4096;
  accept_websocket(ByteStream(std::make_shared<Script>(context, bare ? text : request, bare ? std::string() : text)), limits, {},
                   [&](error_code error, std::unique_ptr<MessageStream> stream) {
                     held = std::move(stream);
                     if (!error) read_all(*held);
                   });
  context.run();
  return 0;
}
