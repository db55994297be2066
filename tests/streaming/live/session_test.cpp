// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/session.h>

#include <memory>
#include <new>

#include <doctest/doctest.h>

#include <millrace/streaming/protocol/data.h>
#include <millrace/streaming/protocol/result.h>
#include <streaming/live/allocation_count.h>
#include <streaming/live/live_model.h>
#include <streaming/live/table.h>
#include <streaming/live/whole_clients.h>
#include <support/pieces.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::int64_t features = 3, hidden = 4;

/// The messages that a client has read of one session.
struct Reader {
  ReplyReader replies;
  std::string bytes;
  std::uint64_t steps = 0;
  std::optional<EndedMessage> ended;
  std::optional<ErrorMessage> error;
  std::vector<SegmentMessage> segments;

  /// Reads one message, if there is one.
  bool read(Session& session) {
    if (!session.has_output()) return false;
    const Message message = session.take_output();
    const ServerMessage said = replies.read(message);
    session.written(message.payload.size());
    if (const auto* result = std::get_if<ResultMessage>(&said)) {
      CHECK(result->seq == steps);
      ++steps;
      bytes += result->outputs.at(0).bytes;
    }
    if (const auto* end = std::get_if<EndedMessage>(&said)) ended = *end;
    if (const auto* failed = std::get_if<ErrorMessage>(&said)) error = *failed;
    if (const auto* segment = std::get_if<SegmentMessage>(&said)) segments.push_back(*segment);
    return true;
  }
  void read_all(Session& session) {
    while (read(session)) {
    }
  }
};

Message start(ReplyFormat reply = ReplyFormat::binary) {
  StartMessage message;
  message.reply = reply;
  return text_message(to_json(message));
}
Message end() { return text_message(to_json(EndMessage())); }
Message floats(const std::vector<float>& values) { return encode_data({}, std::as_bytes(std::span<const float>(values))); }

/// The error that a session answers to these messages.
ErrorMessage refusal(Table& table, std::vector<Message> messages) {
  const auto session = table.sit();
  Reader reader;
  for (Message& message : messages) session->receive(std::move(message));
  table.tick_all();
  reader.read_all(*session);
  REQUIRE(session->over());
  REQUIRE(reader.error);
  CHECK(session->close_code() == close_code_of(reader.error->code));
  CHECK_FALSE(session->has_output());
  session->receive(floats({1, 2, 3}));
  CHECK_FALSE(session->has_output());
  return *reader.error;
}

Program two_inputs() {
  using namespace millrace::build;
  Program program;
  program.set_title("two inputs");
  const Guard guard(program);
  const Var a = input("a", VarType(DType::f32, {1, 2}));
  const Var b = input("b", VarType(DType::f32, {1, 2}));
  const Var sum = input("sum", VarType(DType::f32, {1, 2}));
  const Var next = sum + a * b;
  output("y", next);
  output("next_sum", identity(next));
  return program;
}

}  // namespace

