// SPDX-License-Identifier: Apache-2.0
#include <service_soak/world.h>

#include <algorithm>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/ip/address.hpp>

#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/live/server.h>
#include <millrace/streaming/protocol/data.h>
#include <millrace/streaming/protocol/frame.h>
#include <millrace/streaming/protocol/result.h>
#include <millrace/streaming/transport/token_set.h>
#include <service_soak/faulty_device.h>
#include <service_soak/machine.h>
#include <service_soak/talk.h>
#include <service_soak/wire.h>
#include <support/pieces.h>

namespace millrace::simulated {
namespace {

using testing::Random;
using testing::WholeRun;
using namespace std::chrono_literals;

/// A breach of what the service promises.
struct Wrong {
  std::string what;
};

Message said(const auto& message) { return text_message(to_json(message)); }
constexpr const char *right_token = "the-right-token-of-this-world", *wrong_token = "a-token-that-nobody-ever-gave";

/// One process that serves.
struct Process {
  Process(const Models& models, const ServerOptions& options)
      : device(std::make_shared<FaultyDevice>()), server(std::make_unique<Server>(context, models.model, with_device(options))) {
    server->on_stopped = [this] { stopped = true; };
    server->on_session_end = [this](const Server::SessionEnd& end) { ends.push_back(end); };
  }
  ~Process() {
    // A place lives as long as its tick is out.
    while (Machine::waiting() > 0) Machine::run(0);
    for (const auto& wire : wires) wire->sever();
    server.reset();
  }
  ServerOptions with_device(ServerOptions options) const {
    options.devices = {device};
    return options;
  }

  asio::io_context context{1};
  std::shared_ptr<FaultyDevice> device;
  std::vector<std::shared_ptr<Wire>> wires;
  std::vector<Server::SessionEnd> ends;
  bool stopped = false;
  const std::shared_ptr<bool> may_fail = std::make_shared<bool>(false);  // a fault was injected
  std::unique_ptr<Server> server;
};

enum class Kind { honest, vanishing, silent, flooding, stalling, hostile, forging, intruding };

/// One sequence on its way through servers, or somebody who has none.
struct Client {
  Kind kind = Kind::honest;
  std::size_t sequence = 0;
  std::vector<Message> messages;

  std::shared_ptr<Wire> wire;
  const Process* process = nullptr;  // that the wire leads to, while there is one
  std::shared_ptr<bool> may_fail;
  std::optional<Talk> talk;
  ReplyReader replies;
  std::string ticket;
  std::optional<SavedMessage> state;  // its `messages` count from the first of all
  std::size_t base = 0;               // messages that the start of this session held already
  std::size_t sent = 0;               // of all
  std::uint64_t first_seq = 0, steps = 0;
  std::uint64_t got = 0;  // messages of the session's
  std::string bytes;      // of results
  Machine::Clock::time_point not_before{};
  bool resuming = false, started = false, ended = false, over = false;
  std::string error;
  std::uint64_t trace = 0xcbf29ce484222325;
};

class World {
 public:
  World(const Models& models, std::uint64_t seed, std::uint64_t drop_reply) : models_(models), random_(seed), drop_reply_(drop_reply) {
    Machine::reset();
    draw_options();
    processes_.push_back(std::make_unique<Process>(models_, options_));
    const auto clients = draw(2, 7);
    for (std::int64_t i = 0; i < clients; ++i) clients_.push_back(draw_client());
  }

  Outcome run() {
    Outcome outcome;
    try {
      for (std::size_t decisions = 0; !settled(); ++decisions) {
        if (decisions > 300000) throw Wrong{"a client that does all it should got nowhere: " + stuck()};
        decide();
      }
      while (!processes_.empty()) end_process(*processes_.back(), true);
      for (const Client& client : clients_) check(client);
    } catch (const Wrong& wrong) {
      outcome.wrong = wrong.what;
    } catch (const std::exception& error) {
      outcome.wrong = error.what();
    }
    for (const Client& client : clients_) outcome.trace = outcome.trace * 31 + client.trace;
    outcome.counts = counts_;
    clients_.clear();
    processes_.clear();
    return outcome;
  }

