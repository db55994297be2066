// SPDX-License-Identifier: Apache-2.0
// Programs over LoD of several levels, fed live: sentences open and close while their dialogue lives.
#include <functional>
#include <memory>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/sequence_ops.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/rnn.h>
#include <millrace/streaming/live/session.h>
#include <millrace/streaming/protocol/data.h>
#include <millrace/streaming/protocol/result.h>
#include <streaming/live/live_model.h>
#include <streaming/live/table.h>
#include <streaming/live/whole_clients.h>
#include <support/pieces.h>

using namespace millrace;
using namespace millrace::testing;
using build::Var;

namespace {

constexpr std::int64_t features = 3, hidden = 4, voices = 2;

VarType rows_type(std::int64_t width, int levels) { return VarType(DType::f32, {DDim::unknown, width}, levels); }

Program built(const std::function<void(Random&)>& building, Random& random) {
  Program program;
  const build::Guard guard(program);
  building(random);
  return program;
}

/// A weight of the program around whatever block is open.
struct Weights {
  explicit Weights(Random& random)
      : w(build::parameter("w", random_tensor(random, {features, hidden}))),
        u(build::parameter("u", random_tensor(random, {hidden, hidden}))),
        v(build::parameter("v", random_tensor(random, {voices, hidden}))) {}
  Var w, u, v;
};

layers::GruWeights gru_weights(Random& random, std::int64_t inputs) {
  return {
      random_tensor(random, {inputs, 3 * hidden}), random_tensor(random, {hidden, 3 * hidden}), random_tensor(random, {3 * hidden}), {}};
}

/// Layers over the sentences, each of which begins at zeros, and a second input of as many rows.
void sentences_alone(Random& random) {
  const Var x = build::input("x", rows_type(features, 2));
  const Var z = build::input("z", rows_type(hidden, 2));
  build::output("y", layers::gru(x, {gru_weights(random, features)}).y + z);
}

/// A sentence begins where the dialogue stands and what its speaker adds; the dialogue goes on from where it ended.
void dialogue_memory(Random& random) {
  const Weights weights(random);
  const Var x = build::input("x", rows_type(features, 2));
  const Var speaker = build::input("speaker", rows_type(voices, 1));
  const Var boot = build::input("boot", VarType(DType::f32, {DDim::unknown, hidden}));
  build::DynamicRNN dialogue;
  {
    const auto block = dialogue.block();
    const Var sentence = dialogue.step_input(x);
    const Var who = dialogue.step_input(speaker);
    const Var memory = dialogue.memory(boot);
    const Var begin = build::tanh(memory + build::matmul(who, weights.v));
    build::DynamicRNN rnn;
    Var h;
    {
      const auto inner = rnn.block();
      const Var x_t = rnn.step_input(sentence);
      h = rnn.memory(begin);
      const Var still = rnn.static_input(memory);
      const Var next = build::tanh(build::matmul(x_t, weights.w) + build::matmul(h, weights.u) + still);
      rnn.update_memory(h, next);
      rnn.output(next);
    }
    const Var last = rnn.last(h);
    dialogue.update_memory(memory, build::sigmoid(last + memory));
    dialogue.output(rnn.outputs()[0]);
    dialogue.output(last * begin);
  }
  build::output("y", dialogue.outputs()[0]);
  build::output("sentence", dialogue.outputs()[1]);
}

/// A recurrence over what the sentences came to.
void hierarchy(Random& random) {
  const Var x = build::input("x", rows_type(features, 2));
  const Var speaker = build::input("speaker", rows_type(voices, 1));
  const Var words = layers::gru(x, {gru_weights(random, features)}).y;
  const Var sentences = build::concat({build::sequence_last_step(words, 0.25), speaker}, 1);
  build::output("sentence", layers::gru(sentences, {gru_weights(random, hidden + voices)}).y);
}

/// Words, sentences and parts, each a recurrence over what is inside, and a row for each part.
void three_levels(Random& random) {
  const Var x = build::input("x", rows_type(features, 3));
  const Var part = build::input("part", rows_type(hidden, 1));
  const Var words = layers::gru(x, {gru_weights(random, features)}, {.name = "words"}).y;
  const Var sentences = layers::gru(build::sequence_last_step(words), {gru_weights(random, hidden)}, {.name = "sentences"}).y;
  const Var parts = layers::gru(build::sequence_last_step(sentences) + part, {gru_weights(random, hidden)}, {.name = "parts"}).y;
  build::output("y", build::tanh(words));
  build::output("sentence", sentences);
  build::output("part_state", parts);
}

/// One run of the whole, with what each dialogue gets of it.
struct Whole {
  Whole(const Program& program, Random& random, std::int64_t dialogues) {
    for (const Program::Port& port : program.inputs()) levels = std::max(levels, program.var(port.var).type.lod_depth);
    std::vector<LoD::Level> lengths;
    std::int64_t count = dialogues;
    for (int level = 0; level < levels; ++level) {
      LoD::Level& own = lengths.emplace_back();
      std::int64_t items = 0;
      for (std::int64_t i = 0; i < count; ++i) items += own.emplace_back(random.between(0, 4));
      count = items;
    }
    lod = LoD::from_lengths(lengths);
    Feeds feeds;
    for (const Program::Port& port : program.inputs()) {
      const VarType& type = program.var(port.var).type;
      const LoD own = lod.levels(0, type.lod_depth);
      const Tensor values = random_tensor(random, {own.empty() ? dialogues : own.rows(), (*type.shape)[1]});
      fed.emplace(port.name, LoDTensor(values, own));
      feeds.emplace(port.name, fed.at(port.name));
    }
    SeededExecutor executor(1);
    const RunResult result = sync_wait(executor, run(program, feeds));
    for (const Program::Port& port : program.outputs()) outputs.emplace(port.name, result[port.name]);
  }
  /// The bytes of sequences [begin, end) of a level; of rows, where there is none.
  static std::string bytes(const LoDTensor& rows, int level, std::int64_t begin, std::int64_t end) {
    if (rows.lod().depth() <= level) return WholeRun::bytes(rows.tensor().rows(begin, end));
    const auto [first, last] = rows.lod().row_range(level, begin, end);
    return WholeRun::bytes(rows.tensor().rows(first, last));
  }

