// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/batcher.h>

#include <memory>

#include <doctest/doctest.h>

#include <millrace/streaming/live/state_slab.h>
#include <millrace/streaming/protocol/row_assembler.h>
#include <streaming/live/live_model.h>
#include <support/pieces.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::int64_t features = 3, hidden = 4;

/// The results that one sequence is told.
struct Ledger : Batcher::Sink {
  std::string bytes;
  std::uint64_t next = 0;
  int drains = 0;
  int failures = 0;
  bool closed = false;

  void step(std::uint64_t seq, std::span<const std::span<const std::byte>> rows) override {
    CHECK_FALSE(closed);
    CHECK(seq == next++);
    bytes.append(reinterpret_cast<const char*>(rows[0].data()), rows[0].size());
  }
  void failed(std::uint64_t seq, std::exception_ptr) override {
    CHECK_FALSE(closed);
    CHECK(seq == next++);
    ++failures;
  }
  void drained() override {
    CHECK_FALSE(closed);
    ++drains;
  }
};

/// A sequence that sends its rows in pieces, and may go away.
struct Client {
  Client(const Tensor& rows, Random& random) : all(WholeRun::bytes(rows)), source("x", DType::f32, {features}) {
    for (const auto piece : cut_anywhere(bytes_of(all), random)) pieces.emplace_back(piece);
  }
  std::string all;
  RowAssembler source;
  std::vector<std::span<const std::byte>> pieces;
  std::size_t sent = 0;
  Ledger ledger;
  LiveId id = 0;
  bool open = false, ended = false, vanished = false;
};

RowAssembler rows_of(std::initializer_list<float> values) {
  RowAssembler source("x", DType::f32, {features});
  const std::vector<float> all(values);
  source.feed(std::as_bytes(std::span<const float>(all)));
  return source;
}

}  // namespace

TEST_CASE(
    "whatever the schedule, a sequence gets the bits of the whole run, each step once and in order, and others do not see who vanishes") {
  for (const std::uint64_t seed : seeds(200)) {
    INFO("seed ", seed);
    Random random(seed);
    const Program program = live_listing(random, features, hidden);
    const std::size_t sequences = static_cast<std::size_t>(random.between(1, 7));
    const WholeRun whole(program, random, static_cast<std::int64_t>(sequences), 9, features, hidden);
    const auto recurrence = recurrence_of(program);
    StateSlab slab(recurrence);
    Batcher batcher(recurrence, static_cast<std::size_t>(random.between(1, 8)));
    std::vector<std::unique_ptr<Client>> clients;
    for (std::size_t i = 0; i < sequences; ++i) clients.push_back(std::make_unique<Client>(whole.rows[i], random));
    std::optional<Tick> out;
    std::uint64_t rows = 0, ticks = 0;
    const auto settled = [&] {
      for (const auto& client : clients)
        if (!client->vanished && client->ledger.drains == 0) return false;
      return !out;
    };
    for (int decisions = 0; !settled(); ++decisions) {
      REQUIRE(decisions < 100000);
      const auto which = static_cast<std::size_t>(random.between(0, static_cast<std::int64_t>(sequences)));
      if (which == sequences) {
        if (out) {
          const TickResult result = slab.run(*out);
          out.reset();
          batcher.finish(result);
        } else if (batcher.ready()) {
          out = batcher.take();
          rows += out->slots.size();
          ++ticks;
        }
        continue;
      }
      Client& client = *clients[which];
      if (client.vanished || client.ended) continue;
      if (!client.open) {
        client.open = true;
        client.id = batcher.open({&client.source}, client.ledger, {whole.boots[which]});
      } else if (random.between(0, 60) == 0) {
        client.vanished = client.ledger.closed = true;
        batcher.close(client.id);
      } else if (random.between(0, 9) == 0) {
        const bool may = random.coin();
        batcher.allow(client.id, may);
        if (!may) batcher.allow(client.id, true);
      } else if (client.sent < client.pieces.size()) {
        client.source.feed(client.pieces[client.sent++]);
        batcher.changed(client.id);
      } else {
        client.ended = true;
        client.source.end();
        batcher.changed(client.id);
      }
    }
    for (std::size_t i = 0; i < sequences; ++i) {
      const Ledger& ledger = clients[i]->ledger;
      const std::string wanted = WholeRun::bytes(whole.outputs[i]);
      if (clients[i]->vanished)
        CHECK(wanted.starts_with(ledger.bytes));
      else
        CHECK(ledger.bytes == wanted);
      CHECK(ledger.drains == (clients[i]->vanished ? 0 : 1));
      CHECK(ledger.failures == 0);
      if (!clients[i]->vanished) batcher.close(clients[i]->id);
    }
    CHECK(batcher.live() == 0);
    CHECK(batcher.stats().ticks == ticks);
    CHECK(batcher.stats().rows == rows);
  }
}