 private:
  std::int64_t draw(std::int64_t low, std::int64_t high) { return random_.between(low, high); }
  bool rarely(std::int64_t one_in) { return draw(1, one_in) == 1; }

  // ---- The world as it begins ----

  void draw_options() {
    Limits& limits = options_.limits;
    limits.queued_in = static_cast<std::size_t>(draw(1, 300));
    limits.queued_out = static_cast<std::size_t>(draw(1, 600));
    limits.chunks_in = static_cast<std::size_t>(draw(1, 4));
    limits.sessions = static_cast<std::size_t>(draw(1, 6));
    limits.newcomers = static_cast<std::size_t>(draw(2, 6));
    limits.idle = 30s;
    if (random_.coin()) limits.resume = std::chrono::milliseconds(draw(100, 20000));
    limits.held_out = static_cast<std::size_t>(draw(100, 4000));
    options_.max_rows = static_cast<std::size_t>(draw(1, 8));
    options_.state_key = models_.key;
    if (random_.coin()) options_.tokens = std::make_shared<const TokenSet>(TokenSet::of({right_token, "another-token-of-this-world"}));
    if (rarely(3)) {
      options_.admission.capacity = static_cast<double>(draw(25, 100));
      options_.admission.session_rate = 25;
    }
  }
  Client draw_client() {
    Client client;
    constexpr Kind kinds[] = {Kind::honest,   Kind::honest,   Kind::honest,  Kind::vanishing, Kind::silent,
                              Kind::flooding, Kind::stalling, Kind::hostile, Kind::forging,   Kind::intruding};
    client.kind = clients_.empty() ? Kind::honest : kinds[draw(0, std::size(kinds) - 1)];
    client.sequence = static_cast<std::size_t>(draw(0, Models::sequences - 1));
    const std::string rows = WholeRun::bytes(models_.whole.rows[client.sequence]);
    for (const auto piece : testing::cut_anywhere(testing::bytes_of(rows), random_)) {
      client.messages.push_back(encode_data({}, piece));
      if (rarely(6)) client.messages.push_back(text_message(to_json(FlushMessage())));
      if (models_.key && rarely(6)) client.messages.push_back(text_message(to_json(SaveMessage())));
    }
    client.messages.push_back(text_message(to_json(EndMessage())));
    return client;
  }

  // ---- What happens next ----

  bool wants_an_end(const Client& client) const {
    return client.kind == Kind::honest || client.kind == Kind::flooding || client.kind == Kind::vanishing;
  }
  bool settled() const {
    return std::all_of(clients_.begin(), clients_.end(), [&](const Client& client) { return client.over || !wants_an_end(client); });
  }
  std::string stuck() const {
    for (std::size_t i = 0; i < clients_.size(); ++i)
      if (const Client& one = clients_[i]; wants_an_end(one) && !one.over)
        return fmt::format("client {} of kind {}, {} of {} messages sent, {} steps, last error '{}'", i, static_cast<int>(one.kind),
                           one.sent, one.messages.size(), one.steps, one.error);
    return {};
  }
  Process& current() { return *processes_.back(); }

  void poll() {
    for (const auto& process : processes_) {
      process->context.restart();
      process->context.poll();
      check_limits(*process);
    }
    for (std::size_t i = 0; i + 1 < processes_.size(); ++i)
      if (processes_[i]->stopped) {
        end_process(*processes_[i], false);
        break;
      }
  }
  void check_limits(Process& process) const {
    if (process.server->live_sessions() > options_.limits.sessions) throw Wrong{"more sessions than the server takes"};
    if (process.server->newcomers() > options_.limits.newcomers) throw Wrong{"more newcomers than the server takes"};
  }

