// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/admin/server_report.h>

#include <chrono>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include <boost/asio/read.hpp>
#include <boost/asio/read_until.hpp>
#include <boost/asio/write.hpp>

#include <doctest/doctest.h>
#include <nlohmann/json.hpp>

#include <millrace/streaming/client/stream_client.h>
#include <millrace/streaming/protocol/frame.h>
#include <streaming/live/live_model.h>
#include <streaming/live/served.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::int64_t features = 3, hidden = 4;

ClientPlan plan_of(std::size_t rows, const std::string& label) {
  ClientPlan plan;
  plan.start.session = label;
  plan.unit_bytes = features * sizeof(float);
  plan.bytes.resize(rows * plan.unit_bytes);
  return plan;
}

/// The value of each sample, by "name" or "name{label}"; histograms by their count.
std::map<std::string, double> values_of(const std::vector<Metric>& metrics) {
  std::map<std::string, double> values;
  for (const Metric& metric : metrics)
    for (const Metric::Sample& sample : metric.samples) {
      const std::string name = sample.labels.empty() ? metric.name : metric.name + "{" + sample.labels[0].second + "}";
      REQUIRE(values.emplace(name, sample.histogram ? static_cast<double>(sample.histogram->count()) : sample.value).second);
    }
  return values;
}

}  // namespace

TEST_CASE("metrics agree with what clients sent and got") {
  Random random(1);
  ServerOptions options;
  options.limits.sessions = 2;
  Served served(live_listing(random, features, hidden), options);
  std::vector<ClientPlan> plans{plan_of(10, "a"), plan_of(20, "b"), plan_of(5, "c")};
  const auto records = stream_plans(served.url(), plans);
  std::size_t refused = 0, steps = 0;
  for (const ClientRecord& record : records) {
    refused += record.error.empty() ? 0 : 1;
    steps += record.steps.value_or(0);
  }
  REQUIRE(refused == 1);
  const auto values = values_of(served.ask([&] { return metrics_of(*served.server); }));
  CHECK(values.at("millrace_connections_total") == 3);
  CHECK(values.at("millrace_sessions_started_total{default}") == 2);
  CHECK(values.at("millrace_sessions_ended_total{ended}") == 2);
  CHECK(values.at("millrace_refusals_total{overload}") == 1);
  CHECK(values.at("millrace_sessions_ended_total{failed}") == 0);
  CHECK(values.at("millrace_steps_total{cpu}") == static_cast<double>(steps));
  CHECK(values.at("millrace_tick_rows{default}") == values.at("millrace_ticks_total{cpu}"));
  CHECK(values.at("millrace_queue_seconds{default}") == values.at("millrace_ticks_total{cpu}"));
  CHECK(values.at("millrace_response_seconds{default}") >= 2);
  CHECK(values.at("millrace_received_bytes_total") > static_cast<double>(steps * features * sizeof(float)));
  CHECK(values.at("millrace_sent_bytes_total") > 0);
  CHECK(values.at("millrace_state_bytes{cpu}") > 0);
  CHECK(values.at("millrace_max_sessions") == 2);
  CHECK(values.at("millrace_draining") == 0);
  for (const auto& [name, value] : values) CHECK(name.starts_with("millrace_"));
}