  LoD lod;
  int levels = 1;
  std::map<std::string, LoDTensor> fed, outputs;
};

/// One client: what it sends, and what it has read.
struct Client {
  Client(Table& table, const Program& program) : session(table.sit_hosted()) {
    std::size_t inputs = 0;
    for (const Program::Port& port : program.inputs()) inputs += program.var(port.var).type.lod_depth > 0 ? 1 : 0;
    several = inputs > 1;
  }
  Message data(const std::string& input, std::span<const std::byte> elements) const { return encode_data(several ? input : "", elements); }
  /// The bytes of an input in pieces cut anywhere.
  std::vector<Message> pieces(const std::string& input, const std::string& elements, Random& random) const {
    std::vector<Message> made;
    for (const auto piece : cut_anywhere(std::as_bytes(std::span<const char>(elements)), random)) made.push_back(data(input, piece));
    return made;
  }
  /// A dialogue of the whole run.
  void say(const Whole& whole, std::int64_t dialogue, Random& random) { say_inside(whole, 0, dialogue, random); }
  /// The rows inside sequence `at` of a level.
  void say_inside(const Whole& whole, int level, std::int64_t at, Random& random) {
    if (level == whole.levels - 1) return say_rows(whole, at, random);
    const auto items = whole.lod.offsets(level);
    for (std::int64_t item = items[static_cast<std::size_t>(at)]; item < items[static_cast<std::size_t>(at) + 1]; ++item) {
      for (const auto& [name, rows] : whole.fed)
        if (rows.lod().depth() == level + 1)
          for (Message& message : pieces(name, Whole::bytes(rows, level + 1, item, item + 1), random))
            messages.push_back(std::move(message));
      messages.push_back(said(OpenMessage{level + 1}));
      say_inside(whole, level + 1, item, random);
      messages.push_back(said(CloseMessage{level + 1}));
    }
  }
  /// The rows of an innermost sequence, the inputs in turns.
  void say_rows(const Whole& whole, std::int64_t sequence, Random& random) {
    std::vector<std::vector<Message>> inner;
    for (const auto& [name, rows] : whole.fed)
      if (rows.lod().depth() == whole.levels)
        inner.push_back(pieces(name, Whole::bytes(rows, whole.levels - 1, sequence, sequence + 1), random));
    std::vector<std::size_t> sent_of(inner.size(), 0);
    const auto left = [&] {
      for (std::size_t i = 0; i < inner.size(); ++i)
        if (sent_of[i] < inner[i].size()) return true;
      return false;
    };
    while (left()) {
      const auto which = static_cast<std::size_t>(random.next() % inner.size());
      if (sent_of[which] < inner[which].size()) messages.push_back(inner[which][sent_of[which]++]);
      if (random.between(0, 9) == 0) messages.push_back(said(FlushMessage{})), ++flushes;
    }
  }
  bool read() {
    if (!session->has_output()) return false;
    const Message message = session->take_output();
    const ServerMessage reply = replies.read(message);
    session->written(message.payload.size());
    if (const auto* result = std::get_if<ResultMessage>(&reply)) {
      CHECK(result->seq == next[result->level.value_or(0)]++);
      for (const ResultMessage::Output& output : result->outputs) bytes[output.name] += output.bytes;
    }
    if (std::get_if<FlushedMessage>(&reply) != nullptr) --flushes;
    if (std::get_if<ResetDoneMessage>(&reply) != nullptr) {
      ++resets;
      next.clear();
      bytes.clear();
    }
    if (const auto* end = std::get_if<EndedMessage>(&reply)) ended = *end;
    if (const auto* failed = std::get_if<ErrorMessage>(&reply)) error = *failed;
    return true;
  }
  void read_all() {
    while (read()) {
    }
  }

