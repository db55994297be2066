// SPDX-License-Identifier: Apache-2.0
// Sessions that are saved, forked, moved and resumed, without sockets.
#include <millrace/streaming/live/session.h>

#include <doctest/doctest.h>

#include <millrace/streaming/protocol/base64.h>
#include <millrace/streaming/protocol/data.h>
#include <millrace/streaming/protocol/result.h>
#include <streaming/live/live_model.h>
#include <streaming/live/table.h>
#include <streaming/live/whole_clients.h>
#include <support/pieces.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::int64_t features = 3, hidden = 4;

const std::string secret(32, 's');

StartMessage start_from(const std::string& state, ReplyFormat reply = ReplyFormat::binary) {
  StartMessage start;
  start.reply = reply;
  if (!state.empty()) start.state = state;
  return start;
}

/// A connection of one session: what came over it.
struct Reader {
  ReplyReader replies;
  std::string bytes;
  std::vector<std::uint64_t> seqs;
  std::uint64_t messages = 0;  // without started
  std::optional<StartedMessage> started;
  std::optional<SavedMessage> saved;
  std::optional<EndedMessage> ended;
  std::optional<ErrorMessage> error;
  std::vector<SegmentMessage> segments;

  bool read(Session& session) {
    if (!session.has_output()) return false;
    const Message message = session.take_output();
    session.written(message.payload.size());
    take(replies.read(message));
    return true;
  }
  void read_all(Session& session) {
    while (read(session)) {
    }
  }
  void take(const ServerMessage& said) {
    if (const auto* hello = std::get_if<StartedMessage>(&said)) {
      started = *hello;
      return;
    }
    ++messages;
    if (const auto* result = std::get_if<ResultMessage>(&said)) {
      seqs.push_back(result->seq);
      bytes += result->outputs.at(0).bytes;
    }
    if (const auto* state = std::get_if<SavedMessage>(&said)) saved = *state;
    if (const auto* end = std::get_if<EndedMessage>(&said)) ended = *end;
    if (const auto* failed = std::get_if<ErrorMessage>(&said)) error = *failed;
    if (const auto* segment = std::get_if<SegmentMessage>(&said)) segments.push_back(*segment);
  }
};

/// The answers of a new session of the table to these messages.
ErrorMessage refusal(Table& table, const std::vector<Message>& messages) {
  const auto session = table.sit_hosted();
  Reader reader;
  for (const Message& message : messages) session->receive(message);
  table.tick_all();
  reader.read_all(*session);
  REQUIRE(reader.error);
  return *reader.error;
}

std::string saved_after(Table& table, const std::string& rows) {
  const auto session = table.sit_hosted();
  Reader reader;
  for (const Message& message : {said(StartMessage()), binary_message(rows), said(SaveMessage())}) session->receive(message);
  table.tick_all();
  reader.read_all(*session);
  REQUIRE(reader.saved);
  return reader.saved->state;
}

}  // namespace

TEST_CASE("any number of sessions goes on from a saved state at any byte, here or at another server, with the bits of the whole run") {
  for (const std::uint64_t seed : seeds(60)) {
    INFO("seed ", seed);
    Random random(seed);
    const Program program = live_listing(random, features, hidden);
    const WholeRun whole(program, random, 1, 20, features, hidden);
    Table here(program), there(program);
    REQUIRE((here.take_key(secret) && there.take_key(secret)));
    const std::string rows = WholeRun::bytes(whole.rows[0]), wanted = WholeRun::bytes(whole.outputs[0]);
    const auto cut = static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(rows.size())));
    const StartMessage start = start_of(whole, 0);
    const auto first = here.sit_hosted();
    Reader reader;
    first->receive(said(start));
    if (cut > 0) first->receive(binary_message(rows.substr(0, cut)));
    first->receive(said(SaveMessage()));
    if (cut < rows.size()) first->receive(binary_message(rows.substr(cut)));  // and goes on
    first->receive(said(EndMessage()));
    here.tick_all();
    reader.read_all(*first);
    CHECK(reader.bytes == wanted);
    REQUIRE(reader.saved);
    CHECK(reader.saved->messages == (cut > 0 ? 2 : 1));
    const std::uint64_t steps = reader.saved->steps;
    for (Table* table : {&here, &there}) {
      const auto again = table->sit_hosted();
      Reader other;
      again->receive(said(start_from(reader.saved->state, random.coin() ? ReplyFormat::binary : ReplyFormat::json)));
      if (cut < rows.size()) again->receive(binary_message(rows.substr(cut)));
      const bool twice = random.coin();
      if (twice) again->receive(said(ResetMessage()));
      if (twice && !rows.empty()) again->receive(binary_message(rows));  // from the boot that the first one was given
      again->receive(said(EndMessage()));
      table->tick_all();
      other.read_all(*again);
      INFO("error ", other.error ? other.error->message : "");
      REQUIRE(other.ended);
      CHECK(other.started->seq == steps);
      CHECK(other.bytes == wanted.substr(steps * hidden * sizeof(float)) + (twice ? wanted : ""));
      if (!other.seqs.empty()) CHECK(other.seqs.front() == (steps < reader.seqs.size() ? steps : 0));
    }
  }
}