TEST_CASE("a page, a request that is refused and a peer that says nothing are counted apart") {
  Random random(1);
  ServerOptions options;
  options.pages = std::make_shared<const HttpPages>([](const HttpQuestion& question) -> std::optional<HttpPage> {
    if (question.path != "/") return std::nullopt;
    return HttpPage();
  });
  Served served(live_listing(random, features, hidden), options);
  for (const char* said : {"GET / HTTP/1.0\r\n\r\n", "GET / HTTP/1.1\r\nHost: a\r\n\r\n", "GET /absent HTTP/1.0\r\n\r\n", "GE", ""}) {
    asio::io_context context;
    asio::ip::tcp::socket socket(context);
    socket.connect({asio::ip::make_address("127.0.0.1"), served.server->port()});
    asio::write(socket, asio::buffer(std::string(said)));
    socket.shutdown(asio::ip::tcp::socket::shutdown_send);
    std::string answer;
    error_code error;
    asio::read(socket, asio::dynamic_buffer(answer), error);
  }
  const auto values = values_of(served.ask([&] { return metrics_of(*served.server); }));
  CHECK(values.at("millrace_pages_total") == 2);
  CHECK(values.at("millrace_requests_refused_total") == 1);
  CHECK(values.at("millrace_handshakes_failed_total") == 2);
  CHECK(values.at("millrace_refusals_total{refused}") == 1);
  CHECK(values.at("millrace_refusals_total{gone}") == 4);
}

TEST_CASE("sessions are listed while they live, and capacity is known once ticks ran") {
  Random random(1);
  Served served(live_listing(random, features, hidden));
  const auto capacity = [&] { return nlohmann::json::parse(served.ask([&] { return capacity_json(*served.server); })); };
  CHECK(capacity()["rows_per_second"].is_null());
  CHECK(nlohmann::json::parse(served.ask([&] { return sessions_json(*served.server); }))["sessions"].empty());

  asio::io_context context;
  asio::ip::tcp::socket socket(context);
  socket.connect({asio::ip::make_address("127.0.0.1"), served.server->port()});
  StartMessage start;
  start.session = "kitchen";
  asio::write(socket, asio::buffer(encode_frame(text_message(to_json(start))) + encode_frame(binary_message(std::string(2 * 12, '\0')))));
  nlohmann::json sessions;
  for (int tries = 0; tries < 500 && (sessions.empty() || sessions[0]["steps"] != 2); ++tries) {
    std::this_thread::sleep_for(std::chrono::milliseconds(10));
    sessions = nlohmann::json::parse(served.ask([&] { return sessions_json(*served.server); }))["sessions"];
  }
  REQUIRE(sessions.size() == 1);
  CHECK(sessions[0]["session"] == "kitchen");
  CHECK(sessions[0]["model"] == "default");
  CHECK(sessions[0]["steps"] == 2);
  CHECK(sessions[0]["address"] == "127.0.0.1");
  CHECK(capacity()["rows_per_second"].get<double>() > 0);
  CHECK(capacity()["sessions"] == 1);
  CHECK(capacity()["steps_per_second"].is_null());  // nobody said or measured what this server holds
  CHECK(capacity()["steps_asked"].is_number());
  REQUIRE(capacity()["models"].size() == 1);
  CHECK(capacity()["models"][0]["model"] == "default");
  CHECK(capacity()["models"][0]["rows_per_second"] == capacity()["rows_per_second"]);
}

TEST_CASE("the silence of a client is no part of a response") {
  Random random(1);
  Served served(live_listing(random, features, hidden));
  const auto seconds = [&] { return served.ask([&] { return served.server->models()[0].counts->response_seconds.sum(); }); };
  const auto say = [](asio::ip::tcp::socket& socket, const Message& message) { asio::write(socket, asio::buffer(encode_frame(message))); };
  for (const ReplyFormat reply : {ReplyFormat::none, ReplyFormat::json}) {
    asio::io_context context;
    asio::ip::tcp::socket socket(context);
    socket.connect({asio::ip::make_address("127.0.0.1"), served.server->port()});
    StartMessage start;
    start.reply = reply;
    say(socket, text_message(to_json(start)));
    // A row whose reply nobody wants; a part of a row, which has none.
    say(socket, binary_message(std::string(reply == ReplyFormat::none ? 12 : 5, '\0')));
    std::this_thread::sleep_for(std::chrono::milliseconds(1200));
    say(socket, text_message(to_json(FlushMessage())));
    std::string answers;
    asio::read_until(socket, asio::dynamic_buffer(answers), "flushed");
    CHECK(seconds() < 1);
  }
}
