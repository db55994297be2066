// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/client/stream_client.h>

#include <array>
#include <atomic>
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
#include <streaming/live/whole_clients.h>
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
    std::vector<ClientPlan> made{plan_for(whole, 0), plan_for(whole, 1)};
    for (std::size_t i = 0; i < 2; ++i) {
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

/// A port before a server that may change, whose connections break. On a thread of its own.
class Relay {
 public:
  explicit Relay(std::uint16_t target)
      : acceptor_(context_, {asio::ip::make_address("127.0.0.1"), 0}), target_(target), thread_([this] {
          accept();
          context_.run();
        }) {}
  ~Relay() {
    asio::post(context_, [this] {
      acceptor_.close();
      cut();
    });
    thread_.join();
  }
  StreamUrl url() const {
    StreamUrl url;
    url.host = "127.0.0.1";
    url.port = acceptor_.local_endpoint().port();
    return url;
  }
  /// Each of the next `times` connections breaks when so many bytes came back through it, both from the server's and the client's view.
  void break_after(std::size_t bytes, int times) {
    asio::post(context_, [this, bytes, times] {
      bytes_ = bytes;
      times_ = times;
    });
  }
  void lead_to(std::uint16_t target) {
    asio::post(context_, [this, target] { target_ = target; });
  }
  /// Breaks all connections, after which new ones lead to `target`.
  void switch_to(std::uint16_t target) {
    asio::post(context_, [this, target] {
      target_ = target;
      cut();
    });
  }
  int broken() const { return broken_; }
  /// Pieces of what clients said that hold an acknowledgement.
  int acknowledgements() const { return acknowledgements_; }

 private:
  struct Pair {
    explicit Pair(asio::io_context& context) : near(context), far(context) {}
    void cut() {
      boost::system::error_code ignored;
      for (auto* one : {&near, &far}) {
        one->set_option(asio::socket_base::linger(true, 0), ignored);
        one->close(ignored);
      }
    }
    asio::ip::tcp::socket near, far;
    std::array<char, 512> there{}, back{};
    std::size_t came_back = 0;
  };
  void accept() {
    auto pair = std::make_shared<Pair>(context_);
    acceptor_.async_accept(pair->near, [this, pair](boost::system::error_code error) {
      if (error) return;
      pair->far.connect({asio::ip::make_address("127.0.0.1"), target_}, error);
      if (!error) {
        pairs_.push_back(pair);
        carry(pair, pair->near, pair->far, pair->there);
        carry(pair, pair->far, pair->near, pair->back);
      }
      accept();
    });
  }
  void carry(const std::shared_ptr<Pair>& pair, asio::ip::tcp::socket& from, asio::ip::tcp::socket& to, std::array<char, 512>& buffer) {
    from.async_read_some(asio::buffer(buffer), [this, pair, &from, &to, &buffer](boost::system::error_code error, std::size_t count) {
      boost::system::error_code ignored;
      if (error) {
        to.shutdown(asio::ip::tcp::socket::shutdown_send, ignored);
        return;
      }
      if (&from == &pair->far)
        pair->came_back += count;
      else if (std::string_view(buffer.data(), count).find("\"type\":\"acknowledge\"") != std::string_view::npos)
        ++acknowledgements_;
      if (times_ > 0 && pair->came_back >= bytes_) {
        --times_;
        ++broken_;
        return pair->cut();
      }
      asio::write(to, asio::buffer(buffer, count), ignored);
      carry(pair, from, to, buffer);
    });
  }
  void cut() {
    for (const auto& pair : pairs_) pair->cut();
    pairs_.clear();
  }

  asio::io_context context_{1};
  asio::ip::tcp::acceptor acceptor_;
  std::uint16_t target_;
  std::size_t bytes_ = 0;
  int times_ = 0;
  std::atomic<int> broken_{0}, acknowledgements_{0};
  std::vector<std::shared_ptr<Pair>> pairs_;
  std::thread thread_;
};

ClientOptions reconnecting() {
  ClientOptions options;
  options.piece_bytes = 50;
  options.reconnect = std::chrono::seconds(60);
  return options;
}

asio::awaitable<std::vector<ClientRecord>> stream_in_coroutine(StreamUrl url, std::vector<ClientPlan> plans) {
  const auto executor = co_await asio::this_coro::executor;
  auto records = co_await async_stream_plans(executor, url, std::move(plans), ClientOptions(), asio::use_awaitable);
  co_return records;
}

}  // namespace

