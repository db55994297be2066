// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/server.h>

#include <ctime>
#include <thread>

#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/tcp.hpp>
#include <boost/asio/read.hpp>
#include <boost/asio/write.hpp>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/client/stream_client.h>
#include <millrace/streaming/live/state_slab.h>
#include <millrace/streaming/protocol/frame.h>
#include <streaming/live/live_model.h>
#include <streaming/live/served.h>
#include <streaming/live/whole_clients.h>
#include <support/driven_device.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::int64_t features = 3, hidden = 4;

std::string read_to_end(asio::ip::tcp::socket& socket) {
  std::string all;
  boost::system::error_code error;
  asio::read(socket, asio::dynamic_buffer(all), error);
  return all;
}

/// Says start and some rows, and goes away without a word.
void vanish(const Served& served) {
  asio::io_context context;
  asio::ip::tcp::socket socket(context);
  socket.connect({asio::ip::make_address("127.0.0.1"), served.url().port});
  const std::string text = encode_frame(text_message(to_json(StartMessage()))) + encode_frame(binary_message(std::string(50, 'x')));
  asio::write(socket, asio::buffer(text));
}

/// The results that `who` sequences of a run get from the server, binary; how long each is does not matter.
std::vector<ClientRecord> lived(const Served& served, const WholeRun& whole, std::size_t who) {
  std::vector<ClientPlan> plans;
  for (std::size_t i = 0; i < who; ++i) plans.push_back(plan_for(whole, i, ReplyFormat::binary));
  return stream_plans(served.url(), std::move(plans));
}

/// The number of sessions that ended with `lost`, each with this text; the others must have the bits of the whole run.
std::size_t count_lost(const std::vector<ClientRecord>& records, const WholeRun& whole, const std::string& text) {
  std::size_t count = 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const std::string wanted = WholeRun::bytes(whole.outputs[i]);
    const std::string got = records[i].outputs.empty() ? "" : records[i].outputs[0];
    INFO("session ", i, ": ", records[i].error);
    if (records[i].error.empty()) {
      CHECK(got == wanted);
      continue;
    }
    CHECK(records[i].error.starts_with("lost: " + text));
    CHECK(wanted.starts_with(got));
    ++count;
  }
  return count;
}

}  // namespace

TEST_CASE("a server whose devices are lost one after another tells those concerned, serves the others, and then refuses") {
  Random random(5);
  const Program program = live_listing(random, features, hidden);
  const WholeRun whole(program, random, 8, 60, features, hidden);
  std::size_t works = 0;
  {
    Driven alone(1, {});
    const StateSlab slab(recurrence_of(program), alone.device());
    alone.settle();
    works = alone.sim().works();
  }
  Driven first(1, {.index = 0, .lose_work = works + 60, .late = true}), second(2, {.index = 1, .lose_work = works + 6000});
  ServerOptions options;
  options.devices = {first.device(), second.device()};
  std::vector<std::string> said;
  Served served(program, options);
  served.ask([&] {
    served.server->on_lost = [&said](const std::string& why, std::size_t, std::size_t left) {
      said.push_back(why + ", left " + std::to_string(left));
    };
  });
  const std::size_t lost = count_lost(lived(served, whole, 8), whole, "sim:0 is lost: sim:0: work took the device with it");
  CHECK(lost >= 1);
  CHECK(lost < 8);
  // New ones begin on the place that is left.
  CHECK(count_lost(lived(served, whole, 2), whole, "") == 0);
  std::size_t more = 0;
  for (int round = 0; round < 100 && more == 0; ++round) more = count_lost(lived(served, whole, 8), whole, "sim:1 is lost: sim:1");
  CHECK(more > 0);
  CHECK(count_lost(lived(served, whole, 2), whole, "no place is left: sim:0 is lost") == 2);
  const auto places = served.ask([&] { return served.server->places(); });
  REQUIRE(places.size() == 2);
  for (const Server::PlaceStats& one : places) {
    CHECK(one.lost.starts_with(one.place.to_string() + " is lost: "));
    CHECK(one.sessions == 0);
    CHECK(one.ticks.rows > 0);
  }
  served.stop();
  REQUIRE(said.size() == 2);
  CHECK(said[0].ends_with("left 1"));
  CHECK(said[1].ends_with("left 0"));
}

