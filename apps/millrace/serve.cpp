// SPDX-License-Identifier: Apache-2.0
#include <atomic>
#include <charconv>
#include <chrono>
#include <climits>
#include <cmath>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <new>
#include <optional>
#include <utility>

#include <sys/resource.h>

#include <fmt/format.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>
#include <boost/asio/signal_set.hpp>

#include <millrace/runtime/files/file.h>
#include <millrace/runtime/task/asio.h>
#include <millrace/runtime/task/usable_memory.h>
#include <millrace/runtime/trace/tracer.h>
#include <millrace/streaming/admin/admin_port.h>
#include <millrace/streaming/live/capacity.h>
#include <millrace/streaming/live/server.h>
#include <millrace/streaming/transport/tls.h>
#include <millrace/streaming/transport/token_set.h>

#include <support/standard_streams.h>

#include "commands.h"
#include "model_flags.h"
#include "origin.h"
#include "page.h"
#include "routes.h"
#include "serve_log.h"
#include "settings.h"

namespace millrace::app {
namespace {

struct ServeFlags {
  ModelFlags model;
  Routes routes;
  DeviceFlags device;
  ServerOptions server;
  std::uint16_t port = 0;
  double handshake_s = 5, stuck_s = 5, idle_s = 60, backlog_s = 5;
  std::size_t per_address = 0;
  std::string certificate, key, token_file;
  std::string admin;
  bool log_json = false, quiet = false, no_page = false;
  Settings settings;
  std::string stats;
  std::string state_key;
  double resume_s = 0;
  std::optional<double> capacity;
  double session_rate = 0;
  TraceFlags trace;
};

std::chrono::milliseconds milliseconds(double seconds) {
  return std::chrono::milliseconds(static_cast<std::int64_t>(std::ceil(seconds * 1000)));
}

/// A file that is written at the end is looked at before the start.
void check_writable(const char* flag, const std::string& file) {
  const std::filesystem::path path(file);
  const std::filesystem::path folder = path.has_parent_path() ? path.parent_path() : std::filesystem::path(".");
  std::error_code unknown;
  if (!std::filesystem::is_directory(folder, unknown) || std::filesystem::is_directory(path, unknown))
    throw UsageError(fmt::format("{}: expected a file in a folder that is there, found '{}'", flag, file));
}

/// The text with a blank or an apostrophe for each character that a string of JSON cannot hold as it is; a reason may quote names of a model's.
std::string json_text(std::string text) {
  for (char& c : text)
    if (static_cast<unsigned char>(c) < ' ' || c == '"' || c == '\\') c = c == '"' ? '\'' : ' ';
  return text;
}

std::string counts(const Batcher::Stats& stats) {
  return fmt::format("\"ticks\": {}, \"rows\": {}, \"largest\": {}", stats.ticks, stats.rows, stats.largest);
}

/// Counts of all places, and of each.
std::string stats_of(const Server& server) {
  std::string text = fmt::format("{{{}, \"backend\": \"{}\", \"places\": [", counts(server.stats()), json_text(server.backend()));
  const char* between = "";
  for (const Server::PlaceStats& one : server.places()) {
    text += fmt::format("{}{{\"model\": \"{}\", \"place\": \"{}\", {}, \"lost\": {}}}", std::exchange(between, ", "), one.model,
                        one.place.to_string(), counts(one.ticks), !one.lost.empty());
  }
  return text + "]}\n";
}

/// The files that SIGHUP reads again. Files that are wrong by then change nothing: the values in force stay.
class Credentials {
 public:
  explicit Credentials(const ServeFlags& flags) : certificate_(flags.certificate), key_(flags.key), token_file_(flags.token_file) {
    if (flags.certificate.empty() != flags.key.empty()) throw UsageError("serve: expected --tls-cert and --tls-key together");
    if (!flags.certificate.empty()) tls = std::make_shared<TlsServer>(flags.certificate, flags.key);
    if (!flags.token_file.empty()) tokens = std::make_shared<TokenSet>(flags.token_file);
  }
  void reload(ServeLog& log) {
    try {
      std::optional<TlsServer> certificate;
      std::optional<TokenSet> known;
      if (tls) certificate.emplace(certificate_, key_);
      if (tokens) known.emplace(token_file_);
      if (certificate) *tls = *std::move(certificate);  // all were good: none is taken without the others
      if (known) *tokens = *std::move(known);
      if (tls || tokens) log.say("reload", "certificate and tokens were read again");
    } catch (const Error& error) {
      log.say("reload", std::string("nothing was read again: ") + error.what());
    }
  }
  std::shared_ptr<TlsServer> tls;
  std::shared_ptr<TokenSet> tokens;