  /// The server goes away, and the session goes on at another one, from the message that is not in its state.
  void move(Table& from, Table& to, ReplyFormat reply) {
    session->drain();
    for (int iteration = 0; !error && !ended; ++iteration) {
      REQUIRE(iteration < 100000);
      from.tick();
      read();
    }
    if (ended) return;
    REQUIRE(error->code == ErrorCode::draining);
    REQUIRE(error->saved);
    StartMessage again;
    again.reply = reply;
    again.state = error->saved->state;
    sent = moved_with + error->saved->messages + 1;  // behind the first start
    moved_with += error->saved->messages;
    error.reset();
    replies = ReplyReader();
    session = to.sit_hosted();
    session->receive(said(again));
    ++moves;
  }

  std::unique_ptr<Session> session;
  std::uint64_t moved_with = 0;
  int moves = 0;
  ReplyReader replies;
  bool several = false;
  std::vector<Message> messages;
  std::size_t sent = 0;
  std::map<std::string, std::string> bytes;
  std::map<int, std::uint64_t> next;
  int flushes = 0, resets = 0;
  std::optional<EndedMessage> ended;
  std::optional<ErrorMessage> error;
};

StartMessage start_of(const Whole& whole, std::int64_t dialogue, Random& random) {
  StartMessage start;
  start.reply = random.coin() ? ReplyFormat::binary : ReplyFormat::json;
  if (const auto boot = whole.fed.find("boot"); boot != whole.fed.end())
    for (const float value : boot->second.tensor().rows(dialogue, dialogue + 1).to_vector<float>()) start.given["boot"].push_back(value);
  return start;
}

/// Dialogues through sessions, cut anywhere, in any company; some say something else first and then reset. Where `movable`, they move between two
/// servers now and then; the number of moves.
int check_live(void (*building)(Random&), std::uint64_t seed, bool movable = false) {
  INFO("seed ", seed);
  Random random(seed);
  const Program program = built(building, random);
  const std::int64_t dialogues = random.between(1, 5);
  const Whole whole(program, random, dialogues);
  Limits limits;
  limits.queued_in = static_cast<std::size_t>(random.between(100, 300));  // all rows of a sentence: its inputs come in any order
  limits.queued_out = static_cast<std::size_t>(random.between(1, 400));
  limits.chunks_in = static_cast<std::size_t>(random.between(1, 4));
  Table table(program, limits), other(program, limits);
  const std::string secret(32, 's');
  if (movable && (!table.take_key(secret) || !other.take_key(secret))) return -1;
  std::vector<std::unique_ptr<Client>> clients;
  std::vector<bool> elsewhere(static_cast<std::size_t>(dialogues), false);
  for (std::int64_t i = 0; i < dialogues; ++i) {
    Client& client = *clients.emplace_back(std::make_unique<Client>(table, program));
    client.messages.push_back(said(start_of(whole, i, random)));
    const bool twice = random.coin();
    if (twice) {
      client.say(whole, random.between(0, dialogues - 1), random);
      // A sentence that is open at a reset ends there.
      const bool close_left_out = client.messages.size() > 1 && random.coin();
      if (close_left_out) client.messages.pop_back();
      client.messages.push_back(said(ResetMessage{}));
      client.resets = -1;
    }
    client.say(whole, i, random);
    if (client.messages.back() == said(CloseMessage{1}) && random.coin()) client.messages.pop_back();  // end closes what is open
    client.messages.push_back(said(EndMessage{}));
  }
  const auto over = [&] { return std::all_of(clients.begin(), clients.end(), [](const auto& c) { return c->ended || c->error; }); };
  for (int decisions = 0; !over(); ++decisions) {
    REQUIRE(decisions < 1000000);
    const auto who = static_cast<std::size_t>(random.next() % clients.size());
    Client& client = *clients[who];
    if (movable && random.between(0, 60) == 0 && client.sent > 0 && !client.ended && !client.error) {
      client.move(elsewhere[who] ? other : table, elsewhere[who] ? table : other, random.coin() ? ReplyFormat::binary : ReplyFormat::json);
      elsewhere[who] = !elsewhere[who];
      continue;
    }
    switch (random.between(0, 2)) {
      case 0:
        if (client.session->wants_input() && client.sent < client.messages.size()) client.session->receive(client.messages[client.sent++]);
        break;
      case 1: (random.coin() || !movable ? table : other).tick(); break;
      default: client.read();
    }
  }
  int moves = 0;
  for (std::int64_t i = 0; i < dialogues; ++i) {
    Client& client = *clients[static_cast<std::size_t>(i)];
    INFO("dialogue ", i, " ", client.error ? client.error->message : "");
    CHECK(!client.error);
    CHECK(client.flushes == 0);
    CHECK(client.resets == 0);
    for (const auto& [name, rows] : whole.outputs) CHECK(client.bytes[name] == Whole::bytes(rows, 0, i, i + 1));
    if (client.ended && whole.outputs.contains("y")) CHECK(client.ended->steps == client.next[0]);
    moves += client.moves;
  }
  return moves;
}

/// A session's answers to these messages, while another goes on.
ErrorMessage refusal(const std::vector<Message>& messages) {
  Random random(11);
  const Program program = built(sentences_alone, random);
  const Whole whole(program, random, 1);
  Table table(program);
  Client bystander(table, program), hostile(table, program);
  bystander.messages.push_back(said(start_of(whole, 0, random)));
  bystander.say(whole, 0, random);
  bystander.messages.push_back(said(EndMessage{}));
  const std::size_t half = bystander.messages.size() / 2;
  for (std::size_t i = 0; i < half; ++i) bystander.session->receive(bystander.messages[i]);
  hostile.session->receive(said(StartMessage{}));
  for (const Message& message : messages) hostile.session->receive(message);
  table.tick_all();
  hostile.read_all();
  REQUIRE(hostile.error);
  CHECK(hostile.session->over());
  for (std::size_t i = half; i < bystander.messages.size(); ++i) bystander.session->receive(bystander.messages[i]);
  table.tick_all();
  bystander.read_all();
  CHECK(bystander.ended);
  for (const auto& [name, rows] : whole.outputs) CHECK(bystander.bytes[name] == Whole::bytes(rows, 0, 0, 1));
  return *hostile.error;
}

Message floats(const std::string& input, std::size_t count) {
  const std::vector<float> values(count, 0.5f);
  return encode_data(input, std::as_bytes(std::span<const float>(values)));
}

void check_says(const ErrorMessage& error, ErrorCode code, const std::string& words) {
  INFO("found ", error.message);
  CHECK(error.code == code);
  CHECK(error.message.find(words) != std::string::npos);
}

}  // namespace