TEST_CASE(
    "whatever the pieces, the companions and who vanishes, a session gets the bits of the whole run and every step is accounted for") {
  for (const std::uint64_t seed : seeds(150)) {
    INFO("seed ", seed);
    Random random(seed);
    const Program program = live_listing(random, features, hidden);
    const auto sequences = static_cast<std::size_t>(random.between(1, 6));
    const WholeRun whole(program, random, static_cast<std::int64_t>(sequences), 12, features, hidden);
    Limits limits;
    limits.queued_in = static_cast<std::size_t>(random.between(1, 200));
    limits.queued_out = static_cast<std::size_t>(random.between(1, 400));
    limits.chunks_in = static_cast<std::size_t>(random.between(1, 4));
    Table table(program, limits);
    std::vector<std::unique_ptr<Session>> sessions;
    std::vector<Reader> readers(sequences);
    std::vector<std::vector<Message>> messages(sequences);
    std::vector<std::size_t> sent(sequences, 0);
    for (std::size_t i = 0; i < sequences; ++i) {
      sessions.push_back(table.sit());
      messages[i].push_back(said(start_of(whole, i, random.coin() ? ReplyFormat::binary : ReplyFormat::json)));
      const std::string bytes = WholeRun::bytes(whole.rows[i]);
      for (const auto piece : cut_anywhere(bytes_of(bytes), random)) messages[i].push_back(encode_data({}, piece));
      messages[i].push_back(end());
    }
    std::vector<bool> gone(sequences, false);
    const auto settled = [&] {
      for (std::size_t i = 0; i < sequences; ++i)
        if (!gone[i] && !readers[i].ended) return false;
      return true;
    };
    for (int decisions = 0; !settled(); ++decisions) {
      REQUIRE(decisions < 200000);
      const auto i = static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(sequences) - 1));
      switch (random.between(0, 2)) {
        case 0: table.tick(); break;
        case 1:
          if (!gone[i]) readers[i].read(*sessions[i]);
          break;
        default:
          if (gone[i]) break;
          if (random.between(0, 100) == 0) {
            gone[i] = true;
            if (random.coin())
              sessions[i]->abandon();
            else
              sessions[i].reset();
          } else if (sessions[i]->wants_input() && sent[i] < messages[i].size()) {
            sessions[i]->receive(messages[i][sent[i]++]);
          }
      }
    }
    for (std::size_t i = 0; i < sequences; ++i) {
      const std::string wanted = WholeRun::bytes(whole.outputs[i]);
      CHECK_FALSE(readers[i].error);
      if (gone[i]) {
        CHECK(wanted.starts_with(readers[i].bytes));
        continue;
      }
      CHECK(readers[i].bytes == wanted);
      CHECK(readers[i].ended->steps == static_cast<std::uint64_t>(whole.rows[i].dim(0)));
      CHECK(sessions[i]->steps() == readers[i].steps);
      CHECK(sessions[i]->over());
      CHECK(sessions[i]->close_code() == close_code_normal);
    }
    CHECK(table.batcher.live() == 0);
  }
}

TEST_CASE("what the protocol does not have is answered by name and ends the session") {
  Random random(1);
  Table table(live_listing(random, features, hidden));
  CHECK(refusal(table, {floats({1, 2, 3})}).code == ErrorCode::bad_message);
  CHECK(refusal(table, {end()}).code == ErrorCode::bad_message);
  CHECK(refusal(table, {start(), start()}).code == ErrorCode::bad_message);
  CHECK(refusal(table, {text_message("{\"type\": \"start\"")}).code == ErrorCode::bad_message);
  CHECK(refusal(table, {text_message("\xff")}).code == ErrorCode::bad_text);
  CHECK(refusal(table, {start(), floats({1, 2, 3}), end(), floats({1})}).code == ErrorCode::bad_message);
  CHECK(refusal(table, {text_message(R"({"type": "start", "version": 2})")}).code == ErrorCode::bad_input);
  CHECK(refusal(table, {text_message(R"({"type": "start", "version": 1, "inputs": {"z": {}}})")}).message.find("'z'") != std::string::npos);
  CHECK(refusal(table, {text_message(R"({"type": "start", "version": 1, "outputs": ["z"]})")}).message.find("'z'") != std::string::npos);
  CHECK(refusal(table, {text_message(R"({"type": "start", "version": 1, "given": {"z": [1]}})")}).message.find("'z'") != std::string::npos);
  CHECK(refusal(table, {text_message(R"({"type": "start", "version": 1, "given": {"boot": [1, 2]}})")}).message.find("expected 4 values") !=
        std::string::npos);
  CHECK(refusal(table, {text_message(R"({"type": "start", "version": 1, "given": {"boot": [1, 2, 1e39, 4]}})")})
            .message.find("given 'boot': expected a value that f32 can hold, found 1e+39") != std::string::npos);
  CHECK(refusal(table, {text_message(R"({"type": "start", "version": 1, "inputs": {"x": {"dtype": "f64"}}})")})
            .message.find("expected f32, found f64") != std::string::npos);
  CHECK(refusal(table, {text_message(R"({"type": "start", "version": 1, "inputs": {"x": {"shape": [4]}}})")}).message.find("[3]") !=
        std::string::npos);
  CHECK(refusal(table, {text_message(R"({"type": "start", "version": 1, "inputs": {"x": {"rate": 8000}}})")}).code == ErrorCode::bad_input);
  CHECK(table.batcher.live() == 0);
}