  void decide() {
    const std::int64_t what = draw(0, 99);
    if (what < 25) {
      if (Machine::waiting() > 0) Machine::run(static_cast<std::size_t>(draw(0, static_cast<std::int64_t>(Machine::waiting()) - 1)));
    } else if (what < 50) {
      deliver();
    } else if (what < 94) {
      act(clients_[static_cast<std::size_t>(draw(0, static_cast<std::int64_t>(clients_.size()) - 1))]);
    } else if (what < 98) {
      pass_time();
    } else {
      fate();
    }
    poll();
  }
  void deliver() {
    Client& client = clients_[static_cast<std::size_t>(draw(0, static_cast<std::int64_t>(clients_.size()) - 1))];
    if (client.wire && client.wire->can_deliver())
      client.wire->deliver(static_cast<std::size_t>(random_.coin() ? draw(1, 9) : draw(1, 2000)));
  }
  /// Mostly a little; now and then until something is due.
  void pass_time() {
    const auto next = Machine::next_timer();
    if (next && rarely(8)) return Machine::advance(std::max(*next - Machine::Clock::now(), Machine::Clock::duration(0)));
    Machine::advance(std::chrono::microseconds(draw(0, 40000)));
  }
  void fate() {
    if (!rarely(6)) return;
    switch (draw(0, 5)) {
      case 0:
      case 1:
        if (started_processes_ < 4) {
          note("drained");
          replace();
          processes_[processes_.size() - 2]->server->drain();
        }
        break;
      case 2:
        if (started_processes_ < 4) {
          note("killed");
          replace();
          kill(*processes_[processes_.size() - 2]);
        }
        break;
      case 3:
        note("memory ran out");
        *current().may_fail = true;
        current().device->faults().fail(static_cast<std::size_t>(draw(1, 20)));
        break;
      case 4:
        if (!rarely(4) || started_processes_ == 4) break;
        note("device lost");
        *current().may_fail = true;
        current().device->lose();
        current().device->faults().fail(static_cast<std::size_t>(draw(1, 5)));
        replace();
        processes_[processes_.size() - 2]->server->drain();
        break;
      default: fork_one();
    }
  }
  void replace() {
    ++started_processes_;
    processes_.push_back(std::make_unique<Process>(models_, options_));
  }
  /// As a crash would: no client gets a message.
  void kill(Process& process) {
    for (Client& client : clients_)
      if (client.process == &process) client.process = nullptr;  // it reads what had arrived
    std::erase_if(processes_, [&](const auto& one) { return one.get() == &process; });
  }
  /// Somebody goes on from a state that another has.
  void fork_one() {
    for (std::size_t i = 0; i < clients_.size() && clients_.size() < 12; ++i)
      if (clients_[i].state && wants_an_end(clients_[i]) && random_.coin()) {
        note("forked");
        Client fork;
        fork.sequence = clients_[i].sequence;
        fork.messages = clients_[i].messages;
        fork.state = clients_[i].state;
        fork.bytes = clients_[i].bytes;
        clients_.push_back(std::move(fork));
        return;
      }
  }

  // ---- Clients ----

  void act(Client& client) {
    if (client.over) return;
    if (!client.wire) return connect(client);
    switch (client.kind) {
      case Kind::silent: return rarely(200) ? leave(client) : say_nothing(client);
      case Kind::hostile: return rarely(30) ? leave(client) : say_anything(client);
      case Kind::stalling:
        if (!rarely(40)) return say(client);
        return read(client, 1);
      case Kind::vanishing:
        if (client.kind == Kind::vanishing && rarely(25)) return vanish(client);
        [[fallthrough]];
      default: random_.coin() ? say(client) : read(client, static_cast<std::size_t>(draw(1, 500)));
    }
  }
  void connect(Client& client) {
    if (Machine::Clock::now() < client.not_before) return;
    client.process = &current();
    client.may_fail = current().may_fail;
    client.wire = std::make_shared<Wire>(current().context, static_cast<std::size_t>(draw(10, 3000)));
    current().wires.push_back(client.wire);
    client.replies = ReplyReader();
    client.started = false;
    client.error.clear();
    note("connected");
    current().server->serve(client.wire->server_side(), asio::ip::make_address("127.0.0.1"));
    if (client.kind == Kind::silent || client.kind == Kind::hostile) return;
    open_talk(client);
    StartMessage start;
    start.reply = random_.coin() ? ReplyFormat::json : ReplyFormat::binary;
    client.resuming = !client.ticket.empty();
    if (client.resuming) {
      start = StartMessage();
      start.resume = client.ticket;
      start.acknowledged = client.got;
    } else {
      begin_anew(client, start);
    }
    if (client.kind == Kind::forging && client.state) forge(start);
    send(client, said(start));
    if (client.kind == Kind::flooding && !client.resuming)
      while (client.sent < client.messages.size()) send(client, client.messages[client.sent++]);
  }
  void open_talk(Client& client) {
    const bool web = random_.coin();
    if (web) note("over WebSocket");
    std::string token = options_.tokens ? right_token : "";
    if (client.kind == Kind::intruding) token = random_.coin() ? wrong_token : "";
    client.talk.emplace(web, std::move(token), random_);
    client.wire->send(client.talk->begin());
  }
  static void send(Client& client, const Message& message) { client.wire->send(client.talk->say(message)); }
  void begin_anew(Client& client, StartMessage& start) {
    client.base = client.state ? client.state->messages : 0;
    client.sent = client.base;
    client.steps = client.first_seq = client.state ? client.state->steps : 0;
    client.bytes.resize(client.steps * row_bytes());
    client.got = 0;
    start.session = std::to_string(client.steps);  // the ledger has those that came from elsewhere
    if (client.state)
      start.state = client.state->state;
    else
      for (const float value : models_.whole.boots[client.sequence].to_vector<float>()) start.given["boot"].push_back(value);
  }
  /// A state that was changed, or cut.
  void forge(StartMessage& start) {
    std::string& state = *start.state;
    const auto at = static_cast<std::size_t>(draw(0, static_cast<std::int64_t>(state.size()) - 1));
    if (random_.coin())
      state.resize(at);
    else
      state[at] = state[at] == 'A' ? 'B' : 'A';
    note("forged");
  }
  static std::size_t row_bytes() { return Models::hidden * sizeof(float); }