TEST_CASE("a server that ends a session before its last row, and one that is silent behind its start, are named") {
  asio::io_context context;
  asio::ip::tcp::acceptor acceptor(context, {asio::ip::make_address("127.0.0.1"), 0});
  StartedMessage started;
  PortSpec port;
  port.name = "x";
  port.shape = DDim{1};
  started.inputs = {port};
  started.reply = ReplyFormat::none;
  std::thread server([&] {
    for (const bool ends : {true, true, false}) {
      asio::ip::tcp::socket socket = acceptor.accept();
      asio::write(socket, asio::buffer(encode_frame(text_message(to_json(started)))));
      if (ends) asio::write(socket, asio::buffer(encode_frame(text_message(to_json(EndedMessage{2})))));
      std::string rest;
      boost::system::error_code ended;
      asio::read(socket, asio::dynamic_buffer(rest), ended);
    }
  });
  StreamUrl url;
  url.host = "127.0.0.1";
  url.port = acceptor.local_endpoint().port();
  ClientPlan plan;
  plan.bytes = std::string(8, '\0');
  CHECK(stream_plans(url, {plan}).at(0).error == "");
  plan.bytes = std::string(12, '\0');
  const std::string few = stream_plans(url, {plan}).at(0).error;
  CHECK(few.find("ended.steps: expected 3 in all, as many as rows that there are to send, found 2") != std::string::npos);
  ClientOptions options;
  options.silence = std::chrono::milliseconds(200);
  CHECK(stream_plans(url, {plan}, options).at(0).error == "the server said nothing for 200 ms, and owes replies");
  server.join();
}

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
  CHECK(against(started + encode_frame(text_message(to_json(FlushedMessage{0})))).find("expected 'flushed' 0 times") != std::string::npos);
  CHECK(against(started + encode_frame(text_message(to_json(ResetDoneMessage{0})))).find("expected 'reset' 0 times") != std::string::npos);
  CHECK(against(started + encode_frame(text_message(to_json(SavedMessage{0, 0, "AAAA"})))).find("expected 'saved' 0 times") !=
        std::string::npos);
  StartedMessage with_rows;
  PortSpec row;
  row.name = "x";
  row.shape = DDim{1};
  with_rows.inputs = {row};
  row.name = "y";
  with_rows.outputs = {row};
  with_rows.reply = ReplyFormat::binary;
  const std::string takes_rows = encode_frame(text_message(to_json(with_rows)));
  CHECK(against(takes_rows + encode_frame(text_message(to_json(EndedMessage{3})))).find("ended.steps: expected 0") != std::string::npos);
  // One step, of which no row was sent.
  const std::string step =
      std::string(8, '\0') + std::string("\x01\0\0\0\x01\x01y", 7) + std::string("\x04\0\0\0", 4) + std::string(4, '\0');
  CHECK(against(takes_rows + encode_frame(binary_message(step))).find("expected at most 0 steps") != std::string::npos);
}

TEST_CASE("sessions whose connections break go on by their tickets, and each result comes once") {
  Random random(1);
  const Program program = live_listing(random, features, hidden);
  const WholeRun whole(program, random, 2, 400, features, hidden);
  ServerOptions options;
  options.limits.resume = std::chrono::seconds(60);
  options.limits.held_out = 1 << 20;  // all: a busy machine may read, and acknowledge, late
  Served served(program, options);
  Relay relay(served.url().port);
  relay.break_after(1500, 4);
  std::vector<ClientPlan> plans{plan_for(whole, 0), plan_for(whole, 1)};
  ClientOptions how = reconnecting();
  std::vector<std::uint64_t> told(2, 0);
  how.on_result = [&told](std::size_t session, const ResultMessage& result, double) {
    CHECK(result.seq == told[session]);
    told[session] += result.steps;
  };
  const std::vector<ClientRecord> records = stream_plans(relay.url(), plans, how);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(records[i].error == "");
    CHECK(records[i].outputs.at(0) == WholeRun::bytes(whole.outputs[i]));
    CHECK(records[i].restarted == 0);
    CHECK(told[i] == static_cast<std::uint64_t>(whole.rows[i].dim(0)));
  }
  CHECK(relay.broken() > 0);
  CHECK(relay.acknowledgements() > 0);
  // A connection that breaks while its session resumes may take the server's answer with it; that resumption counts once, later.
  CHECK(records[0].resumed + records[1].resumed > 0);
  CHECK(records[0].resumed + records[1].resumed <= static_cast<std::size_t>(relay.broken()));
}