TEST_CASE("a given value of a whole number or a truth value is taken exactly or refused") {
  using namespace millrace::build;
  const auto answered = [](DType dtype, const std::string& number) {
    Program program;
    {
      const Guard guard(program);
      const Var x = input("x", VarType(DType::f32, {1, 1}));
      const Var state = input("state", VarType(dtype, {1, 1}));
      output("y", identity(state));
      output("z", identity(x));
      output("next", identity(state));
    }
    Table table(program, Limits(), StreamConfig(), {{"state", "next"}});
    const auto session = table.sit();
    session->receive(text_message(R"({"type": "start", "version": 1, "outputs": ["y"], "given": {"state": [)" + number + "]}}"));
    if (!session->over()) session->receive(floats({1}));
    table.tick_all();
    std::string said;
    while (session->has_output()) said = session->take_output().payload;
    const auto at = said.find("\"y\":");
    return at == said.npos ? said : said.substr(at + 4, said.find('}', at) - at - 4);
  };
  const auto taken = [&](DType dtype, const std::string& number, const std::string& wanted) {
    INFO(number);
    CHECK(answered(dtype, number).find(wanted) != std::string::npos);
  };
  taken(DType::i64, "9007199254740993", "9007199254740993");
  taken(DType::i64, "9223372036854775807", "9223372036854775807");
  taken(DType::i64, "-9223372036854775808", "-9223372036854775808");
  taken(DType::i64, "1e3", "1000");
  taken(DType::i32, "2147483647", "2147483647");
  taken(DType::boolean, "true", "true");
  taken(DType::boolean, "0", "false");
  const auto refused = [&](DType dtype, const std::string& number) {
    INFO(number);
    const std::string said = answered(dtype, number);
    CHECK(said.find("bad_input") != std::string::npos);
    CHECK(said.find("given 'state': expected a value that " + std::string(name_of(dtype)) + " can hold, found ") != std::string::npos);
  };
  for (const char* number : {"9223372036854775808", "1e300", "-1e300", "0.5"}) refused(DType::i64, number);
  for (const char* number : {"2147483648", "-2147483649", "0.9"}) refused(DType::i32, number);
  for (const char* number : {"256", "-1", "1e300"}) refused(DType::u8, number);
  for (const char* number : {"128", "-129"}) refused(DType::i8, number);
  for (const char* number : {"2", "0.5", "-1"}) refused(DType::boolean, number);
}

TEST_CASE("data that ends inside a row is an error, and the steps before it have their results") {
  Random random(1);
  Table table(live_listing(random, features, hidden));
  const auto session = table.sit();
  Reader reader;
  session->receive(start());
  session->receive(floats({1, 2, 3, 4}));
  table.tick_all();
  session->receive(end());
  table.tick_all();
  reader.read_all(*session);
  CHECK(reader.steps == 1);
  REQUIRE(reader.error);
  CHECK(reader.error->code == ErrorCode::bad_input);
  CHECK(reader.error->seq == std::uint64_t{1});
}

TEST_CASE("a session whose replies are not read stops stepping and then stops reading") {
  Random random(1);
  Limits limits;
  limits.queued_in = 60;
  limits.queued_out = 200;
  Table table(live_listing(random, features, hidden), limits);
  const auto session = table.sit();
  session->receive(start());
  int sent = 0;
  while (session->wants_input() && sent < 1000) {
    session->receive(floats({1, 2, 3}));
    ++sent;
    table.tick_all();
  }
  CHECK(sent < 100);
  CHECK_FALSE(table.batcher.ready());
  const std::uint64_t before = session->steps();
  Reader reader;
  reader.read_all(*session);
  CHECK(table.batcher.ready());
  table.tick_all();
  CHECK(session->steps() > before);
  session->receive(end());
  while (!reader.ended) {
    REQUIRE((table.batcher.ready() || session->has_output()));
    table.tick_all();
    reader.read_all(*session);
  }
  CHECK(reader.steps == static_cast<std::uint64_t>(sent));
}