TEST_CASE("a state that is not this model's and key's, and one beside given values, are typed errors") {
  Random random(5);
  const Program program = live_listing(random, features, hidden), foreign = live_listing(random, features, hidden);
  Table table(program), other_key(program), other_model(foreign), without(program);
  REQUIRE(table.take_key(secret));
  REQUIRE(other_key.take_key(std::string(32, 't')));
  REQUIRE(other_model.take_key(secret));
  const std::string state = saved_after(table, std::string(17, '\0'));
  CHECK(refusal(other_key, {said(start_from(state))}).code == ErrorCode::bad_state);
  CHECK(refusal(other_model, {said(start_from(state))}).code == ErrorCode::bad_state);
  CHECK(refusal(without, {said(start_from(state))}).code == ErrorCode::bad_state);
  CHECK(refusal(without, {said(StartMessage()), said(SaveMessage())}).code == ErrorCode::bad_state);
  CHECK(refusal(table, {said(start_from("%%%%"))}).code == ErrorCode::bad_state);
  CHECK(refusal(table, {said(start_from(state.substr(4)))}).code == ErrorCode::bad_state);
  CHECK(refusal(table, {said(start_from(state + std::string(4000, 'A')))}).code == ErrorCode::bad_state);
  CHECK(refusal(table, {said(start_from(std::string(100000, 'A')))}).code == ErrorCode::too_big);
  StartMessage both = start_from(state);
  both.given["boot"] = {1, 2, 3, 4};
  CHECK(refusal(table, {said(both)}).code == ErrorCode::bad_input);
  CHECK(table.batcher.live() == 0);
}

TEST_CASE("a session whose end was said ends where it is, whenever its server drains") {
  Random random(6);
  const Program program = live_listing(random, features, hidden);
  const std::string rows(3 * features * sizeof(float), '\0');
  for (int ticks = 0; ticks < 5; ++ticks) {
    Table table(program);
    REQUIRE(table.take_key(secret));
    const auto session = table.sit_hosted();
    Reader reader;
    for (const Message& message : {said(start_from({})), binary_message(rows), said(EndMessage())}) session->receive(message);
    for (int i = 0; i < ticks; ++i) table.tick();
    session->drain();
    table.tick_all();
    reader.read_all(*session);
    REQUIRE(reader.ended);
    CHECK(reader.ended->steps == 3);
    CHECK_FALSE(reader.error);
  }
}