 private:
  std::string certificate_, key_, token_file_;
};

/// A terminal that closes takes no sessions along: SIGHUP reads the credentials again.
void on_hangup(asio::signal_set& signals, Credentials& credentials, ServeLog& log) {
  signals.async_wait([&signals, &credentials, &log](const boost::system::error_code& error, int) {
    if (error) return;
    credentials.reload(log);
    on_hangup(signals, credentials, log);
  });
}

/// --admin: [HOST:]PORT.
std::unique_ptr<AdminPort> make_admin(asio::io_context& context, const Server& server, const std::string& text) {
  if (text.empty()) return nullptr;
  const auto colon = text.rfind(':');
  std::string host = colon == text.npos ? "127.0.0.1" : text.substr(0, colon);
  if (host.starts_with('[') && host.ends_with(']')) host = host.substr(1, host.size() - 2);
  const std::string digits = colon == text.npos ? text : text.substr(colon + 1);
  std::uint16_t port = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), port);
  if (error != std::errc() || end != digits.data() + digits.size())
    throw UsageError("--admin: expected [HOST:]PORT with a port up to 65535, found '" + text + "'");
  return std::make_unique<AdminPort>(context, server, host, port);
}

std::string at(const std::string& address, std::uint16_t port) {
  return fmt::format(fmt::runtime(address.find(':') == address.npos ? "{}:{}" : "[{}]:{}"), address, port);
}

/// A server that other machines reach has TLS and tokens, or `--insecure`.
void check_reach(const ServerOptions& options) {
  boost::system::error_code error;
  const auto address = asio::ip::make_address(options.address, error);
  if (error || address.is_loopback() || options.insecure || (options.tls && options.tokens)) return;
  throw UsageError("--address " + options.address +
                   ": others can reach it: expected --tls-cert and --tls-key, and --token-file, or --insecure for a server without them");
}

/// The first signal drains, a second one ends the process.
void on_signal(asio::signal_set& signals, Server& server, bool& leaving, bool second) {
  signals.async_wait([&signals, &server, &leaving, second](const boost::system::error_code& error, int) {
    if (error) return;
    if (second) std::_Exit(1);
    leaving = true;
    server.drain();
    on_signal(signals, server, leaving, true);
  });
}

/// Sets the flags by which sessions continue on another connection or another server.
void take_session_flags(const ServeFlags& flags, ServerOptions& options) {
  if (!flags.state_key.empty()) options.state_key = std::make_shared<const StateKey>(StateKey::read(flags.state_key));
  options.limits.resume = milliseconds(flags.resume_s);
}

/// Steps a second of the route's model that the devices hold together: what was said, else what `budget` of warm-up shows.
std::string take_capacity(const ServeFlags& flags, const ServerOptions& options, std::chrono::duration<double> budget, ServedRoute& route) {
  const ServedModel& model = *route.model;
  Admission::Options& own = route.admission;
  own.session_rate = flags.session_rate;
  if (own.session_rate <= 0 && model.config().audio) own.session_rate = 1 / model.config().audio->step_seconds();
  own.capacity = flags.capacity.value_or(0);
  own.by_transport = !flags.capacity;
  std::string how = "as was said";
  if (!flags.capacity) {
    const std::chrono::duration<double> deadline(own.session_rate > 0 ? 1 / own.session_rate : 0.04);
    ServedCapacity measured = measure_capacity(model, options.devices, options.backend, options.max_rows, deadline, budget);
    own.capacity = measured.steps_per_second;
    how = std::move(measured.how);
  }
  if (own.capacity <= 0) return "capacity not known, " + how;
  std::string text = fmt::format("capacity {:.0f} steps a second, {}", own.capacity, how);
  if (own.session_rate > 0)
    text += fmt::format("; {:.0f} sessions of {:g} steps a second", own.capacity / own.session_rate, own.session_rate);
  return text;
}

