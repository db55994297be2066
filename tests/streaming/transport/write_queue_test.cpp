// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/transport/write_queue.h>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/use_future.hpp>

#include <doctest/doctest.h>

#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/transport/wire_error.h>
#include <streaming/transport/loopback.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr auto patient = std::chrono::milliseconds(5000);

std::shared_ptr<MessageStream> server_of(Loopback& loop) { return std::shared_ptr<MessageStream>(std::move(loop.server)); }

/// Fills the queue until the network takes no more and it has no room.
void fill(Loopback& loop, WriteQueue& queue) {
  for (int idle = 0; idle < 3;) {
    if (queue.has_room()) queue.push(binary_message(std::string(60000, 'x')));
    loop.context.restart();
    idle = loop.context.run_for(std::chrono::milliseconds(5)) == 0 && !queue.has_room() ? idle + 1 : 0;
  }
}

}  // namespace

TEST_CASE("messages leave in order, and flushed means that all were written") {
  for (const auto scheme : both_schemes) {
    Loopback loop;
    loop.connect(scheme);
    WriteQueue queue(server_of(loop), 1 << 20, patient);
    for (int k = 0; k < 100; ++k) queue.push(text_message(std::to_string(k)));
    CHECK(queue.bytes() > 0);
    std::optional<error_code> flushed;
    queue.async_flushed([&](error_code error) { flushed = error; });
    CHECK_FALSE(flushed);
    for (int k = 0; k < 100; ++k) REQUIRE(loop.read(*loop.client).second.payload == std::to_string(k));
    loop.run_until([&] { return flushed.has_value(); });
    CHECK_FALSE(*flushed);
    CHECK(queue.bytes() == 0);
    CHECK_FALSE(queue.error());
  }
}

TEST_CASE("a queue takes one message above its bound, then none until there is room") {
  for (const auto scheme : both_schemes) {
    Loopback loop;
    loop.connect(scheme);
    WriteQueue queue(server_of(loop), 100000, patient);
    fill(loop, queue);
    CHECK(queue.bytes() < 100000 + 61000);
    CHECK_THROWS_AS(queue.push(text_message("more")), OverflowError);
    std::optional<error_code> room;
    queue.async_room([&](error_code error) { room = error; });
    loop.context.restart();
    loop.context.run_for(std::chrono::milliseconds(20));
    CHECK_FALSE(room);
    while (!room) loop.read(*loop.client);
    CHECK_FALSE(*room);
    CHECK(queue.has_room());
  }
}

TEST_CASE("a peer that does not read is given up as a slow reader") {
  for (const auto scheme : both_schemes) {
    Loopback loop;
    loop.connect(scheme);
    WriteQueue queue(server_of(loop), 100000, std::chrono::milliseconds(100));
    fill(loop, queue);
    std::optional<error_code> flushed;
    queue.async_flushed([&](error_code error) { flushed = error; });
    loop.run_until([&] { return flushed.has_value(); });
    CHECK(wire_error(*flushed) == ErrorCode::slow_reader);
    CHECK(wire_error(queue.error()) == ErrorCode::slow_reader);
    CHECK(queue.bytes() == 0);
    CHECK_FALSE(queue.has_room());
    CHECK_NOTHROW(queue.push(text_message("dropped")));
  }
}

TEST_CASE("a peer that goes away shows as the first error, at once for later waits") {
  Loopback loop;
  loop.connect(StreamUrl::Scheme::tcp);
  WriteQueue queue(server_of(loop), 100000, patient);
  loop.client.reset();
  while (!queue.error()) {
    queue.push(text_message("x"));
    loop.context.restart();
    loop.context.run_for(std::chrono::milliseconds(5));
  }
  std::optional<error_code> room;
  queue.async_room([&](error_code error) { room = error; });
  loop.run_until([&] { return room.has_value(); });
  CHECK(*room == queue.error());
}

TEST_CASE("a wait can be cancelled, awaited as a future, and only one may be pending") {
  Loopback loop;
  loop.connect(StreamUrl::Scheme::tcp);
  WriteQueue queue(server_of(loop), 100000, patient);
  fill(loop, queue);
  asio::cancellation_signal signal;
  std::optional<error_code> room;
  queue.async_room(asio::bind_cancellation_slot(signal.slot(), [&](error_code error) { room = error; }));
  CHECK_THROWS_AS(queue.async_room([](error_code) {}), ArgumentError);
  signal.emit(asio::cancellation_type::partial);
  loop.run_until([&] { return room.has_value(); });
  CHECK(*room == asio::error::operation_aborted);
  auto future = queue.async_flushed(asio::use_future);
  signal.emit(asio::cancellation_type::partial);  // of the wait that is over: it does not reach this one
  loop.client.reset();
  loop.run_until([&] { return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready; });
  CHECK_THROWS_AS(future.get(), boost::system::system_error);
}

TEST_CASE("destroying a queue that still has messages aborts the stream and completes the wait") {
  Loopback loop;
  loop.connect(StreamUrl::Scheme::tcp);
  std::optional<error_code> flushed;
  {
    WriteQueue queue(server_of(loop), 100000, patient);
    fill(loop, queue);
    queue.async_flushed([&](error_code error) { flushed = error; });
  }
  loop.run_until([&] { return flushed.has_value(); });
  CHECK(*flushed == asio::error::operation_aborted);
  loop.context.restart();
  loop.context.run_for(std::chrono::milliseconds(5));
}