TEST_CASE("a session goes on at another server when its own drains, and starts over when its own is lost") {
  for (const bool drains : {true, false}) {
    INFO("drains ", drains);
    Random random(1);
    const Program program = live_listing(random, features, hidden);
    const WholeRun whole(program, random, 1, 400, features, hidden);
    ServerOptions options;
    bool saves = true;
    try {
      options.state_key = std::make_shared<const StateKey>(std::string(32, 'k'));
    } catch (const UnsupportedError&) {
      saves = false;
    }
    Served first(program, options), second(program, options);
    Relay relay(first.url().port);
    ClientPlan plan = plan_for(whole, 0);
    plan.unit_bytes = features * sizeof(float);
    plan.units_per_second = 400;
    ClientOptions how = reconnecting();
    how.speed = 1;
    std::uint64_t told = 0;
    std::thread leaving;
    how.on_result = [&](std::size_t, const ResultMessage& result, double) {
      CHECK(result.seq == told);
      ++told;
      if (told != 20) return;
      drains ? relay.lead_to(second.url().port) : relay.switch_to(second.url().port);
      if (drains) leaving = std::thread([&first] { first.stop(); });
    };
    const ClientRecord record = stream_plans(relay.url(), {plan}, how).at(0);
    if (leaving.joinable()) leaving.join();
    CHECK(record.error == "");
    CHECK(record.outputs.at(0) == WholeRun::bytes(whole.outputs[0]));
    CHECK(record.restarted == 1);
    CHECK(record.resumed == 0);
    const std::uint64_t elsewhere = second.ask([&] { return second.server->stats().rows; });
    const auto rows = static_cast<std::uint64_t>(whole.rows[0].dim(0));
    CHECK(elsewhere == (drains && saves ? rows - first.server->stats().rows : rows));
  }
}

TEST_CASE("a plan that is saved gives the state from which another plan goes on") {
  Fixture fixture;
  std::vector<ClientPlan> plans = fixture.plans();
  std::vector<ClientPlan> rest(2);
  for (std::size_t i = 0; i < 2; ++i) {
    const std::size_t cut = plans[i].bytes.size() / 2 + 1;  // inside a row
    rest[i].start.reply = ReplyFormat::binary;
    rest[i].bytes = plans[i].bytes.substr(cut);
    plans[i].bytes.resize(cut);
    plans[i].save = true;
  }
  const std::vector<ClientRecord> before = stream_plans(fixture.served.url(), plans);
  if (before[0].error.find("openssl") != std::string::npos) {
    MESSAGE("skipped: ", before[0].error);
    return;
  }
  for (std::size_t i = 0; i < 2; ++i) {
    REQUIRE(before[i].error == "");
    REQUIRE(before[i].state);
    rest[i].start.state = before[i].state;
  }
  const std::vector<ClientRecord> after = stream_plans(fixture.served.url(), rest);
  for (std::size_t i = 0; i < 2; ++i) {
    CHECK(after[i].error == "");
    CHECK(before[i].outputs.at(0) + after[i].outputs.at(0) == WholeRun::bytes(fixture.whole.outputs[i]));
    CHECK(before[i].steps == before[i].received.size());
  }
}

TEST_CASE("a server that takes a session again and again and never gets further is given up") {
  asio::io_context context;
  asio::ip::tcp::acceptor acceptor(context, {asio::ip::make_address("127.0.0.1"), 0});
  std::atomic<int> connections{0};
  std::thread server([&] {
    StartedMessage started;
    PortSpec input;
    input.name = "x";
    input.shape = {1};
    started.inputs = {input};
    for (;;) {
      boost::system::error_code error;
      asio::ip::tcp::socket socket(context);
      acceptor.accept(socket, error);
      if (error || ++connections == 100) return;
      asio::write(socket, asio::buffer(encode_frame(text_message(to_json(started)))), error);
    }
  });
  StreamUrl url;
  url.host = "127.0.0.1";
  url.port = acceptor.local_endpoint().port();
  const ClientRecord record = stream_plans(url, std::vector<ClientPlan>(1), reconnecting()).at(0);
  CHECK(record.error != "");
  CHECK(connections < 20);
  connections = 99;
  boost::system::error_code ignored;
  asio::ip::tcp::socket(context).connect(acceptor.local_endpoint(), ignored);
  server.join();
}