/// The default model, then those of routes.
std::vector<ServedRoute> load_routes(const ServeFlags& flags) {
  const auto load_one = [](const ModelFlags& model) {
    const Model loaded = load(model);
    return naming(model.source(), [&] { return served(loaded); });
  };
  std::vector<ServedRoute> routes;
  routes.push_back({default_route, load_one(flags.model)});
  for (const auto& [name, model] : flags.routes.all()) routes.push_back({name, load_one(*model)});
  return routes;
}

/// The lines of stdout that tell of the models, each in its order of the routes.
std::vector<std::string> take_capacities(const ServeFlags& flags, const ServerOptions& options, std::vector<ServedRoute>& routes) {
  const auto others = flags.routes.all();
  const std::chrono::duration<double> budget(1.0 / static_cast<double>(routes.size()));
  std::vector<std::string> lines;
  for (ServedRoute& route : routes) {
    const auto found = others.find(route.name);
    std::string capacity = take_capacity(flags, options, budget, route);
    lines.push_back(found == others.end() ? std::move(capacity)
                                          : fmt::format("model {} is {}: {}", route.name, found->second->path, capacity));
  }
  return lines;
}

/// A connection takes a descriptor: the soft limit, which is often 1,024, becomes the hard one.
void raise_descriptor_limit() noexcept {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

/// Memory that is freed when other memory runs out. A large request fails all the same; Asio and the standard library, which do not survive every small
/// allocation that fails, go on with it. `renew` takes it again.
class MemoryReserve {
 public:
  MemoryReserve() {
    renew();
    std::set_new_handler(release);
  }
  ~MemoryReserve() {
    std::set_new_handler(nullptr);
    std::free(held.exchange(nullptr));
  }
  void renew() noexcept {
    constexpr std::size_t bytes = std::size_t{1} << 20;
    if (held == nullptr) held = std::malloc(bytes);
  }

 private:
  static void release() {
    void* const some = held.exchange(nullptr);
    if (some == nullptr) throw std::bad_alloc();
    std::free(some);
  }
  static inline std::atomic<void*> held{nullptr};
};

int serve(const ServeFlags& flags) {
  if (flags.settings.prints()) {
    std::fputs(flags.settings.text().c_str(), stdout);
    return 0;
  }
  raise_descriptor_limit();
  // A SIGHUP while models load waits, and kills nothing.
  asio::io_context context(1);
  asio::signal_set hangup(context, SIGHUP);
  if (!flags.stats.empty()) check_writable("--stats-json", flags.stats);
  ServerOptions options = flags.server;
  options.port = flags.port;
  DeviceFlags device = flags.device;
  if (device.memory_limit == 0) device.memory_limit = usable_memory() / 4 * 3;
  options.devices = device.make_all();
  options.backend = flags.device.chosen_backend();
  options.limits.handshake = milliseconds(flags.handshake_s);
  options.limits.stuck_writer = milliseconds(flags.stuck_s);
  options.limits.idle = milliseconds(flags.idle_s);
  options.limits.backlog = milliseconds(flags.backlog_s);
  Credentials credentials(flags);
  options.tls = credentials.tls;
  options.tokens = credentials.tokens;
  check_reach(options);
  if (flags.per_address > 0) options.limits.sessions_per_address = flags.per_address;
  take_session_flags(flags, options);
  Tracer tracer(flags.trace.options());
  if (flags.trace.any()) options.tracer = &tracer;
  std::vector<ServedRoute> routes = load_routes(flags);
  const std::vector<std::string> lines = take_capacities(flags, options, routes);
  const auto shown = std::make_shared<const Server*>(nullptr);
  if (!flags.no_page) options.pages = page_of(shown);
  Server server(context, std::move(routes), std::move(options));
  *shown = &server;
  const std::unique_ptr<AdminPort> admin = make_admin(context, server, flags.admin);
  ServeLog log(flags.log_json, flags.quiet);
  on_hangup(hangup, credentials, log);
  MemoryReserve reserve;
  server.on_session_end = [&log, &reserve](const Server::SessionEnd& end) {
    reserve.renew();  // the session may be the one that went for want of memory
    log.session(end);
  };
  server.on_scarce = [&log](const std::string& why) { log.say("scarce", "newcomers are refused for now: " + why); };
  asio::signal_set signals(context, SIGTERM, SIGINT);
  server.on_stopped = [&signals, &hangup, &admin] {
    signals.cancel();
    hangup.cancel();
    if (admin) admin->close();
  };
  bool leaving = false;
  on_signal(signals, server, leaving, false);
  int code = 0;
  server.on_lost = [&](const std::string& why, std::size_t sessions, std::size_t left) {
    code = failed;
    log.say("lost", fmt::format("{}; {} sessions were told; {}", why, sessions,
                                left == 0 ? "no place is left: going away" : fmt::format("places left: {}", left)));
    if (left == 0 && !std::exchange(leaving, true)) server.drain();
  };
  fmt::print("millrace: serving {} on {}\n", flags.model.path, at(server.address(), server.port()));
  for (const std::string& line : lines) fmt::print("millrace: {}\n", line);
  if (admin) fmt::print("millrace: administration on {}\n", at(admin->address(), admin->port()));
  std::fflush(stdout);
  run_servers(context, [&log](const std::string& what) { log.say("error", "a connection was ended: " + what); });

  if (!flags.stats.empty()) write_file(flags.stats, stats_of(server));
  flags.trace.finish(tracer);
  return code;
}

void add_access(CLI::App& command, ServeFlags& flags) {
  const auto add = [&command](const char* name, auto& value, const char* help) {
    return command.add_option(name, value, help)->group("Access");
  };
  add("--tls-cert", flags.certificate, "PEM file of the certificate and those between it and its authority: clients come by tcps and wss");
  add("--tls-key", flags.key, "PEM file of its private key, without a passphrase. SIGHUP reads both again, and --token-file");
  add("--token-file", flags.token_file, "A token a line, 16 to 128 characters of A-Z a-z 0-9 - . _ ~: a client shows one of them");
  add("--allow-origin,--origin", flags.server.origins, "An Origin of browsers that may connect, besides those of the server's own page")
      ->allow_extra_args(false)
      ->transform(browser_origin);
  command.add_flag("--insecure", flags.server.insecure, "Others may connect without TLS and a token")->group("Access");
}

void add_limits(CLI::App& command, ServeFlags& flags) {
  Limits& limits = flags.server.limits;
  const auto count = [&command](const char* name, std::size_t& value, const char* help) {
    command.add_option(name, value, help)->check(CLI::Range(std::size_t{1}, std::size_t{1} << 31))->capture_default_str()->group("Limits");
  };
  const auto seconds = [&command](const char* name, double& value, const char* help) {
    command.add_option(name, value, help)->check(within(0.001, 86400))->capture_default_str()->group("Limits");
  };
  command.add_option("--max-message", limits.message, "Bytes of one message")
      ->check(CLI::Range(std::size_t{1}, Limits::message_ceiling))
      ->capture_default_str()
      ->group("Limits");
  count("--max-control", limits.control, "Bytes of one control message");
  count("--max-start", limits.start, "Bytes of a start");
  count("--max-head", limits.request_head, "Bytes of an HTTP request head");
  seconds("--handshake-timeout", flags.handshake_s, "Seconds from a connection to its start");
  count("--max-chunks", limits.chunks_in, "Messages queued from a session before it is not read any more");
  count("--max-queued-in", limits.queued_in, "Bytes likewise");
  count("--max-queued-out", limits.queued_out, "Bytes of replies queued before a session stops stepping");
  seconds("--stuck-timeout", flags.stuck_s, "Seconds that a reply may wait for a client to take it");
  seconds("--idle-timeout,--idle-seconds", flags.idle_s, "Seconds of silence that end a session");
  count("--max-sessions", limits.sessions, "Live sessions");
  command
      .add_option("--max-sessions-per-address", flags.per_address,
                  "Live sessions of one address, whichever; else 64, and any number of a loopback address")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 31))
      ->group("Limits");
  command
      .add_option("--max-newcomers", limits.newcomers,
                  "Connections that have not started, of which the oldest goes for one more; as --max-sessions by default, but 256 or more")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 31))
      ->group("Limits");
  count("--max-waiting-rows", limits.waiting_rows, "Rows that wait in all sessions, beyond which no other may start");
  seconds("--max-backlog", flags.backlog_s, "Seconds that those rows take, likewise");
}

