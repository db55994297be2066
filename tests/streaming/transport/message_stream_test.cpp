// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/transport/message_stream.h>

#include <memory_resource>

#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <doctest/doctest.h>

#include <streaming/transport/loopback.h>
#include <support/completion_tokens.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

/// Echoes one message from within a coroutine.
asio::awaitable<void> echo(MessageStream* stream) {
  Message message = co_await stream->async_read(asio::use_awaitable);
  co_await stream->async_write(std::move(message), asio::use_awaitable);
}

template <class Test>
void over_both(Test test) {
  for (const auto scheme : both_schemes) {
    INFO("scheme ", static_cast<int>(scheme));
    Loopback loop;
    loop.connect(scheme);
    test(loop);
  }
}

}  // namespace

TEST_CASE("use_future carries a message and an error") {
  over_both([](Loopback& loop) {
    auto message = loop.server->async_read(asio::use_future);
    auto written = loop.client->async_write(text_message("a"), asio::use_future);
    const auto ready = [](auto& future) { return future.wait_for(std::chrono::seconds(0)) == std::future_status::ready; };
    loop.run_until([&] { return ready(message) && ready(written); });
    CHECK(message.get().payload == "a");
    CHECK_NOTHROW(written.get());
    auto failed = loop.server->async_read(asio::use_future);
    loop.client.reset();
    loop.run_until([&] { return ready(failed); });
    CHECK_THROWS_AS(failed.get(), boost::system::system_error);
  });
}

TEST_CASE("use_awaitable carries messages through a coroutine") {
  over_both([](Loopback& loop) {
    bool done = false;
    asio::co_spawn(loop.context, echo(loop.server.get()), [&](std::exception_ptr error) { done = !error; });
    loop.write(*loop.client, binary_message("b"));
    CHECK(loop.read(*loop.client).second == binary_message("b"));
    loop.run_until([&] { return done; });
  });
}

TEST_CASE("several messages written at once arrive one by one, in order") {
  over_both([](Loopback& loop) {
    const std::vector<Message> sent{text_message("one"), binary_message(std::string(70000, 'x')), binary_message(""), text_message("four")};
    std::optional<error_code> written;
    loop.server->async_write_all(sent, [&](error_code error) { written = error; });
    for (const Message& message : sent) CHECK(loop.read(*loop.client).second == message);
    loop.run_until([&] { return written.has_value(); });
    CHECK_FALSE(*written);
    loop.client.reset();
    const std::vector<Message> large(64, binary_message(std::string(1 << 20, 'y')));
    std::optional<error_code> failed;
    loop.server->async_write_all(large, [&](error_code error) { failed = error; });
    loop.run_until([&] { return failed.has_value(); });
    CHECK(*failed);
  });
}

TEST_CASE("deferred starts nothing before it is called") {
  over_both([](Loopback& loop) {
    auto write = loop.client->async_write(text_message("later"), asio::deferred);
    auto read = loop.server->async_read(asio::deferred);
    loop.write(*loop.client, text_message("first"));
    std::optional<Message> message;
    std::move(read)([&](error_code, Message got) { message = std::move(got); });
    loop.run_until([&] { return message.has_value(); });
    CHECK(message->payload == "first");
    std::optional<error_code> written;
    std::move(write)([&](error_code error) { written = error; });
    CHECK(loop.read(*loop.server).second.payload == "later");
    loop.run_until([&] { return written.has_value(); });
  });
}

TEST_CASE("handlers run through their associated executor, and never inside the initiating call") {
  over_both([](Loopback& loop) {
    asio::io_context other;
    auto strand = asio::make_strand(other);
    std::optional<Message> message;
    bool in_strand = false;
    loop.server->async_read(asio::bind_executor(strand, [&](error_code, Message got) {
      in_strand = strand.running_in_this_thread();
      message = std::move(got);
    }));
    CHECK_FALSE(message);
    loop.write(*loop.client, text_message("x"));
    loop.write(*loop.client, text_message("y"));
    for (int k = 0; k < 20; ++k) loop.context.restart(), loop.context.run_for(std::chrono::milliseconds(2));
    CHECK_FALSE(message);
    CHECK(other.run() > 0);  // the pending read counted as work of this context
    REQUIRE(message);
    CHECK(message->payload == "x");
    CHECK(in_strand);
  });
}

TEST_CASE("the associated allocator is used and everything returned to it") {
  over_both([](Loopback& loop) {
    CountingMemory counting;
    {
      std::optional<Message> message;
      loop.server->async_read(asio::bind_allocator(std::pmr::polymorphic_allocator<char>(&counting),
                                                   [&](error_code, Message got) { message = std::move(got); }));
      loop.write(*loop.client, text_message("x"));
      loop.run_until([&] { return message.has_value(); });
    }
    CHECK(counting.total > 0);
    CHECK(counting.live == 0);
  });
}

TEST_CASE("a read is cancelled through its slot") {
  over_both([](Loopback& loop) {
    asio::cancellation_signal signal;
    std::optional<error_code> result;
    loop.server->async_read(asio::bind_cancellation_slot(signal.slot(), [&](error_code error, Message) { result = error; }));
    loop.context.restart();
    loop.context.poll();
    CHECK_FALSE(result);
    signal.emit(asio::cancellation_type::terminal);
    loop.run_until([&] { return result.has_value(); });
    CHECK(*result == asio::error::operation_aborted);
  });
}

TEST_CASE("destroying a stream completes what is pending with an error") {
  over_both([](Loopback& loop) {
    std::optional<error_code> result;
    loop.server->async_read([&](error_code error, Message) { result = error; });
    loop.context.restart();
    loop.context.poll();
    loop.server.reset();
    CHECK_FALSE(result);
    loop.run_until([&] { return result.has_value(); });
    CHECK(*result);
  });
}