TEST_CASE("sentences that open and close in a live dialogue have the bits of one run over LoD of two levels, with two inputs") {
  for (const std::uint64_t seed : seeds(40)) check_live(sentences_alone, seed);
}

TEST_CASE("a dialogue's memory, a row for each sentence and a boot: the bits of a nested DynamicRNN, live") {
  for (const std::uint64_t seed : seeds(40)) check_live(dialogue_memory, seed);
}

TEST_CASE("what sentences came to goes on to a recurrence over them, live, and is given when they close") {
  for (const std::uint64_t seed : seeds(40)) check_live(hierarchy, seed);
}

TEST_CASE("three levels, live: each begins anew inside the one around it") {
  for (const std::uint64_t seed : seeds(30)) check_live(three_levels, seed);
}

TEST_CASE("sessions that move between servers at any message, inner sequences and all, have the bits of the whole run") {
  int moves = 0;
  for (const auto building : {sentences_alone, dialogue_memory, hierarchy, three_levels})
    for (const std::uint64_t seed : seeds(25)) {
      const int moved = check_live(building, seed, true);
      if (moved < 0) {
        MESSAGE("skipped: this build has no part openssl");
        return;
      }
      moves += moved;
    }
  CHECK(moves > 50);
}

TEST_CASE("messages about inner sequences that make no sense are typed errors, and leave others alone") {
  const Message open = said(OpenMessage{1}), close = said(CloseMessage{1}), reset = said(ResetMessage{}), flush = said(FlushMessage{});
  const auto bad_message = ErrorCode::bad_message, bad_input = ErrorCode::bad_input;
  check_says(refusal({close}), bad_message, "none open");
  check_says(refusal({open, close, close}), bad_message, "none open");
  check_says(refusal({open, open}), bad_message, "close of level 1 first");
  check_says(refusal({said(OpenMessage{0})}), bad_message, "from 1 to 1, found 0");
  check_says(refusal({said(OpenMessage{2})}), bad_message, "from 1 to 1, found 2");
  check_says(refusal({said(OpenMessage{-2147483647})}), bad_message, "found -2147483647");
  check_says(refusal({open, said(CloseMessage{2})}), bad_message, "found 2");
  check_says(refusal({floats("x", 3)}), bad_message, "expected open of level 1");
  check_says(refusal({open, close, floats("x", 3)}), bad_message, "expected open of level 1");
  check_says(refusal({open, floats("x", 2), floats("z", 4), close}), bad_input, "whole rows of 'x'");
  check_says(refusal({open, floats("x", 6), floats("z", 4), close}), bad_input, "more of 'x'");
  check_says(refusal({open, floats("x", 1), reset}), bad_input, "whole rows of 'x'");
  check_says(refusal({open, said(EndMessage{}), flush}), bad_message, "nothing after end");
  check_says(refusal({text_message(R"({"type":"open"})")}), bad_message, "level");
  check_says(refusal({text_message(R"({"type":"open","level":"1"})")}), bad_message, "level");
  check_says(refusal({text_message(R"({"type":"open","level":4294967297})")}), bad_message, "level");
  check_says(refusal({text_message(R"({"type":"flush","level":1})")}), bad_message, "level");
  check_says(refusal({text_message(R"({"type":"reset","now":true})")}), bad_message, "now");

  Random random(5);
  const Program program = built(hierarchy, random);
  Table table(program);
  Client client(table, program);
  client.session->receive(said(StartMessage{}));
  client.session->receive(open);
  client.read_all();
  check_says(*client.error, bad_input, "a row of 'speaker' before open");

  Table flat(live_listing(random, features, hidden));
  Session session(flat.model, flat.batcher, flat.limits);
  session.receive(said(StartMessage{}));
  session.receive(open);
  CHECK(session.over());
}