TEST_CASE("sessions over TCP and WebSocket get the bits of the whole run in random pieces, while others vanish") {
  for (const auto scheme : {StreamUrl::Scheme::tcp, StreamUrl::Scheme::ws})
    for (const std::uint64_t seed : seeds(3)) {
      INFO("seed ", seed, " scheme ", static_cast<int>(scheme));
      Random random(seed);
      const Program program = live_listing(random, features, hidden);
      const WholeRun whole(program, random, 12, 60, features, hidden);
      Served served(program);
      std::vector<ClientPlan> plans;
      for (std::size_t i = 0; i < 12; ++i) plans.push_back(plan_for(whole, i, random.coin() ? ReplyFormat::json : ReplyFormat::binary));
      ClientOptions options;
      options.next_piece = [&random](std::size_t) { return static_cast<std::size_t>(random.between(1, 90)); };
      for (int i = 0; i < 3; ++i) vanish(served);
      const std::vector<ClientRecord> records = stream_plans(served.url(scheme), std::move(plans), std::move(options));
      for (std::size_t i = 0; i < 12; ++i) {
        CHECK(records[i].error == "");
        REQUIRE(records[i].outputs.size() == 1);
        CHECK(records[i].outputs[0] == WholeRun::bytes(whole.outputs[i]));
        CHECK(records[i].steps == static_cast<std::uint64_t>(whole.rows[i].dim(0)));
      }
      served.stop();
      CHECK(served.server->live_sessions() == 0);
      CHECK(served.server->stats().rows >= records[0].received.size());
    }
}

TEST_CASE("strided pieces are sent when they are due") {
  Random random(1);
  const Program program = live_listing(random, features, hidden);
  const WholeRun whole(program, random, 1, 50, features, hidden);
  Served served(program);
  ClientPlan plan = plan_for(whole, 0, ReplyFormat::binary);
  const auto rows = static_cast<double>(whole.rows[0].dim(0));
  plan.unit_bytes = features * sizeof(float);
  plan.units_per_second = 100;
  ClientOptions options;
  options.speed = 2;
  const ClientRecord record = stream_plans(served.url(), {plan}, options).at(0);
  CHECK(record.error == "");
  CHECK(record.outputs.at(0) == WholeRun::bytes(whole.outputs[0]));
  for (std::size_t k = 0; k < record.received.size(); ++k)
    CHECK(std::chrono::duration<double>(record.received[k] - record.begun).count() >= static_cast<double>(k + 1) / 200 - 1e-6);
  CHECK(record.received.size() == static_cast<std::size_t>(rows));
}

TEST_CASE("a port in use and an address outside are refused by name") {
  Random random(1);
  const Program program = live_listing(random, features, hidden);
  Served served(program);
  ServerOptions options;
  options.port = served.url().port;
  asio::io_context context;
  const auto model = std::make_shared<const ServedModel>(program, StreamConfig());
  CHECK_THROWS_AS(Server(context, model, options), IoError);
  options.port = 0;
  options.address = "0.0.0.0";
  CHECK_THROWS_AS(Server(context, model, options), ArgumentError);
}

TEST_CASE("a model with a port whose name is longer than messages can say is refused by the port and the limit") {
  const auto refused = [](const std::string& input, const std::string& output) {
    Program program;
    {
      const build::Guard guard(program);
      build::output(output, build::tanh(build::input(input, VarType(DType::f32, {DDim::unknown, 2}, 1))));
    }
    asio::io_context context;
    try {
      Server(context, std::make_shared<const ServedModel>(program, StreamConfig()), ServerOptions());
    } catch (const ArgumentError& error) {
      return std::string(error.what());
    }
    return std::string();
  };
  const std::string most(255, 'a'), longer(256, 'b');
  CHECK(refused(most, most) == "");
  CHECK(refused(longer, most) == "server: input '" + longer + "': expected a name of at most 255 bytes, found 256");
  CHECK(refused(most, longer) == "server: output '" + longer + "': expected a name of at most 255 bytes, found 256");
}