TEST_CASE("when more are ready than a tick takes, they take turns") {
  Random random(1);
  Batcher batcher(recurrence_of(live_listing(random, features, hidden)), 2);
  std::vector<RowAssembler> sources;
  std::vector<Ledger> ledgers(3);
  for (int i = 0; i < 3; ++i) sources.push_back(rows_of({1, 2, 3, 4, 5, 6}));
  for (std::size_t i = 0; i < 3; ++i) batcher.open({&sources[i]}, ledgers[i]);
  std::vector<Slot> all;
  for (int tick = 0; tick < 3; ++tick) {
    const Tick taken = batcher.take();
    CHECK(taken.slots.size() == 2);
    all.insert(all.end(), taken.slots.begin(), taken.slots.end());
    batcher.finish({taken.slots, {make_darray(DDim{2, 1, hidden}, 0.0f)}, {}});
  }
  CHECK_FALSE(batcher.ready());
  for (std::size_t i = 0; i < 3; ++i) CHECK(ledgers[i].next == 2);
  CHECK(batcher.stats().largest == 2);
}

TEST_CASE("sequences that are ahead of their pace share what the limit leaves them, those that keep theirs are in every tick") {
  Random random(1);
  Batcher batcher(recurrence_of(live_listing(random, features, hidden)), 8);
  batcher.limit_ahead(2);
  constexpr std::size_t many = Batcher::few_rows + 20;
  std::vector<RowAssembler> sources;
  std::vector<Ledger> ledgers(6);
  for (int i = 0; i < 6; ++i) sources.emplace_back("x", DType::f32, DDim{features});
  const auto feed = [&](std::size_t i, std::size_t rows) {
    sources[i].feed(std::as_bytes(std::span<const float>(std::vector<float>(rows * features, 1))));
  };
  std::vector<LiveId> ids;
  for (std::size_t i = 0; i < 6; ++i) {
    if (i < 4) feed(i, many);
    ids.push_back(batcher.open({&sources[i]}, ledgers[i]));
  }
  const auto tick = [&] {
    const Tick taken = batcher.take();
    const auto rows = static_cast<std::int64_t>(taken.slots.size());
    batcher.finish({taken.slots, {make_darray(DDim{rows, 1, hidden}, 0.0f)}, {}});
    return rows;
  };
  CHECK(tick() == 2);
  for (std::uint64_t step = 0; step < 10; ++step) {
    for (const std::size_t i : {4, 5}) {
      feed(i, 1);
      batcher.changed(ids[i]);
    }
    CHECK(tick() == 4);
    CHECK(ledgers[4].next == step + 1);
    CHECK(ledgers[5].next == step + 1);
  }
  for (std::size_t i = 0; i < 4; ++i) CHECK((ledgers[i].next == 5 || ledgers[i].next == 6));
  while (batcher.ready()) tick();
  for (std::size_t i = 0; i < 4; ++i) CHECK(ledgers[i].next == many);
  batcher.close(ids[4]);
  batcher.close(ids[5]);
  for (std::size_t i = 0; i < 4; ++i) {
    feed(i, many);
    batcher.changed(ids[i]);
  }
  CHECK(tick() == 4);  // nobody else lives
}