void add_session_flags(CLI::App& command, ServeFlags& flags) {
  command
      .add_option("--state-key-file", flags.state_key,
                  "A secret of 32 bytes or more, by which servers take each other's saved states; else one of this process")
      ->check(CLI::ExistingFile)
      ->group("Sessions");
  command
      .add_option("--resume-seconds", flags.resume_s,
                  "Seconds that a session which lost its connection waits for its ticket; 0: not at all")
      ->check(within(0, 86400))
      ->capture_default_str()
      ->group("Sessions");
  command
      .add_option("--resume-bytes", flags.server.limits.held_out,
                  "Bytes of replies of a session that are held for it until they are acknowledged")
      ->check(CLI::Range(std::size_t{1}, std::size_t{1} << 31))
      ->capture_default_str()
      ->group("Sessions");
  command
      .add_option(
          "--capacity", flags.capacity,
          "Steps a second that this machine holds, of each model alone; 0: no bound. Else a second of warm-up at the start measures it")
      ->check(within(0, 1e12))
      ->group("Sessions");
  command
      .add_option(
          "--session-rate", flags.session_rate,
          "Steps a second that a session is taken to need; else those of the model's audio. Beyond the capacity nobody else may start")
      ->check(within(0, 1e9))
      ->group("Sessions");
}

}  // namespace

