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

std::vector<Metric::Sample> outcome_samples(const OutcomeCounts& counts, const Labels& more = {}) {
  std::vector<Metric::Sample> samples;
  for (std::size_t i = 0; i < OutcomeCounts::size; ++i) {
    Labels labels{{"outcome", std::string(OutcomeCounts::name(i))}};
    labels.insert(labels.end(), more.begin(), more.end());
    samples.push_back({std::move(labels), static_cast<double>(counts.at(i)), {}});
  }
  return samples;
}

/// A sample for each place.
template <class Value>
Metric by_place(std::string name, std::string help, Metric::Kind kind, const std::vector<Server::PlaceStats>& places, Value value) {
  Metric metric{std::move(name), std::move(help), kind};
  for (const Server::PlaceStats& one : places)
    metric.samples.push_back({{{"place", one.place.to_string()}, {"model", one.model}}, static_cast<double>(value(one)), {}});
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

/// Metrics with a sample for each model.
void add_models(std::vector<Metric>& all, const Server& server) {
  const std::vector<Server::ModelStats> models = server.models();
  using Stats = Server::ModelStats;
  const auto add = [&](const char* name, const char* help, Metric::Kind kind, auto value) {
    Metric metric{name, help, kind};
    for (const Stats& one : models) metric.samples.push_back({{{"model", one.name}}, static_cast<double>(value(one)), {}});
    all.push_back(std::move(metric));
  };
  const auto add_histogram = [&](const char* name, const char* help, Histogram ModelCounts::* values) {
    Metric metric{name, help, Metric::Kind::histogram};
    for (const Stats& one : models) metric.samples.push_back({{{"model", one.name}}, 0, one.counts->*values});
    all.push_back(std::move(metric));
  };
  add("millrace_sessions", "Live sessions.", Metric::Kind::gauge, [](const Stats& one) { return one.sessions; });
  add("millrace_waiting_rows", "Rows that wait for their step, about.", Metric::Kind::gauge,
      [](const Stats& one) { return one.waiting_rows; });
  add("millrace_sessions_started_total", "Sessions that started.", Metric::Kind::counter,
      [](const Stats& one) { return one.counts->sessions; });
  Metric ended{"millrace_sessions_ended_total", "Sessions that are over, by how they ended.", Metric::Kind::counter};
  for (const Stats& one : models)
    for (Metric::Sample& sample : outcome_samples(one.counts->ended, {{"model", one.name}})) ended.samples.push_back(std::move(sample));
  all.push_back(std::move(ended));
  add_histogram("millrace_tick_rows", "Sessions that share a tick.", &ModelCounts::tick_rows);
  add_histogram("millrace_tick_seconds", "What a tick takes.", &ModelCounts::tick_seconds);
  add_histogram("millrace_queue_seconds", "What a session that was ready waited for its tick: of each tick the longest.",
                &ModelCounts::queue_seconds);
  add_histogram("millrace_response_seconds", "From data of a session that waited for nothing to its replies.",
                &ModelCounts::response_seconds);
}

/// Steps a second that the places of a model hold by the time that their ticks took lately; null before the first.
Json rows_a_second(const std::vector<Server::PlaceStats>& places, const std::string& model) {
  double rows = 0;
  for (const Server::PlaceStats& one : places)
    if (one.model == model && one.lost.empty() && one.seconds_a_row > 0) rows += 1 / one.seconds_a_row;
  return rows > 0 ? Json(rows) : Json();
}

}  // namespace

std::vector<Metric> metrics_of(const Server& server) {
  const ServerCounts& counts = server.counts();
  std::vector<Metric> all;
  all.push_back(gauge("millrace_newcomers", "Connections that have not started.", static_cast<double>(server.newcomers())));
  all.push_back(gauge("millrace_max_sessions", "Live sessions that the server takes.", static_cast<double>(server.max_sessions())));
  all.push_back(gauge("millrace_draining", "1 once the server goes away.", server.draining() ? 1 : 0));
  all.push_back(gauge("millrace_used", "The part of the machine that sessions need, as admission takes it.", server.used()));
  all.push_back(counter("millrace_connections_total", "Connections that were accepted.", counts.connections));
  all.push_back(counter("millrace_handshakes_failed_total", "Connections that broke or spoke another protocol.", counts.failed_handshakes));
  all.push_back(counter("millrace_requests_refused_total", "Tokens, origins and routes that are not allowed.", counts.refused_requests));
  all.push_back(counter("millrace_pages_total", "Pages given to browsers.", counts.pages));
  all.push_back({"millrace_refusals_total", "Connections that ended before a session started, by why.", Metric::Kind::counter,
                 outcome_samples(counts.refused)});
  all.push_back(counter("millrace_messages_received_total", "Messages of clients.", counts.messages_in));
  all.push_back(counter("millrace_messages_sent_total", "Messages to clients.", counts.messages_out));
  all.push_back(counter("millrace_received_bytes_total", "Payloads of clients' messages.", counts.bytes_in));
  all.push_back(counter("millrace_sent_bytes_total", "Payloads of messages to clients.", counts.bytes_out));
  add_models(all, server);
  add_places(all, server);
  return all;
}

std::string sessions_json(const Server& server) {
  Json all = Json::array();
  for (const Server::SessionInfo& one : server.sessions()) {
    Json session;
    session["number"] = one.number;
    session["address"] = one.address;
    session["session"] = one.label;
    session["model"] = one.model;
    session["steps"] = one.steps;
    session["waiting_rows"] = one.waiting_rows;
    session["seconds"] = one.seconds;
    all.push_back(std::move(session));
  }
  return text_of(Json{{"sessions", std::move(all)}});
}

std::string capacity_json(const Server& server) {
  Json json;
  json["sessions"] = server.live_sessions();
  json["max_sessions"] = server.max_sessions();
  json["newcomers"] = server.newcomers();
  json["waiting_rows"] = server.waiting_rows();
  json["used"] = server.used();
  json["draining"] = server.draining();
  const std::vector<Server::PlaceStats> places = server.places();
  json["models"] = Json::array();
  for (const Server::ModelStats& one : server.models()) {
    Json model;
    model["model"] = one.name;
    model["sessions"] = one.sessions;
    model["waiting_rows"] = one.waiting_rows;
    model["rows_per_second"] = rows_a_second(places, one.name);
    model["steps_per_second"] = one.load.capacity > 0 ? Json(one.load.capacity) : Json();
    model["steps_asked"] = one.load.asked;
    json["models"].push_back(std::move(model));
  }
  // Of the default model, as it was before there were several.
  for (const char* key : {"rows_per_second", "steps_per_second", "steps_asked"}) json[key] = json["models"][0][key];
  return text_of(json);
}

}  // namespace millrace
