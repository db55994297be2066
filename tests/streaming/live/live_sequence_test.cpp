// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/live_sequence.h>

#include <doctest/doctest.h>

#include <millrace/streaming/live/state_slab.h>
#include <millrace/streaming/protocol/row_assembler.h>
#include <streaming/live/live_model.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::int64_t features = 3, hidden = 4;

/// Remembers the rows and the names of its events.
class Recorded final : public LiveSequence {
 public:
  Recorded(Batcher& at, SavedState from) {
    Sources own;
    own.push_back(std::make_unique<RowAssembler>("x", DType::f32, DDim{features}));
    prepare(std::move(own), from);
    begin(at, std::move(from.states));
  }
  void feed(const Tensor& rows, std::int64_t first, std::int64_t last) {
    const Tensor piece = rows.rows(first, last);
    sources()[0]->feed({static_cast<const std::byte*>(piece.raw()), piece.bytes()});
    fed();
  }
  using LiveSequence::begin_anew;
  using LiveSequence::cross;
  using LiveSequence::end;
  using LiveSequence::leave;
  using LiveSequence::save;
  using LiveSequence::settled;
  using LiveSequence::under_way;

  std::string bytes;
  std::string events;
  std::optional<SavedState> state;

 private:
  void on_step(std::uint64_t, Row row) override { bytes.append(reinterpret_cast<const char*>(row[0].data()), row[0].size()); }
  void on_crossed(std::size_t, std::uint64_t, Row) override { events += "crossed "; }
  void on_saved(std::vector<Tensor> states) override {
    state = state_with(std::move(states));
    events += "saved ";
  }
  void on_failed(std::uint64_t, std::exception_ptr) override { events += "failed "; }
  void on_drained(bool anew) override {
    events += anew ? "drained " : "ended ";
    if (!anew) leave();
  }
  void on_begun_anew() override { events += "anew "; }
};

struct Driven {
  explicit Driven(const Program& program) : recurrence(recurrence_of(program)), batcher(recurrence), slab(recurrence) {}
  void tick_all() {
    while (batcher.ready()) batcher.finish(slab.run(batcher.take()));
  }
  std::shared_ptr<const Recurrence> recurrence;
  Batcher batcher;
  StateSlab slab;
};

}  // namespace

TEST_CASE("a sequence that is saved, begun anew and ended at any row has the bits of the whole run each time") {
  for (const std::uint64_t seed : seeds(40)) {
    INFO("seed ", seed);
    Random random(seed);
    const Program program = live_listing(random, features, hidden);
    const WholeRun whole(program, random, 1, 20, features, hidden);
    const Tensor& rows = whole.rows[0];
    const std::int64_t all = rows.dim(0), cut = random.between(0, all);
    const std::string wanted = WholeRun::bytes(whole.outputs[0]);
    Driven here(program), there(program);
    SavedState start;
    start.given = {whole.boots[0]};
    Recorded first(here.batcher, start);
    first.feed(rows, 0, cut);
    CHECK(first.settled() == (cut == 0));
    here.tick_all();
    first.save();
    CHECK(first.under_way());
    here.tick_all();
    REQUIRE(first.state);
    CHECK(first.state->steps == static_cast<std::uint64_t>(cut));
    Recorded second(there.batcher, *first.state);
    second.feed(rows, cut, all);
    there.tick_all();
    CHECK(first.bytes + second.bytes == wanted);
    for (Recorded* one : {&first, &second}) {
      one->begin_anew();
      CHECK(one->answered() == 0);
      one->bytes.clear();
      one->feed(rows, 0, all);
      (one == &first ? here : there).tick_all();
      CHECK(one->bytes == wanted);
      one->end();
      CHECK(one->over());
    }
    CHECK(first.events == "saved drained anew ended ");
    CHECK(second.answered_before() == static_cast<std::uint64_t>(all));
    CHECK(here.batcher.live() + there.batcher.live() == 0);
  }
}

TEST_CASE("a sequence that leaves hears of nothing more, and its row is dropped when its tick comes back") {
  Random random(1);
  Driven driven(live_listing(random, features, hidden));
  const Tensor rows = random_tensor(random, {2, features});
  Recorded gone(driven.batcher, {}), stays(driven.batcher, {});
  gone.feed(rows, 0, 2);
  stays.feed(rows, 0, 2);
  const Tick tick = driven.batcher.take();
  gone.leave();
  CHECK(gone.over());
  driven.batcher.finish(driven.slab.run(tick));
  driven.tick_all();
  CHECK(gone.bytes.empty());
  CHECK(stays.answered() == 2);
  CHECK(driven.batcher.live() == 1);
}

TEST_CASE("inner sequences that a program does not have are refused by level, and change nothing") {
  Random random(1);
  Driven driven(live_listing(random, features, hidden));
  Recorded one(driven.batcher, {});
  CHECK_THROWS_WITH_AS(one.cross(true, 1), "open: expected a program with inner sequences, found level 1 of a program with one level",
                       ArgumentError);
  CHECK_THROWS_WITH_AS(one.cross(false, 0), "close: expected an inner sequence that is open, found level 0 and none open", ArgumentError);
  CHECK(one.settled());
}