void add_serve(CLI::App& app, Action& action) {
  const auto flags = std::make_shared<ServeFlags>();
  CLI::App* command = app.add_subcommand("serve", "Serves a model to live sessions over TCP and WebSocket; SIGTERM drains");
  flags->model.add_to(*command);
  flags->routes.add_to(*command, flags->settings);
  command->add_option("--port", flags->port, "0 takes a free one")->check(CLI::Range(0, 65535))->required();
  command->add_option("--address", flags->server.address, "Another than a loopback address takes TLS and tokens, or --insecure")
      ->capture_default_str();
  add_access(*command, *flags);
  flags->device.add_to(*command);
  command->add_option("--stats-json", flags->stats, "Writes counts of ticks and rows, and the backend of ticks, when the server ends");
  flags->trace.add_to(*command, "ticks and ops");
  command->add_option("--admin", flags->admin, "[HOST:]PORT of a loopback address for /health, /ready, /metrics, /sessions and /capacity");
  command->add_flag("--no-page", flags->no_page, "A browser gets no page at http://HOST:PORT/");
  command->add_flag("--log-json", flags->log_json, "Lines on stderr are JSON objects");
  command->add_flag("--quiet", flags->quiet, "No line for a session that ended, or whose client went");
  add_limits(*command, *flags);
  add_session_flags(*command, *flags);
  flags->settings.add_to(*command);
  command->callback([flags, &action] {
    flags->settings.apply();
    action = [flags] { return serve(*flags); };
  });
}

}  // namespace millrace::app