TEST_CASE("audio goes on from any byte of it, with the segments that were open") {
  using namespace millrace::build;
  Program program;
  {
    const Guard guard(program);
    const Var x = input("samples", VarType(DType::f32, {DDim::unknown, 6}));
    const Var level = input("level", VarType(DType::f32, {1, 1}));
    const Var next = level * constant(Tensor::from<float>({0.5f}).reshape({1, 1})) + reduce(build::abs(x), "sum", {1}, true);
    output("loud", next);
    output("next_level", identity(next));
  }
  std::vector<std::int16_t> samples;
  for (int i = 0; i < 101; ++i) samples.push_back(static_cast<std::int16_t>((i / 20) % 2 == 1 ? 20000 - i : i));
  const std::string bytes(reinterpret_cast<const char*>(samples.data()), 2 * samples.size());
  StartMessage start = start_from({});
  start.segments = true;
  for (const int hop : {2, 4, 7}) {
    StreamConfig config;
    config.audio = AudioConfig{"samples", 16000, 4, hop, 2, ResampleQuality::fastest};
    config.labels.push_back({"loud", "loud", 1, 2.0, 1.0, 0, 0, 0});
    CHECK_THROWS_WITH_AS(Table(program, {}, config, {{"level", "next_level"}}), doctest::Contains("expected an index below 1"),
                         ArgumentError);
    config.labels.back().index = 0;
    Table table(program, {}, config, {{"level", "next_level"}});
    REQUIRE(table.take_key(secret));
    const auto heard = [&](const std::vector<std::string>& pieces) {
      Reader reader;
      for (std::size_t i = 0; i < pieces.size(); ++i) {
        const auto session = table.sit_hosted();
        StartMessage next = start;
        if (i > 0) next.state = reader.saved->state;
        reader.replies = ReplyReader();
        session->receive(said(next));
        if (!pieces[i].empty()) session->receive(binary_message(pieces[i]));
        session->receive(i + 1 < pieces.size() ? said(SaveMessage()) : said(EndMessage()));
        table.tick_all();
        reader.read_all(*session);
        INFO("hop ", hop, " ", reader.error ? reader.error->message : "");
        REQUIRE_FALSE(reader.error);
      }
      return reader;
    };
    const Reader whole = heard({bytes});
    CHECK(whole.segments.size() >= 2);
    for (std::size_t cut = 0; cut <= bytes.size(); cut += 3) {
      INFO("hop ", hop, ", cut at ", cut);
      const std::size_t second = cut + (bytes.size() - cut) / 2;
      const Reader moved = heard({bytes.substr(0, cut), bytes.substr(cut, second - cut), bytes.substr(second)});
      CHECK(moved.bytes == whole.bytes);
      REQUIRE(moved.segments.size() == whole.segments.size());
      for (std::size_t i = 0; i < whole.segments.size(); ++i) {
        CHECK(moved.segments[i].start == whole.segments[i].start);
        CHECK(moved.segments[i].end == whole.segments[i].end);
      }
    }
    // Segments are the new session's own choice, whichever the one before made: those of its steps begin where it does.
    for (const bool before : {false, true}) {
      StartMessage next = start;
      next.segments = before;
      Reader reader;
      const auto first = table.sit_hosted(), second = table.sit_hosted();
      for (const Message& message : {said(next), binary_message(bytes.substr(0, 8)), said(SaveMessage())}) first->receive(message);
      table.tick_all();
      reader.read_all(*first);
      REQUIRE(reader.saved);
      next.state = reader.saved->state;
      next.segments = !before;
      reader = Reader();
      for (const Message& message : {said(next), binary_message(bytes.substr(8)), said(EndMessage())}) second->receive(message);
      table.tick_all();
      reader.read_all(*second);
      REQUIRE(reader.ended);
      REQUIRE(reader.segments.size() == (before ? 0 : whole.segments.size()));
      for (std::size_t i = 0; i < reader.segments.size(); ++i) CHECK(reader.segments[i].end == whole.segments[i].end);
    }
    StartMessage other = start;
    other.state = heard({bytes.substr(0, 8), ""}).saved->state;
    other.inputs["samples"].channels = 2;
    CHECK(refusal(table, {said(other)}).code == ErrorCode::bad_input);
  }
}

TEST_CASE("a session that lost its connection any number of times gives every message once, in order") {
  for (const std::uint64_t seed : seeds(60)) {
    INFO("seed ", seed);
    Random random(seed);
    const Program program = live_listing(random, features, hidden);
    const WholeRun whole(program, random, 1, 40, features, hidden);
    Limits limits;
    limits.queued_out = static_cast<std::size_t>(random.between(1, 400));
    Table table(program, limits);
    table.ticket = "ticket";
    const auto session = table.sit_hosted();
    const StartMessage start = start_of(whole, 0);
    session->receive(said(start));
    std::vector<Message> messages;
    const std::string rows = WholeRun::bytes(whole.rows[0]);
    for (const auto piece : cut_anywhere(bytes_of(rows), random)) messages.push_back(encode_data({}, piece));
    messages.push_back(said(EndMessage()));
    std::size_t sent = 0;
    Reader reader;
    for (int decisions = 0; !reader.ended; ++decisions) {
      REQUIRE(decisions < 100000);
      switch (random.between(0, 6)) {
        case 0:
        case 1:
          if (sent < messages.size() && session->wants_input()) session->receive(messages[sent++]);
          break;
        case 2: table.tick(); break;
        case 3:
          if (random.coin()) session->receive(said(AcknowledgeMessage{reader.messages}));
          break;
        case 4:  // some messages are taken by the connection, and lost with it
          if (random.between(0, 5) != 0) break;
          for (std::int64_t lost = random.between(0, 3); lost > 0 && session->has_output(); --lost) session->take_output();
          reader.replies = ReplyReader();
          session->resume(reader.messages);
          reader.read(*session);
          REQUIRE(reader.started);
          CHECK(reader.started->messages == sent);
          CHECK(reader.started->ticket == "ticket");
          break;
        default: reader.read(*session);
      }
    }
    CHECK(reader.bytes == WholeRun::bytes(whole.outputs[0]));
    for (std::size_t i = 0; i < reader.seqs.size(); ++i) CHECK(reader.seqs[i] == i);
    CHECK(reader.ended->steps == reader.seqs.size());
  }
}
