// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/admin/server_report.h>

#include <nlohmann/json.hpp>

namespace millrace {
namespace {

using Json = nlohmann::ordered_json;
using Labels = std::vector<std::pair<std::string, std::string>>;

// A client's label is UTF-8, but an address or a reason of the system's need not be.
std::string text_of(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n"; }

Metric single(std::string name, std::string help, Metric::Kind kind, double value) {
  return {std::move(name), std::move(help), kind, {{{}, value, {}}}};
}
Metric counter(std::string name, std::string help, std::uint64_t value) {
  return single(std::move(name), std::move(help), Metric::Kind::counter, static_cast<double>(value));
}
Metric gauge(std::string name, std::string help, double value) {
  return single(std::move(name), std::move(help), Metric::Kind::gauge, value);
}
Metric histogram(std::string name, std::string help, const Histogram& values) {
  return {std::move(name), std::move(help), Metric::Kind::histogram, {{{}, 0, values}}};
}

Metric by_outcome(std::string name, std::string help, const OutcomeCounts& counts) {
  Metric metric{std::move(name), std::move(help), Metric::Kind::counter};
  for (std::size_t i = 0; i < OutcomeCounts::size; ++i)
    metric.samples.push_back({{{"outcome", std::string(OutcomeCounts::name(i))}}, static_cast<double>(counts.at(i)), {}});
  return metric;
}

/// A sample for each place.
template <class Value>
Metric by_place(std::string name, std::string help, Metric::Kind kind, const std::vector<Server::PlaceStats>& places, Value value) {
  Metric metric{std::move(name), std::move(help), kind};
  for (const Server::PlaceStats& one : places)
    metric.samples.push_back({{{"place", one.place.to_string()}}, static_cast<double>(value(one)), {}});
  return metric;
}

void add_places(std::vector<Metric>& all, const Server& server) {
  const std::vector<Server::PlaceStats> places = server.places();
  const auto add = [&](const char* name, const char* help, Metric::Kind kind, auto value) {
    all.push_back(by_place(name, help, kind, places, value));
  };
  using Stats = Server::PlaceStats;
  add("millrace_ticks_total", "Batches of steps that were run.", Metric::Kind::counter, [](const Stats& one) { return one.ticks.ticks; });
  add("millrace_steps_total", "Steps that were run: rows of ticks.", Metric::Kind::counter,
      [](const Stats& one) { return one.ticks.rows; });
  add("millrace_place_sessions", "Live sessions by the place of their state.", Metric::Kind::gauge,
      [](const Stats& one) { return one.sessions; });
  add("millrace_state_bytes", "Memory of the states of sessions.", Metric::Kind::gauge, [](const Stats& one) { return one.state_bytes; });
  add("millrace_step_seconds", "What a row of a tick took lately.", Metric::Kind::gauge,
      [](const Stats& one) { return one.seconds_a_row; });
  add("millrace_place_lost", "1 where the place was lost.", Metric::Kind::gauge, [](const Stats& one) { return one.lost.empty() ? 0 : 1; });
}

double rows_a_second(const Server& server) {
  double rows = 0;
  for (const Server::PlaceStats& one : server.places())
    if (one.lost.empty() && one.seconds_a_row > 0) rows += 1 / one.seconds_a_row;
  return rows;
}

}  // namespace

std::vector<Metric> metrics_of(const Server& server) {
  const ServerCounts& counts = server.counts();
  std::vector<Metric> all;
  all.push_back(gauge("millrace_sessions", "Live sessions.", static_cast<double>(server.live_sessions())));
  all.push_back(gauge("millrace_newcomers", "Connections that have not started.", static_cast<double>(server.newcomers())));
  all.push_back(gauge("millrace_max_sessions", "Live sessions that the server takes.", static_cast<double>(server.max_sessions())));
  all.push_back(gauge("millrace_waiting_rows", "Rows that wait for their step, about.", static_cast<double>(server.waiting_rows())));
  all.push_back(gauge("millrace_draining", "1 once the server goes away.", server.draining() ? 1 : 0));
  all.push_back(counter("millrace_connections_total", "Connections that were accepted.", counts.connections));
  all.push_back(counter("millrace_handshakes_failed_total", "Connections that broke or spoke another protocol.", counts.failed_handshakes));
  all.push_back(counter("millrace_requests_refused_total", "Tokens, origins and routes that are not allowed.", counts.refused_requests));
  all.push_back(counter("millrace_pages_total", "Pages given to browsers.", counts.pages));
  all.push_back(counter("millrace_sessions_started_total", "Sessions that started.", counts.sessions));
  all.push_back(by_outcome("millrace_sessions_ended_total", "Sessions that are over, by how they ended.", counts.ended));
  all.push_back(by_outcome("millrace_refusals_total", "Connections that ended before a session started, by why.", counts.refused));
  all.push_back(counter("millrace_messages_received_total", "Messages of clients.", counts.messages_in));
  all.push_back(counter("millrace_messages_sent_total", "Messages to clients.", counts.messages_out));
  all.push_back(counter("millrace_received_bytes_total", "Payloads of clients' messages.", counts.bytes_in));
  all.push_back(counter("millrace_sent_bytes_total", "Payloads of messages to clients.", counts.bytes_out));
  add_places(all, server);
  all.push_back(histogram("millrace_tick_rows", "Sessions that share a tick.", counts.tick_rows));
  all.push_back(histogram("millrace_tick_seconds", "What a tick takes.", counts.tick_seconds));
  all.push_back(histogram("millrace_queue_seconds", "What a session that was ready waited for its tick: of each tick the longest.",
                          counts.queue_seconds));
  all.push_back(
      histogram("millrace_response_seconds", "From data of a session that waited for nothing to its replies.", counts.response_seconds));
  return all;
}

std::string sessions_json(const Server& server) {
  Json all = Json::array();
  for (const Server::SessionInfo& one : server.sessions()) {
    Json session;
    session["number"] = one.number;
    session["address"] = one.address;
    session["session"] = one.label;
    session["steps"] = one.steps;
    session["waiting_rows"] = one.waiting_rows;
    session["seconds"] = one.seconds;
    all.push_back(std::move(session));
  }
  return text_of(Json{{"sessions", std::move(all)}});
}

std::string capacity_json(const Server& server) {
  const double rows = rows_a_second(server);
  const Server::Load load = server.load();
  Json json;
  json["sessions"] = server.live_sessions();
  json["max_sessions"] = server.max_sessions();
  json["newcomers"] = server.newcomers();
  json["waiting_rows"] = server.waiting_rows();
  json["rows_per_second"] = rows > 0 ? Json(rows) : Json();
  json["steps_per_second"] = load.capacity > 0 ? Json(load.capacity) : Json();
  json["steps_asked"] = load.asked;
  json["draining"] = server.draining();
  return text_of(json);
}

}  // namespace millrace