  void say(Client& client) {
    if (!client.started || client.sent == client.messages.size()) return read(client, static_cast<std::size_t>(draw(1, 500)));
    if (!client.ticket.empty() && rarely(4)) send(client, said(AcknowledgeMessage{client.got}));
    send(client, client.messages[client.sent++]);
  }
  void say_nothing(Client& client) {
    if (rarely(20)) client.wire->send(std::string_view("\0", 1));
    read(client, 100);
  }
  void say_anything(Client& client) {
    std::string bytes;
    switch (draw(0, 6)) {
      case 0: bytes = encode_frame(said(StartMessage())); break;
      case 1: bytes = encode_frame(binary_message(std::string(static_cast<std::size_t>(draw(0, 40)), 'x'))); break;
      case 2: bytes = "GET /stream HTTP/1.1\r\nHost: a\r\n\r\n"; break;
      case 3: bytes = encode_frame(text_message("{\"type\":\"save\"")); break;
      case 4: bytes = Talk(true, options_.tokens && random_.coin() ? right_token : "", random_).begin(); break;  // and then no frames
      case 5: bytes = Talk(false, wrong_token, random_).begin(); break;
      default:
        for (std::int64_t left = draw(1, 40); left > 0; --left) bytes += static_cast<char>(draw(0, 255));
    }
    client.wire->send(bytes);
    client.wire->receive(100);
    if (client.wire->ended()) leave(client);
  }
  void leave(Client& client) {
    client.wire->close(random_.coin());
    client.wire->deliver(100000);
    client.wire.reset();
  }
  void leave_for_good(Client& client) {
    leave(client);
    client.over = true;
  }
  /// The connection is cut; bytes on their way to the client are lost.
  void vanish(Client& client) {
    note("vanished");
    leave(client);
    lose(client);
    if (rarely(5)) client.over = true;  // for good
  }
  /// There is no connection any more.
  void lose(Client& client) {
    client.wire.reset();
    client.process = nullptr;
    client.started = false;
    client.not_before = Machine::Clock::now() + std::chrono::milliseconds(draw(0, 300));
  }

