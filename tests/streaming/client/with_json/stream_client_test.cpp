// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/client/stream_client.h>

#include <memory_resource>
#include <thread>

#include <boost/asio/bind_allocator.hpp>
#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/bind_executor.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/deferred.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/strand.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>
#include <boost/asio/write.hpp>

#include <doctest/doctest.h>

#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/protocol/frame.h>
#include <streaming/live/live_model.h>
#include <streaming/live/served.h>
#include <support/completion_tokens.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::int64_t features = 3, hidden = 4;

/// A served listing, one sequence for it, and what a whole run gives.
struct Fixture {
  Fixture()
      : random(1), program(live_listing(random, features, hidden)), whole(program, random, 2, 30, features, hidden), served(program) {}
  std::vector<ClientPlan> plans(double units_per_second = 0) const {
    std::vector<ClientPlan> made(2);
    for (std::size_t i = 0; i < 2; ++i) {
      made[i].start.reply = ReplyFormat::binary;
      for (const float value : whole.boots[i].to_vector<float>()) made[i].start.given["boot"].push_back(value);
      made[i].bytes = WholeRun::bytes(whole.rows[i]);
      made[i].unit_bytes = features * sizeof(float);
      made[i].units_per_second = units_per_second;
    }
    return made;
  }
  void check(const std::vector<ClientRecord>& records) const {
    REQUIRE(records.size() == 2);
    for (std::size_t i = 0; i < 2; ++i) {
      CHECK(records[i].error == "");
      CHECK(records[i].outputs.at(0) == WholeRun::bytes(whole.outputs[i]));
    }
  }

  Random random;
  Program program;
  WholeRun whole;
  Served served;
};

asio::awaitable<std::vector<ClientRecord>> stream_in_coroutine(StreamUrl url, std::vector<ClientPlan> plans) {
  const auto executor = co_await asio::this_coro::executor;
  auto records = co_await async_stream_plans(executor, url, std::move(plans), ClientOptions(), asio::use_awaitable);
  co_return records;
}

}  // namespace

TEST_CASE("a server that never answers, and one that claims steps without bytes, are given up") {
  asio::io_context context;
  asio::ip::tcp::acceptor acceptor(context, {asio::ip::make_address("127.0.0.1"), 0});
  std::thread server([&] {
    asio::ip::tcp::socket silent = acceptor.accept();
    asio::ip::tcp::socket lying = acceptor.accept();
    StartedMessage started;
    PortSpec empty;
    empty.name = "y";
    empty.shape = DDim{0};
    started.outputs.push_back(empty);
    started.reply = ReplyFormat::binary;
    const std::string claim = std::string(8, '\0') + "\xff\xff\xff\xff" + "\x01\x01y" + std::string(4, '\0');
    asio::write(lying, asio::buffer(encode_frame(text_message(to_json(started))) + encode_frame(binary_message(claim))));
    std::string rest;
    boost::system::error_code ended;
    asio::read(lying, asio::dynamic_buffer(rest), ended);
  });
  StreamUrl url;
  url.host = "127.0.0.1";
  url.port = acceptor.local_endpoint().port();
  ClientOptions options;
  options.limits.handshake = std::chrono::milliseconds(200);
  CHECK(stream_plans(url, std::vector<ClientPlan>(1), options).at(0).error == "the server did not answer in time");
  const std::string claimed = stream_plans(url, std::vector<ClientPlan>(1)).at(0).error;
  INFO(claimed);
  CHECK(claimed.find("found 4294967295") != std::string::npos);
  server.join();
}

TEST_CASE("a strided piece that no message holds is cut") {
  const Fixture fixture;
  constexpr std::size_t most = 400;
  ServerOptions strict;
  strict.limits.message = most;
  const Served served(fixture.program, strict);
  ClientPlan plan;
  plan.start.reply = ReplyFormat::none;
  plan.bytes = std::string(10 * most / 12 * 12, '\0');
  plan.unit_bytes = features * sizeof(float);
  plan.units_per_second = 1e6;
  ClientOptions options;
  options.speed = 1e6;
  options.paced_piece = std::chrono::milliseconds(5000);
  options.limits.message = most;
  CHECK(stream_plans(served.url(), {plan}, options).at(0).error == "");
}

TEST_CASE("streaming completes for a future, a coroutine and a deferred operation") {
  const Fixture fixture;
  asio::io_context context;
  auto future = async_stream_plans(context.get_executor(), fixture.served.url(), fixture.plans(), {}, asio::use_future);
  auto spawned = asio::co_spawn(context, stream_in_coroutine(fixture.served.url(), fixture.plans()), asio::use_future);
  auto later = async_stream_plans(context.get_executor(), fixture.served.url(), fixture.plans(), {}, asio::deferred);
  std::vector<ClientRecord> deferred;
  std::move(later)([&](std::vector<ClientRecord> records) { deferred = std::move(records); });
  context.run();
  fixture.check(future.get());
  fixture.check(spawned.get());
  fixture.check(deferred);
}