TEST_CASE("a tick that is too small takes sequences that keep their pace and those that are ahead") {
  for (const std::size_t most : {1, 3}) {
    INFO("rows of a tick ", most);
    Random random(1);
    Batcher batcher(recurrence_of(live_listing(random, features, hidden)), most);
    constexpr std::size_t each = 5;
    std::vector<RowAssembler> sources;
    std::vector<Ledger> ledgers(2 * each);
    std::vector<LiveId> ids;
    for (std::size_t i = 0; i < 2 * each; ++i) sources.emplace_back("x", DType::f32, DDim{features});
    const auto feed = [&](std::size_t i, std::size_t rows) {
      sources[i].feed(std::as_bytes(std::span<const float>(std::vector<float>(rows * features, 1))));
    };
    for (std::size_t i = 0; i < 2 * each; ++i) {
      feed(i, i < each ? 1 : 1000);
      ids.push_back(batcher.open({&sources[i]}, ledgers[i]));
    }
    for (int tick = 0; tick < 200; ++tick) {
      const Tick taken = batcher.take();
      const auto rows = static_cast<std::int64_t>(taken.slots.size());
      CHECK(taken.slots.size() == most);
      batcher.finish({taken.slots, {make_darray(DDim{rows, 1, hidden}, 0.0f)}, {}});
      for (std::size_t i = 0; i < each; ++i) {
        if (sources[i].rows() > 0) continue;
        feed(i, 1);
        batcher.changed(ids[i]);
      }
    }
    for (const Ledger& ledger : ledgers) CHECK(ledger.next == 200 * most / (2 * each));
  }
}

TEST_CASE("a slot is used again only after the tick that holds it came back, and starts anew") {
  Random random(1);
  Batcher batcher(recurrence_of(live_listing(random, features, hidden)));
  RowAssembler first = rows_of({1, 2, 3}), second = rows_of({1, 2, 3}), third = rows_of({1, 2, 3});
  Ledger ledgers[3];
  const LiveId one = batcher.open({&first}, ledgers[0]);
  const Tick tick = batcher.take();
  REQUIRE(tick.slots.size() == 1);
  CHECK(tick.starts.size() == 1);
  ledgers[0].closed = true;
  for (int twice = 0; twice < 2; ++twice) batcher.close(one);
  CHECK(batcher.live() == 0);
  batcher.open({&second}, ledgers[1]);
  CHECK_FALSE(batcher.ready());
  CHECK_THROWS_AS(batcher.take(), ArgumentError);
  batcher.finish({tick.slots, {make_darray(DDim{1, 1, hidden}, 0.0f)}, {}});
  batcher.open({&third}, ledgers[2]);
  const Tick next = batcher.take();
  REQUIRE(next.slots.size() == 2);
  CHECK(next.slots[0] != tick.slots[0]);
  CHECK(next.slots[1] == tick.slots[0]);
  CHECK(next.starts.size() == 2);
  CHECK(ledgers[0].next == 0);
}

TEST_CASE("a sequence that may not step waits, and one without rows for a source is not ready") {
  Random random(1);
  Batcher batcher(recurrence_of(live_listing(random, features, hidden)));
  RowAssembler source = rows_of({1, 2, 3});
  Ledger ledger;
  const LiveId id = batcher.open({&source}, ledger);
  CHECK(batcher.ready());
  batcher.allow(id, false);
  CHECK_FALSE(batcher.ready());
  source.end();
  batcher.changed(id);
  CHECK_FALSE(batcher.ready());
  CHECK(ledger.drains == 0);
  batcher.allow(id, true);
  CHECK(batcher.ready());
  CHECK_THROWS_AS(batcher.open({}, ledger), ArgumentError);
}

TEST_CASE("a step that failed ends its sequence alone") {
  RecurrenceOptions options;
  options.states = {{"sum", "next_sum"}};
  const auto recurrence = recurrence_of(live_lookup(), options);
  StateSlab slab(recurrence);
  Batcher batcher(recurrence);
  Ledger good, bad;
  const auto source_of = [](std::vector<std::int64_t> indices) {
    RowAssembler source("index", DType::i64, DDim());
    source.feed(std::as_bytes(std::span<const std::int64_t>(indices)));
    source.end();
    return source;
  };
  RowAssembler fine = source_of({0, 1, 2}), wrong = source_of({0, 7, 2});
  batcher.open({&fine}, good);
  batcher.open({&wrong}, bad);
  while (batcher.ready()) batcher.finish(slab.run(batcher.take()));
  CHECK(good.next == 3);
  CHECK(good.drains == 1);
  CHECK(good.failures == 0);
  CHECK(bad.next == 2);
  CHECK(bad.drains == 0);
  CHECK(bad.failures == 1);
}