TEST_CASE("a session that does not read what answers its flushes and resets is not read either, and gets every answer once it reads") {
  Random random(1);
  Limits limits;
  limits.queued_out = 400;
  for (const bool flushes : {true, false}) {
    Table table(live_listing(random, features, hidden), limits);
    const auto session = table.sit();
    session->receive(start());
    const Message asked = text_message(flushes ? to_json(FlushMessage()) : to_json(ResetMessage()));
    int sent = 0;
    while (session->wants_input() && sent < 10000) {
      session->receive(asked);
      ++sent;
      table.tick_all();
    }
    CHECK(sent < 100);
    ReplyReader replies;
    int answered = 0;
    const auto read = [&] {
      while (session->has_output()) {
        const Message message = session->take_output();
        const ServerMessage said = replies.read(message);
        answered += std::holds_alternative<FlushedMessage>(said) || std::holds_alternative<ResetDoneMessage>(said) ? 1 : 0;
        session->written(message.payload.size());
      }
    };
    read();
    CHECK(answered == sent);
    for (int left = 300; left > 0; --left) {
      if (!session->wants_input()) read();
      REQUIRE(session->wants_input());
      session->receive(asked);
      ++sent;
      table.tick_all();
    }
    session->receive(end());
    read();
    CHECK(answered == sent);
    CHECK(session->outcome() == "ended");
  }
}

TEST_CASE("a session is held up by replies that wait, and sooner where it sends ahead of them") {
  Random random(1);
  constexpr std::size_t rows = 1000, enough_ahead = 16384;
  Table table(live_listing(random, features, hidden), Limits());
  const auto paced = table.sit(), ahead = table.sit();
  paced->receive(start(ReplyFormat::json));
  ahead->receive(start(ReplyFormat::json));
  Reader reader;
  reader.read_all(*ahead);
  ahead->receive(floats(std::vector<float>(rows * features, 0.5f)));
  for (std::size_t row = 0; row < rows; ++row) {
    paced->receive(floats({0.5f, 0.5f, 0.5f}));
    table.tick_all();
  }
  // Both have replies of the same length, of which nobody read one.
  CHECK_FALSE(paced->held_up());
  CHECK(paced->steps() == rows);
  CHECK(ahead->held_up());
  CHECK(paced->wants_input());
  CHECK_FALSE(ahead->wants_input());
  CHECK(ahead->waiting_rows() == rows - ahead->steps());
  const std::uint64_t stepped = ahead->steps();
  std::size_t bytes = 0, taken = 0;
  while (ahead->held_up()) {
    CHECK_FALSE(table.batcher.ready());
    taken = ahead->take_output().payload.size();
    bytes += taken;
    ahead->written(taken);
  }
  CHECK(bytes < 2 * taken);                   // one step more than there was room for
  CHECK(stepped * taken > enough_ahead / 2);  // lengths of numbers differ
  CHECK(stepped * taken < enough_ahead * 2);
  table.tick();
  CHECK(ahead->steps() == stepped + 1);
}

TEST_CASE("a session that has rows for many steps is not read, one that lacks rows of one input is") {
  Table table(two_inputs(), {}, {}, {{"sum", "next_sum"}});
  constexpr std::size_t many = 4 * Batcher::few_rows + 1;
  const auto session = table.sit();
  const std::vector<float> rows(2 * many, 1.0f);
  session->receive(start());
  session->receive(encode_data("a", std::as_bytes(std::span<const float>(rows))));
  CHECK(session->wants_input());
  session->receive(encode_data("b", std::as_bytes(std::span<const float>(rows))));
  CHECK_FALSE(session->wants_input());
  table.tick();
  CHECK(session->wants_input());
}

TEST_CASE("more is about to be said while rows wait for their step, until enough waits or the last of them was stepped") {
  Random random(1);
  Table table(live_listing(random, features, hidden), Limits());
  const auto session = table.sit();
  const auto tick = [&] { table.batcher.finish(table.slab.run(table.batcher.take())); };
  session->receive(start());
  CHECK_FALSE(session->about_to_say_more());
  Reader reader;
  reader.read_all(*session);
  std::vector<float> rows(20 * features, 0.5f);
  session->receive(floats(rows));
  std::size_t waiting = 0;
  for (int step = 0; step < 20; ++step) {
    CHECK(session->about_to_say_more() == (waiting < 8));
    if (waiting == 8) {
      reader.read_all(*session);
      waiting = 0;
    }
    tick();
    ++waiting;
  }
  CHECK(waiting == 4);
  CHECK_FALSE(session->about_to_say_more());
  reader.read_all(*session);
  CHECK(reader.steps == 20);
}