TEST_CASE("a session too many is told to come back later, and those that live go on") {
  Random random(1);
  const Program program = live_listing(random, features, hidden);
  const WholeRun whole(program, random, 3, 40, features, hidden);
  ServerOptions options;
  options.limits.sessions = 2;
  Served served(program, options);
  std::vector<ClientPlan> plans;
  for (std::size_t i = 0; i < 3; ++i) plans.push_back(plan_for(whole, i, ReplyFormat::binary));
  const std::vector<ClientRecord> records = stream_plans(served.url(), std::move(plans));
  int refused = 0;
  for (std::size_t i = 0; i < 3; ++i) {
    if (records[i].error.starts_with("overload: "))
      ++refused;
    else
      CHECK(records[i].outputs.at(0) == WholeRun::bytes(whole.outputs[i]));
  }
  CHECK(refused == 1);
}

TEST_CASE("sessions are counted by the addresses that one client has: IPv4 within IPv6 as IPv4, IPv6 by its network of 64 bits") {
  Random random(1);
  ServerOptions options;
  options.limits.sessions_per_address = 2;
  Served served(live_listing(random, features, hidden), options);
  asio::io_context context;
  std::vector<std::unique_ptr<asio::ip::tcp::socket>> all;
  const auto taken = [&](Served& by, const char* peer) {
    asio::ip::tcp::acceptor acceptor(context, {asio::ip::make_address("127.0.0.1"), 0});
    auto& near = *all.emplace_back(std::make_unique<asio::ip::tcp::socket>(context));
    near.connect(acceptor.local_endpoint());
    asio::ip::tcp::socket far(by.context());
    acceptor.accept(far);
    by.ask([&] {
      by.server->serve(make_byte_stream(std::move(far)), asio::ip::make_address(peer));
      return 0;
    });
    asio::write(near, asio::buffer(encode_frame(text_message(to_json(StartMessage())))));
    std::string answer(40, '\0');
    asio::read(near, asio::buffer(answer));
    return answer.find("started") != answer.npos;
  };
  CHECK(taken(served, "2001:db8:0:1::1"));
  CHECK(taken(served, "2001:db8:0:1:ffff::2"));
  CHECK_FALSE(taken(served, "2001:db8:0:1:8000::3"));
  CHECK(taken(served, "2001:db8:0:2::1"));
  CHECK(taken(served, "192.0.2.1"));
  CHECK(taken(served, "::ffff:192.0.2.1"));
  CHECK_FALSE(taken(served, "::ffff:192.0.2.1"));
  CHECK(taken(served, "::ffff:192.0.2.2"));

  options.limits.sessions_per_address.reset();
  Served many(live_listing(random, features, hidden), options);
  int local = 0;
  for (int i = 0; i < 80; ++i) local += taken(many, "::ffff:127.0.0.1") ? 1 : 0;
  CHECK(local == 80);
}

TEST_CASE("a client that says nothing is told that its time is over") {
  Random random(1);
  const Program program = live_listing(random, features, hidden);
  ServerOptions options;
  options.limits.idle = std::chrono::milliseconds(100);
  Served served(program, options);
  ClientPlan silent;
  silent.bytes = std::string(24, '\0');
  silent.unit_bytes = 12;
  silent.units_per_second = 1;
  ClientOptions slow;
  slow.speed = 0.1;
  const ClientRecord record = stream_plans(served.url(), {silent}, slow).at(0);
  CHECK(record.error.starts_with("idle: "));
}

TEST_CASE("the time for the start is counted from the connection, however slowly it arrives") {
  Random random(1);
  ServerOptions options;
  options.limits.handshake = std::chrono::milliseconds(2000);
  Served served(live_listing(random, features, hidden), options);
  asio::io_context context;
  asio::ip::tcp::socket socket(context);
  const auto before = std::chrono::steady_clock::now();
  socket.connect({asio::ip::make_address("127.0.0.1"), served.url().port});
  std::this_thread::sleep_for(std::chrono::milliseconds(1800));
  asio::write(socket, asio::buffer(encode_frame(text_message(to_json(StartMessage()))).substr(0, 6)));
  CHECK(read_to_end(socket).find("\"code\":\"idle\"") != std::string::npos);
  CHECK(std::chrono::steady_clock::now() - before < std::chrono::milliseconds(3600));
}