  void read(Client& client, std::size_t most) {
    if (!client.wire) return;
    const std::string bytes = client.wire->receive(most);
    if (client.kind == Kind::silent) {
      if (bytes.empty() && client.wire->ended()) leave(client);
      return;
    }
    std::string answer;
    const std::vector<Message> messages = client.talk->hear(bytes, answer);
    client.wire->send(answer);
    check_answer(client);
    for (const Message& message : messages)
      if (client.wire) take(client, client.replies.read(message));
    if (client.wire && client.wire->to_client() == 0 && client.wire->ended()) {
      client.wire->close(false);
      client.wire->deliver(100000);
      lose(client);
    }
  }
  /// A client that shows a right token, or needs none, is let in.
  void check_answer(Client& client) const {
    const int status = client.talk->refused_with();
    if (status != 0 && (status != 401 || client.kind != Kind::intruding || !options_.tokens))
      throw Wrong{fmt::format("a WebSocket was refused with {}", status)};
  }
  void take(Client& client, const ServerMessage& message) {
    if (client.kind == Kind::intruding && options_.tokens) {
      const auto* error = std::get_if<ErrorMessage>(&message);
      if (error == nullptr || error->code != ErrorCode::refused) throw Wrong{"who shows no token that is known was told more than that"};
      return note("refused a token");
    }
    client.trace = (client.trace ^ (message.index() + 8 * client.steps)) * 0x100000001b3;
    if (const auto* started = std::get_if<StartedMessage>(&message)) return on_started(client, *started);
    if (const auto* error = std::get_if<ErrorMessage>(&message)) return on_error(client, *error);
    ++client.got;
    if (const auto* result = std::get_if<ResultMessage>(&message)) return on_result(client, *result);
    if (const auto* saved = std::get_if<SavedMessage>(&message)) return keep(client, *saved);
    if (const auto* end = std::get_if<EndedMessage>(&message)) {
      if (end->steps != client.steps) throw Wrong{fmt::format("ended says {} steps, {} results came", end->steps, client.steps)};
      note("ended");
      client.ended = client.over = true;
      leave(client);
    }
  }
  void on_started(Client& client, const StartedMessage& said) {
    if (client.kind == Kind::forging && client.state) throw Wrong{"a state that was changed was taken"};
    client.started = true;
    client.ticket = said.ticket.value_or("");
    if (client.resuming) {
      note("resumed");
      client.sent = client.base + said.messages;
    } else if (said.seq != client.first_seq) {
      throw Wrong{fmt::format("started says seq {}, expected {}", said.seq, client.first_seq)};
    }
  }
  void on_result(Client& client, const ResultMessage& said) {
    if (++results_ == drop_reply_) return;
    if (said.seq != client.steps) throw Wrong{fmt::format("expected seq {}, found {}", client.steps, said.seq)};
    client.steps += said.steps;
    client.bytes += said.outputs.at(0).bytes;
    if (!WholeRun::bytes(models_.whole.outputs[client.sequence]).starts_with(client.bytes))
      throw Wrong{fmt::format("step {} has other bits than in one run of the whole", said.seq)};
  }
  /// From here on less has to be sent again.
  void keep(Client& client, SavedMessage saved) {
    if (saved.steps != client.steps) throw Wrong{fmt::format("a state of {} steps behind {} results", saved.steps, client.steps)};
    saved.messages += client.base;
    note("saved");
    client.state = std::move(saved);
    if (client.kind == Kind::forging && client.wire) {
      leave(client);
      lose(client);
      client.ticket.clear();
    }
  }
  void on_error(Client& client, const ErrorMessage& said) {
    client.error = std::string(name_of(said.code)) + ": " + said.message;
    note(std::string("told ") + std::string(name_of(said.code)));
    if (said.seq && *said.seq != client.steps) throw Wrong{fmt::format("an error names step {}, {} results came", *said.seq, client.steps)};
    if (client.kind == Kind::intruding && said.code == ErrorCode::bad_message)
      return leave_for_good(client);  // a server without tokens takes none
    const bool faulty = (said.code == ErrorCode::failed || said.code == ErrorCode::lost) && *client.may_fail;
    switch (said.code) {
      case ErrorCode::draining:
        if (said.saved) keep(client, *said.saved);
        break;
      case ErrorCode::overload:
        client.not_before = Machine::Clock::now() + std::chrono::milliseconds(said.retry_after_ms.value_or(100));
        break;
      case ErrorCode::idle:
      case ErrorCode::slow_reader:
      case ErrorCode::unknown_ticket: break;
      case ErrorCode::bad_state:
        if (client.kind == Kind::forging) {
          client.over = true;
          break;
        }
        [[fallthrough]];
      default:
        if (!faulty) throw Wrong{"a client that did nothing wrong was told " + client.error};
    }
    client.ticket.clear();
    if (client.wire) leave(client);
    const auto wait = client.not_before;
    lose(client);
    client.not_before = std::max(client.not_before, wait);
  }