TEST_CASE("inputs arrive each at its own stride, and must end with as many rows") {
  Table table(two_inputs(), {}, {}, {{"sum", "next_sum"}});
  const auto data = [](const char* name, const std::vector<float>& values) {
    return encode_data(name, std::as_bytes(std::span<const float>(values)));
  };
  const auto session = table.sit();
  Reader reader;
  session->receive(start());
  session->receive(data("a", {1, 2, 3, 4}));
  table.tick_all();
  CHECK(session->steps() == 0);
  session->receive(data("b", {10, 100}));
  table.tick_all();
  CHECK(session->steps() == 1);
  session->receive(data("b", {1000, 10000}));
  session->receive(end());
  table.tick_all();
  reader.read_all(*session);
  const std::vector<float> wanted{10, 200, 3010, 40200};
  CHECK(reader.bytes == std::string(reinterpret_cast<const char*>(wanted.data()), wanted.size() * sizeof(float)));
  CHECK(reader.ended);
  CHECK(refusal(table, {start(), data("a", {1, 2}), end()}).code == ErrorCode::bad_input);
  CHECK(refusal(table, {start(), data("a", {1, 2}), end()}).message.find("found more of 'a'") != std::string::npos);
  CHECK(refusal(table, {start(), data("z", {1, 2})}).message.find("'z'") != std::string::npos);
  CHECK(refusal(table, {start(), binary_message(std::string(9, '\0'))}).message.find("''") != std::string::npos);
}

TEST_CASE("a session that ends while more of one input waits than it holds gets an error that names the input without rows") {
  Limits limits;
  limits.queued_in = 16;
  Table table(two_inputs(), limits, {}, {{"sum", "next_sum"}});
  const auto session = table.sit();
  Reader reader;
  session->receive(start());
  const std::vector<float> values(100, 1.0f);
  session->receive(encode_data("a", std::as_bytes(std::span<const float>(values))));
  session->receive(end());
  table.tick_all();
  reader.read_all(*session);
  REQUIRE(reader.error);
  CHECK(reader.error->code == ErrorCode::bad_input);
  CHECK(reader.error->message.find("expected rows of 'b' before more of 'a'") != std::string::npos);
}

TEST_CASE("a step that failed ends its session with the reason, and no other") {
  Table table(live_lookup(), {}, {}, {{"sum", "next_sum"}});
  const auto index = [](std::int64_t value) { return encode_data({}, std::as_bytes(std::span<const std::int64_t>(&value, 1))); };
  const auto good = table.sit(), bad = table.sit();
  Reader good_reader, bad_reader;
  good->receive(start());
  bad->receive(start());
  good->receive(index(1));
  bad->receive(index(50));
  table.tick_all();
  good->receive(index(2));
  good->receive(end());
  table.tick_all();
  good_reader.read_all(*good);
  bad_reader.read_all(*bad);
  CHECK(good_reader.ended->steps == 2);
  REQUIRE(bad_reader.error);
  CHECK(bad_reader.error->code == ErrorCode::failed);
  CHECK(bad_reader.error->message.find("50") != std::string::npos);
  CHECK(bad_reader.error->seq == std::uint64_t{0});
  CHECK(table.batcher.live() == 0);
}

TEST_CASE("outputs that no binary result can name are refused at the start") {
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {1, 2}));
    const build::Var sum = build::input("sum", VarType(DType::f32, {1, 2}));
    const build::Var next = sum + x;
    build::output(std::string(256, 'y'), next);
    build::output("next_sum", build::identity(next));
  }
  Table table(program, {}, {}, {{"sum", "next_sum"}});
  const ErrorMessage error = refusal(table, {start(ReplyFormat::binary), floats({1, 2})});
  CHECK(error.code == ErrorCode::bad_input);
  CHECK(error.message.find("256") != std::string::npos);
  const auto session = table.sit();
  session->receive(start(ReplyFormat::json));
  session->receive(floats({1, 2}));
  table.tick_all();
  CHECK_FALSE(session->over());
}