TEST_CASE("the handler runs on its executor and is made with its allocator") {
  const Fixture fixture;
  asio::io_context context, other;
  auto strand = asio::make_strand(other);
  CountingMemory counting;
  std::optional<std::vector<ClientRecord>> got;
  async_stream_plans(context.get_executor(), fixture.served.url(), fixture.plans(), {},
                     asio::bind_allocator(std::pmr::polymorphic_allocator<>(&counting),
                                          asio::bind_executor(strand, [&](std::vector<ClientRecord> records) {
                                            CHECK(strand.running_in_this_thread());
                                            got = std::move(records);
                                          })));
  CHECK(counting.total > 0);
  context.run();
  CHECK_FALSE(got);
  other.run();
  REQUIRE(got);
  fixture.check(*got);
  CHECK(counting.live == 0);
}

TEST_CASE("cancellation cuts every session off, and each says so") {
  const Fixture fixture;
  asio::io_context context;
  asio::cancellation_signal signal;
  ClientOptions options;
  options.speed = 0.001;
  std::optional<std::vector<ClientRecord>> got;
  async_stream_plans(context.get_executor(), fixture.served.url(), fixture.plans(1), options,
                     asio::bind_cancellation_slot(signal.slot(), [&](std::vector<ClientRecord> records) { got = std::move(records); }));
  asio::steady_timer timer(context, std::chrono::milliseconds(50));
  timer.async_wait([&](error_code) { signal.emit(asio::cancellation_type::terminal); });
  context.run();
  REQUIRE(got);
  for (const ClientRecord& record : *got) CHECK(record.error == "cut off");
}

TEST_CASE("no plans complete at once, but not within the call") {
  asio::io_context context;
  bool done = false;
  async_stream_plans(context.get_executor(), StreamUrl(), {}, {}, [&](std::vector<ClientRecord> records) { done = records.empty(); });
  CHECK_FALSE(done);
  context.run();
  CHECK(done);
}

TEST_CASE("a session that the server refuses has its reason, and the others their bits") {
  Fixture fixture;
  std::vector<ClientPlan> plans = fixture.plans();
  plans.insert(plans.begin() + 1, ClientPlan());
  plans[1].start.inputs["nothing"] = InputRequest();
  std::vector<ClientRecord> records = stream_plans(fixture.served.url(), std::move(plans));
  REQUIRE(records.size() == 3);
  CHECK(records[1].error.starts_with("bad_input: "));
  records.erase(records.begin() + 1);
  fixture.check(records);
}

TEST_CASE("a server says what it takes and gives, and one that is not there is an error") {
  Fixture fixture;
  const StartedMessage server = describe_server(fixture.served.url());
  REQUIRE(server.inputs.size() == 1);
  CHECK(server.inputs[0].name == "x");
  CHECK(server.inputs[0].shape == DDim{features});
  CHECK(server.outputs.at(0).shape == DDim{hidden});
  const StreamUrl url = fixture.served.url();
  fixture.served.stop();
  CHECK_THROWS_AS(describe_server(url), IoError);
}

TEST_CASE("a server that breaks the protocol or goes away is named in the record") {
  const auto against = [](const std::string& answer) {
    asio::io_context context;
    asio::ip::tcp::acceptor acceptor(context, {asio::ip::make_address("127.0.0.1"), 0});
    StreamUrl url;
    url.host = "127.0.0.1";
    url.port = acceptor.local_endpoint().port();
    std::thread server([&] {
      auto socket = acceptor.accept();
      asio::write(socket, asio::buffer(answer));
      socket.shutdown(asio::ip::tcp::socket::shutdown_send);
      std::string rest(1000, '\0');
      error_code error;
      while (!error) socket.read_some(asio::buffer(rest), error);
    });
    const std::vector<ClientRecord> records = stream_plans(url, std::vector<ClientPlan>(1));
    server.join();
    return records.at(0).error;
  };
  const std::string started = encode_frame(text_message(to_json(StartedMessage())));
  CHECK(against("").find("before the end") != std::string::npos);
  CHECK(against(started).find("before the end") != std::string::npos);
  CHECK(against(encode_frame(text_message("{}"))).find("does not have") != std::string::npos);
  CHECK(against(started + started).find("does not have") != std::string::npos);
  CHECK(against(encode_frame(text_message(to_json(EndedMessage{3})))) != "");
}