  // ---- The ledger ----

  /// Drains a process, where it does not already, and looks at its books. `force`: with its clients gone.
  void end_process(Process& process, bool force) {
    if (force) {
      process.server->drain();
      const auto begun = Machine::Clock::now();
      while (!process.stopped) {
        for (Client& client : clients_)
          if (client.wire && client.process == &process && wants_an_end(client)) {
            client.wire->deliver(100000);
            read(client, 100000);
          }
        while (Machine::waiting() > 0) Machine::run(0);
        process.context.restart();
        if (process.context.poll() > 0 || process.stopped) continue;
        const auto next = Machine::next_timer();
        if (!next || *next - begun > 10s) throw Wrong{"a server that drains does not end"};
        Machine::advance(std::max(*next - Machine::Clock::now(), Machine::Clock::duration(0)));
      }
      if (Machine::Clock::now() - begun > options_.drain_limit + 100ms) throw Wrong{"a drain took longer than it may"};
    }
    check_books(process);
    for (Client& client : clients_)
      if (client.process == &process) client.process = nullptr;
    std::erase_if(processes_, [&](const auto& one) { return one.get() == &process; });
  }
  void check_books(Process& process) {
    const ServerCounts& counts = process.server->counts();
    const ModelCounts& of_model = *process.server->models().at(0).counts;
    std::uint64_t ended = 0, refused = 0, ended_well = 0, steps = 0, elsewhere = 0;
    for (std::size_t i = 0; i < OutcomeCounts::size; ++i) {
      ended += of_model.ended.at(i);
      refused += counts.refused.at(i);
    }
    for (const Server::SessionEnd& end : process.ends) {
      if (!end.started) continue;
      steps += end.steps;
      elsewhere += end.label.empty() ? 0 : std::stoull(end.label);
      ended_well += end.outcome == "ended" ? 1 : 0;
    }
    if (of_model.sessions != ended) throw Wrong{fmt::format("{} sessions began, {} ended", of_model.sessions, ended)};
    if (process.server->live_sessions() != 0 || process.server->newcomers() != 0) throw Wrong{"sessions or newcomers are left"};
    if (counts.connections != ended + refused)
      throw Wrong{fmt::format("{} connections, {} sessions ended and {} never began", counts.connections, ended, refused)};
    // A row that was taken was answered, or its session ended otherwise while it was out: one at most of each.
    const std::uint64_t rows = process.server->stats().rows, answered = steps - elsewhere;
    if (rows < answered || rows - answered > of_model.sessions - ended_well)
      throw Wrong{
          fmt::format("{} rows were taken, {} answered, {} sessions did not end well", rows, answered, of_model.sessions - ended_well)};
  }
  void check(const Client& client) const {
    const std::string wanted = WholeRun::bytes(models_.whole.outputs[client.sequence]);
    if (!wanted.starts_with(client.bytes)) throw Wrong{"a client has other bits than the whole"};
    if (client.ended && client.bytes != wanted) throw Wrong{"a session ended without all of its results"};
  }
  void note(const std::string& event) { ++counts_[event]; }

  const Models& models_;
  Random random_;
  const std::uint64_t drop_reply_;
  std::uint64_t results_ = 0;
  ServerOptions options_;
  std::vector<std::unique_ptr<Process>> processes_;  // the last takes newcomers, those before drain
  int started_processes_ = 1;
  std::vector<Client> clients_;
  std::map<std::string, std::uint64_t> counts_;
};

std::shared_ptr<const StateKey> make_key() try {
  return std::make_shared<const StateKey>(std::string(32, 'k'));
} catch (const UnsupportedError&) {
  return nullptr;
}

}  // namespace

Models::Models()
    : program(testing::live_listing(random, features, hidden)),
      whole(program, random, sequences, longest, features, hidden),
      model(std::make_shared<const ServedModel>(program, StreamConfig())),
      key(make_key()) {}

Outcome live(const Models& models, std::uint64_t seed, std::uint64_t drop_reply) { return World(models, seed, drop_reply).run(); }

}  // namespace millrace::simulated