TEST_CASE("a session that the server refuses is told when to come back") {
  Random random(1);
  Table table(live_listing(random, features, hidden));
  const auto session = table.sit();
  session->refuse(ErrorCode::overload, "full", 1000);
  Reader reader;
  reader.read_all(*session);
  REQUIRE(reader.error);
  CHECK(reader.error->retry_after_ms == std::uint32_t{1000});
  CHECK_FALSE(reader.error->seq);
  CHECK(session->close_code() == 1013);
}

TEST_CASE("audio gives the same results and segments however it was cut") {
  using namespace millrace::build;
  Program program;
  program.set_title("loudness");
  {
    const Guard guard(program);
    const Var x = input("samples", VarType(DType::f32, {DDim::unknown, 6}));
    const Var level = input("level", VarType(DType::f32, {1, 1}));
    const Var next = level * constant(Tensor::from<float>({0.5f}).reshape({1, 1})) + reduce(build::abs(x), "sum", {1}, true);
    output("loud", next);
    output("next_level", identity(next));
  }
  StreamConfig config;
  config.audio = AudioConfig{"samples", 16000, 4, 4, 2, ResampleQuality::fastest};
  config.labels.push_back({"loud", "loud", 0, 2.0, 1.0, 0, 0, 0});
  std::string first_bytes;
  std::vector<SegmentMessage> first_segments;
  for (const std::uint64_t seed : seeds(20)) {
    INFO("seed ", seed);
    Random random(seed);
    Table table(program, {}, config, {{"level", "next_level"}});
    std::vector<std::int16_t> samples;
    for (int i = 0; i < 101; ++i) samples.push_back(static_cast<std::int16_t>((i / 20) % 2 == 1 ? 20000 - i : i));
    const auto session = table.sit();
    StartMessage asked;
    asked.reply = ReplyFormat::binary;
    asked.segments = true;
    session->receive(text_message(to_json(asked)));
    Reader reader;
    reader.read_all(*session);
    if (random.coin()) {  // what stood before a reset leaves nothing behind
      session->receive(encode_data({}, std::as_bytes(std::span<const std::int16_t>(samples)).subspan(50, 60)));
      session->receive(text_message(to_json(ResetMessage())));
      table.tick_all();
      while (session->has_output()) session->written(session->take_output().payload.size());
    }
    for (const auto piece : cut_anywhere(std::as_bytes(std::span<const std::int16_t>(samples)), random)) {
      session->receive(encode_data({}, piece));
      if (random.coin()) table.tick_all();
    }
    session->receive(end());
    table.tick_all();
    reader.read_all(*session);
    REQUIRE(reader.ended);
    CHECK(reader.ended->steps == 26);
    CHECK(reader.segments.size() == 2);
    if (first_bytes.empty()) {
      first_bytes = reader.bytes;
      first_segments = reader.segments;
    }
    CHECK(reader.bytes == first_bytes);
    for (std::size_t i = 0; i < reader.segments.size(); ++i) {
      CHECK(reader.segments[i].start == first_segments.at(i).start);
      CHECK(reader.segments[i].end == first_segments.at(i).end);
    }
  }
}

TEST_CASE("a start that runs out of memory behind its ticket leaves no ticket that its session does not know") {
  Random random(3);
  Table table(live_listing(random, features, hidden));
  table.ticket = "0123456789abcdef0123456789abcdef";
  bool faults = true;
  for (std::uint64_t at = 0; at < 3; ++at) {
    INFO("allocation ", at);
    table.issued.clear();
    table.before_ticket = [&] { faults = fail_allocations({0, at}); };
    const auto session = table.sit_hosted();
    try {
      session->receive(start());
    } catch (const std::bad_alloc&) {
    }
    const std::uint64_t hit = end_allocation_faults();
    if (!faults) return;
    CHECK(hit == 1);
    CHECK(session->ticket().empty());
    CHECK(table.issued.empty());
  }
  table.before_ticket = nullptr;
  const auto session = table.sit_hosted();
  session->receive(start());
  CHECK(session->ticket() == table.ticket);
  CHECK(table.issued == std::vector<std::string>{table.ticket});
}