TEST_CASE("an input that runs further ahead of another than a session holds is an error, not a wait without end") {
  Random random(4);
  const Program program = built(sentences_alone, random);
  Limits limits;
  limits.queued_in = 64;
  limits.chunks_in = 2;
  Table table(program, limits);
  Client client(table, program);
  client.session->receive(said(StartMessage{}));
  client.session->receive(said(OpenMessage{1}));
  table.tick_all();
  for (int iteration = 0; iteration < 20 && client.session->wants_input(); ++iteration) client.session->receive(floats("x", 6));
  client.read_all();
  REQUIRE(client.error);
  check_says(*client.error, ErrorCode::bad_input, "'z'");
}

TEST_CASE("any number of openings, closings, flushes and resets without a row is answered in bounded memory") {
  Random random(2);
  const Program program = built(dialogue_memory, random);
  Table table(program);
  Client client(table, program);
  client.session->receive(said(StartMessage{}));
  for (int iteration = 0; iteration < 500; ++iteration) {
    for (const Message& message :
         {floats("speaker", 2), said(OpenMessage{1}), said(CloseMessage{1}), said(FlushMessage{}), said(ResetMessage{})}) {
      client.session->receive(message);
      table.tick_all();
    }
    client.read_all();
  }
  CHECK(client.resets == 500);
  CHECK(client.flushes == -500);
  CHECK(!client.error);
  CHECK(table.slab.bytes() < 65536);
}