TEST_CASE("what breaks the protocol is answered in words") {
  Random random(1);
  const Served served(live_listing(random, features, hidden));
  const auto answer = [&](const std::string& text) {
    asio::io_context context;
    asio::ip::tcp::socket socket(context);
    socket.connect({asio::ip::make_address("127.0.0.1"), served.url().port});
    asio::write(socket, asio::buffer(text));
    return read_to_end(socket);
  };
  CHECK(answer(std::string("\xff\xff\xff\xff", 4) + "B").find("expected a start of at most 16384 bytes") != std::string::npos);
  CHECK(answer(std::string("\x01\0\0\0X!", 6)).find("a frame or message that the protocol does not have") != std::string::npos);
}

TEST_CASE("draining answers what arrived, tells the sessions, and stops") {
  Random random(1);
  const Program program = live_listing(random, features, hidden);
  Served served(program);
  ClientPlan plan;
  plan.start.reply = ReplyFormat::binary;
  plan.bytes = std::string(24, '\0');
  plan.unit_bytes = 12;
  plan.units_per_second = 1;
  ClientOptions options;
  options.speed = 0.5;  // the second row is due long after the drain
  bool told = false;
  options.on_progress = [&](const ClientProgress& progress) {
    if (progress.steps == 1 && !told) {
      told = true;
      served.ask([&] { served.server->drain(); });
    }
  };
  const ClientRecord record = stream_plans(served.url(), {plan}, options).at(0);
  CHECK(record.error.starts_with("draining: "));
  CHECK(record.received.size() == 1);
  const ClientRecord late = stream_plans(served.url(), {plan}).at(0);
  CHECK(late.error.starts_with("cannot connect"));
}

TEST_CASE("an idle server uses no CPU") {
  Random random(1);
  Served served(live_listing(random, features, hidden));
  const std::vector<ClientRecord> warm = stream_plans(served.url(), std::vector<ClientPlan>(1));
  CHECK(warm[0].error == "");
  const auto used = [] {
    timespec time{};
    ::clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &time);
    return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
  };
  const double before = used();
  std::this_thread::sleep_for(std::chrono::seconds(2));
  CHECK(used() - before < 0.01);
}

TEST_CASE("a server may be destroyed by its own handlers") {
  Random random(8);
  const Program program = live_listing(random, features, hidden);
  const WholeRun whole(program, random, 1, 5, features, hidden);
  const auto model = std::make_shared<const ServedModel>(program, StreamConfig());
  const std::string captured(100, 'x');  // on the heap, and gone with the handler
  for (const bool after_a_session : {false, true}) {
    INFO("after a session ", after_a_session);
    asio::io_context context(1);
    auto server = std::make_unique<Server>(context, model, ServerOptions());
    std::string said;
    const auto destroy = [captured, &server, &said](const auto&...) {
      server.reset();
      said = captured;
    };
    if (after_a_session) {
      server->on_session_end = destroy;
      StreamUrl url;
      url.host = "127.0.0.1";
      url.port = server->port();
      async_stream_plans(context.get_executor(), url, {plan_for(whole, 0)}, ClientOptions(), [](const std::vector<ClientRecord>&) {});
    } else {
      server->on_stopped = destroy;
      server->drain();
    }
    context.run();
    CHECK(said == captured);
  }
}

TEST_CASE("a server that is destroyed behind its drain calls no handler") {
  Random random(8);
  const auto model = std::make_shared<const ServedModel>(live_listing(random, features, hidden), StreamConfig());
  asio::io_context context(1);
  auto server = std::make_unique<Server>(context, model, ServerOptions());
  bool called = false;
  server->on_stopped = [&called] { called = true; };
  server->drain();
  server.reset();
  context.run();
  CHECK_FALSE(called);
}