TEST_CASE("a flush is answered behind all results of what was sent, and a reset brings state and numbers back to the start") {
  Random random(9);
  Table table(live_listing(random, features, hidden));
  Session session(table.model, table.batcher, table.limits);
  ReplyReader replies;
  const auto next = [&] {
    const Message message = session.take_output();
    session.written(message.payload.size());
    return replies.read(message);
  };
  session.receive(said(StartMessage{}));
  next();
  std::vector<std::string> rounds(2);
  for (std::string& bytes : rounds) {
    session.receive(encode_data("", std::as_bytes(std::span<const float>(std::vector<float>(9, 0.5f)))));
    session.receive(said(FlushMessage{}));
    session.receive(said(ResetMessage{}));
    table.tick_all();
    for (std::uint64_t seq = 0; seq < 3; ++seq) {
      const ResultMessage result = std::get<ResultMessage>(next());
      CHECK(result.seq == seq);
      bytes += result.outputs[0].bytes;
    }
    CHECK(std::get<FlushedMessage>(next()).steps == 3);
    CHECK(std::get<ResetDoneMessage>(next()).steps == 3);
    CHECK(!session.has_output());
  }
  CHECK(rounds[0] == rounds[1]);
  session.receive(said(EndMessage{}));
  CHECK(std::get<EndedMessage>(next()).steps == 0);
}
