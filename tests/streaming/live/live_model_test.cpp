// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/live_model.h>

#include <atomic>
#include <chrono>
#include <csignal>
#include <future>
#include <memory>
#include <new>
#include <span>
#include <thread>
#include <utility>

#include <sys/wait.h>
#include <unistd.h>

#include <boost/asio/bind_cancellation_slot.hpp>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/use_awaitable.hpp>
#include <boost/asio/use_future.hpp>

#include <doctest/doctest.h>

#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/sequence_ops.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/task/asio.h>
#include <millrace/runtime/task/scope.h>
#include <millrace/runtime/task/start_run.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/tensor/sanitized.h>
#include <streaming/live/allocation_count.h>
#include <streaming/live/live_model.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::int64_t features = 3, hidden = 4;

Runtime& threads() {
  // OpenSSL frees the state of a thread when the thread ends, unless its own cleanup at the exit of the process came first.
  // This function uses OpenSSL before it starts the threads, so the threads end before that cleanup.
  static const bool openssl = [] {
    try {
      static_cast<void>(StateKey::random());
      return true;
    } catch (const UnsupportedError&) {
      return false;
    }
  }();
  static_cast<void>(openssl);
  static Runtime runtime;
  return runtime;
}

/// The signal that ends a child of this process, and what it says on stderr.
template <class F>
std::pair<int, std::string> said_by_child(F f) {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  if (child == 0) {
    ::dup2(ends[1], STDERR_FILENO);
    std::signal(SIGABRT, SIG_DFL);
    f();
    ::_exit(0);
  }
  ::close(ends[1]);
  std::string said;
  char buffer[256];
  for (ssize_t got = 0; (got = ::read(ends[0], buffer, sizeof buffer)) > 0;) said.append(buffer, static_cast<std::size_t>(got));
  ::close(ends[0]);
  int status = 0;
  ::waitpid(child, &status, 0);
  return {WIFSIGNALED(status) ? WTERMSIG(status) : 0, said};
}

/// Says the rows of one sequence in random pieces.
task<void> feeder(const LiveSession* session, Tensor rows, std::uint64_t seed) {
  Random random(seed);
  std::int64_t at = 0;
  while (at < rows.dim(0)) {
    const std::int64_t to = std::min(rows.dim(0), at + random.between(0, 9));
    task<void> push = session->push(rows.rows(at, to));
    co_await std::move(push);
    at = to;
    if (random.between(0, 7) != 0) continue;
    task<std::uint64_t> flush = session->flush();
    const std::uint64_t steps = co_await std::move(flush);
    CHECK(steps == static_cast<std::uint64_t>(at));
  }
  task<void> finish = session->finish();
  co_await std::move(finish);
}

task<std::string> taker(const LiveSession* session, std::string output) {
  std::string bytes;
  for (;;) {
    task<std::optional<LiveRows>> next = session->next();
    const std::optional<LiveRows> rows = co_await std::move(next);
    if (!rows) co_return bytes;
    CHECK(rows->at(output).lod().empty());
    bytes += WholeRun::bytes(rows->at(output).tensor());
  }
}

/// One session, said and taken side by side, twice with a reset between.
task<void> live(const LiveModel* model, const WholeRun* whole, std::size_t index, std::uint64_t seed) {
  LiveStart start;
  start.name = "number " + std::to_string(index);
  start.given["boot"] = whole->boots[index];
  task<LiveSession> opening = model->open(std::move(start));
  const LiveSession session = co_await std::move(opening);
  TaskInfo& me = co_await this_task::info();
  Scope scope(me);
  scope.spawn(feeder(&session, whole->rows[index], seed), "feeder");
  task<std::string> taking = taker(&session, "y");
  const std::string bytes = co_await std::move(taking);
  co_await scope.join();
  CHECK(bytes == WholeRun::bytes(whole->outputs[index]));
  CHECK(session.steps() == static_cast<std::uint64_t>(whole->rows[index].dim(0)));
}

task<void> crowd(Scope& scope, const LiveModel* model, const WholeRun* whole, std::uint64_t seed) {
  for (std::size_t i = 0; i < whole->rows.size(); ++i) scope.spawn(live(model, whole, i, seed + i), "session " + std::to_string(i));
  co_return;
}

task<void> many(const LiveModel* model, const WholeRun* whole, std::uint64_t seed) {
  Random random(seed);
  std::vector<LiveSession> sessions;
  std::vector<std::int64_t> at(whole->rows.size(), 0);
  std::map<LiveId, std::string> got;
  std::map<LiveId, std::size_t> index;
  for (std::size_t i = 0; i < whole->rows.size(); ++i) {
    LiveStart start;
    start.given["boot"] = whole->boots[i];
    task<LiveSession> opening = model->open(std::move(start));
    LiveSession opened = co_await std::move(opening);
    index[opened.id()] = i;
    sessions.push_back(std::move(opened));
  }
  const auto left = [&] {
    bool some = false;
    for (std::size_t i = 0; i < at.size(); ++i) some = some || at[i] < whole->rows[i].dim(0);
    return some;
  };
  while (left()) {
    std::vector<LiveId> ids;
    LoD::Level lengths;
    std::vector<Tensor> pieces;
    std::int64_t total = 0;
    for (std::size_t i = 0; i < at.size(); ++i) {
      if (random.coin()) continue;
      const std::int64_t count = std::min(whole->rows[i].dim(0) - at[i], random.between(0, 5));
      ids.push_back(sessions[i].id());
      lengths.push_back(count);
      pieces.push_back(whole->rows[i].rows(at[i], at[i] + count));
      at[i] += count;
      total += count;
    }
    Tensor rows(DType::f32, {total, features});
    rows.storage()->mark_written();
    auto* to = static_cast<char*>(rows.raw_mutable());
    for (const Tensor& piece : pieces) {
      std::memcpy(to, piece.raw(), piece.bytes());
      to += piece.bytes();
    }
    LoDTensor ragged(std::move(rows), LoD::from_lengths({lengths}));
    task<void> push = model->push(std::move(ids), std::move(ragged));
    co_await std::move(push);
  }
  for (const LiveSession& session : sessions) {
    task<void> finish = session.finish();
    co_await std::move(finish);
  }
  std::size_t ended = 0;
  for (;;) {
    task<std::optional<LiveBatch>> next = model->next();
    const std::optional<LiveBatch> batch = co_await std::move(next);
    if (!batch) break;
    ended += batch->ended.size();
    CHECK(batch->failed.empty());
    const LoDTensor& y = batch->outputs.at("y");
    for (std::size_t i = 0; i < batch->ids.size(); ++i) {
      const auto [begin, end] = y.lod().row_range(0, static_cast<std::int64_t>(i), static_cast<std::int64_t>(i) + 1);
      got[batch->ids[i]] += WholeRun::bytes(y.tensor().rows(begin, end));
    }
  }
  CHECK(ended == whole->rows.size());
  for (const auto& [id, i] : index) CHECK(got[id] == WholeRun::bytes(whole->outputs[i]));
}

/// The text of an error of `work`.
template <class E, class T>
std::string error_of(task<T> work) {
  try {
    sync_wait(threads().executor(), std::move(work));
  } catch (const E& error) {
    return error.what();
  }
  return "no error";
}

}  // namespace

TEST_CASE("live sessions have the bits of the whole run, however they are cut and whoever shares their ticks") {
  for (const std::uint64_t seed : seeds(6)) {
    INFO("seed ", seed);
    Random random(seed);
    const Program program = live_listing(random, features, hidden);
    const WholeRun whole(program, random, random.between(1, 12), 80, features, hidden);
    LiveOptions options;
    options.queued_in = static_cast<std::size_t>(random.between(1, 400));  // bounds that are reached
    options.queued_out = static_cast<std::size_t>(random.between(1, 400));
    options.max_rows = static_cast<std::size_t>(random.between(1, 5));
    const LiveModel model(threads(), program, options);
    sync_wait(threads().executor(), with_scope(crowd, &model, &whole, seed));
    CHECK(model.live_sessions() == 0);
  }
}

TEST_CASE("pieces of many sessions in one call give each the bits of its whole run") {
  for (const std::uint64_t seed : seeds(6)) {
    INFO("seed ", seed);
    Random random(seed);
    const Program program = live_listing(random, features, hidden);
    const WholeRun whole(program, random, random.between(1, 12), 40, features, hidden);
    const LiveModel model(threads(), program);
    sync_wait(threads().executor(), many(&model, &whole, seed));
  }
}

TEST_CASE("inner sequences of a piece open and close around their rows") {
  Random random(3);
  Program program;
  {
    const build::Guard guard(program);
    const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, features}, 2));
    const layers::GruWeights weights{random_tensor(random, {features, 3 * hidden}),
                                     random_tensor(random, {hidden, 3 * hidden}),
                                     random_tensor(random, {3 * hidden}),
                                     {}};
    build::output("y", layers::gru(x, {weights}).y);
  }
  const LoDTensor x(random_tensor(random, {9, features}), LoD::from_lengths({{2, 0, 2}, {3, 0, 4, 2}}));
  SeededExecutor executor(1);
  const RunResult whole = sync_wait(executor, run(program, {{"x", x}}));
  const LiveModel model(threads(), program);
  std::vector<LiveSession> sessions;
  std::vector<LiveId> ids;
  for (int i = 0; i < 3; ++i) {
    sessions.push_back(sync_wait(threads().executor(), model.open()));
    ids.push_back(sessions.back().id());
  }
  sync_wait(threads().executor(), model.push(ids, x));
  std::string bytes;
  for (const LiveSession& session : sessions) {
    sync_wait(threads().executor(), session.finish());
    bytes += sync_wait(threads().executor(), taker(&session, "y"));
  }
  CHECK(bytes == WholeRun::bytes(whole["y"].tensor()));
  CHECK(error_of<ArgumentError>(model.push({99}, x)) == "live model: expected the number of a live session, found 99");
}

TEST_CASE("a session may be reset, told levels, cancelled, and given a deadline") {
  Random random(4);
  const Program program = live_listing(random, features, hidden);
  const WholeRun whole(program, random, 3, 30, features, hidden);
  std::optional<LiveModel> model(std::in_place, threads(), program);
  LiveStart start;
  start.given["boot"] = whole.boots[0];
  const LiveSession session = sync_wait(threads().executor(), model->open(std::move(start)));
  std::string bytes;
  for (int again = 0; again < 2; ++again) {
    sync_wait(threads().executor(), session.push(whole.rows[0]));
    sync_wait(threads().executor(), session.reset());
  }
  CHECK(error_of<ArgumentError>(session.open_level(1)).find("found level 1") != std::string::npos);
  CHECK(error_of<DTypeError>(session.push(Tensor(DType::f64, {1, features}))).find("input 'x': expected f32") != std::string::npos);
  CHECK(error_of<ShapeError>(session.push(Tensor(DType::f32, {1, 9}))).find("input 'x': expected rows [?, ") != std::string::npos);
  const std::vector<float> row(features, 1.0f);
  sync_wait(threads().executor(), session.push(std::span<const float>(row)));
  sync_wait(threads().executor(), session.finish());
  bytes = sync_wait(threads().executor(), taker(&session, "y"));
  const std::string once = WholeRun::bytes(whole.outputs[0]);
  CHECK(bytes.size() == 2 * once.size() + hidden * sizeof(float));
  CHECK(bytes.substr(0, 2 * once.size()) == once + once);
  CHECK(error_of<ArgumentError>(session.push(whole.rows[0])).find("expected nothing after finish") != std::string::npos);

  const LiveSession silent = sync_wait(threads().executor(), model->open());
  CHECK(error_of<DeadlineError>(silent.next(std::chrono::milliseconds(20))) != "no error");
  std::promise<std::string> told;
  silent.async_next([&](std::exception_ptr error, const std::optional<LiveRows>&) {
    try {
      if (error != nullptr) std::rethrow_exception(error);
      told.set_value("nothing");
    } catch (const CancelledError& cancelled) {
      told.set_value(cancelled.what());
    }
  });
  silent.cancel();
  CHECK(told.get_future().get().find("was cancelled") != std::string::npos);
  const LiveSession left = sync_wait(threads().executor(), model->open());
  task<LiveSession> late = model->open();
  model.reset();
  CHECK(error_of<CancelledError>(left.next()).find("its model is gone") != std::string::npos);
  CHECK_THROWS_WITH_AS(sync_wait(threads().executor(), std::move(late)), doctest::Contains("it is gone"), CancelledError);
}

TEST_CASE("a caller that is no task pushes and takes where nothing has to wait, with the bits of the whole run") {
  for (const std::uint64_t seed : seeds(6)) {
    INFO("seed ", seed);
    Random random(seed);
    const Program program = live_listing(random, features, hidden);
    const WholeRun whole(program, random, 1, 60, features, hidden);
    LiveOptions options;
    const std::int64_t room = random.between(1, 6);
    options.queued_in = static_cast<std::size_t>(room * features) * sizeof(float);
    const LiveModel model(threads(), program, options);
    Executor& on = threads().executor();
    LiveStart start;
    start.given["boot"] = whole.boots[0];
    const LiveSession session = sync_wait(on, model.open(std::move(start)));
    std::optional<LiveRows> made;
    CHECK(!session.try_next(made));
    const Tensor more = random_tensor(random, {room + 1, features});  // than the queue ever holds
    const std::string most = "input 'x': expected at most " + std::to_string(room) + " rows at once, as many as the " +
                             std::to_string(options.queued_in) + " bytes of queued_in hold, found " + std::to_string(room + 1);
    CHECK_THROWS_WITH_AS(session.try_push({{"x", LoDTensor(more)}}), doctest::Contains(most.c_str()), ArgumentError);
    CHECK_THROWS_WITH_AS(session.try_push(std::span(static_cast<const std::byte*>(more.raw()), more.bytes())),
                         doctest::Contains(most.c_str()), ArgumentError);
    std::string bytes;
    const auto keep = [&] {
      if (made) bytes += WholeRun::bytes(made->at("y").tensor());
      return made.has_value();
    };
    for (std::int64_t at = 0; at < whole.rows[0].dim(0);) {
      const std::int64_t to = std::min(whole.rows[0].dim(0), at + random.between(1, room));
      const Tensor rows = whole.rows[0].rows(at, to);
      const std::span<const std::byte> bytes_of_rows(static_cast<const std::byte*>(rows.raw()), rows.bytes());
      const bool by_bytes = random.between(0, 1) == 0;
      while (!(by_bytes ? session.try_push(bytes_of_rows) : session.try_push({{"x", LoDTensor(rows)}}))) {  // nothing of it is queued
        made = sync_wait(on, session.next());
        REQUIRE(keep());
      }
      at = to;
    }
    sync_wait(on, session.finish());
    while (session.try_next(made) ? keep() : (made = sync_wait(on, session.next()), keep())) {
    }
    CHECK(bytes == WholeRun::bytes(whole.outputs[0]));
    CHECK_THROWS_AS(session.try_push({{"x", LoDTensor(random_tensor(random, {1, features}))}}), ArgumentError);
  }
}

TEST_CASE("a model whose runtime has gone keeps its threads and serves its sessions, which may go behind it") {
  Random random(5);
  const Program program = live_listing(random, features, hidden);
  const WholeRun whole(program, random, 1, 20, features, hidden);
  auto runtime = std::make_unique<Runtime>();
  auto model = std::make_unique<LiveModel>(*runtime, program);
  LiveStart start;
  start.given["boot"] = whole.boots[0];
  std::optional<LiveSession> session = sync_wait(runtime->executor(), model->open(std::move(start)));
  sync_wait(runtime->executor(), session->push(whole.rows[0].rows(0, 1)));
  runtime.reset();
  sync_wait(threads().executor(), session->push(whole.rows[0].rows(1, whole.rows[0].dim(0))));
  sync_wait(threads().executor(), session->finish());
  CHECK(sync_wait(threads().executor(), taker(&*session, "y")) == WholeRun::bytes(whole.outputs[0]));
  model.reset();
  session.reset();
}

namespace {

class CountingReader final : public LiveReader {
 public:
  void on_news() noexcept override {
    if (++news == 1) told.set_value();
  }
  std::promise<void> told;
  std::atomic<int> news{0};
};

}  // namespace

TEST_CASE("a reader of a session is told once behind each question that had no answer: of results, of the end, and of a model that goes") {
  Random random(9);
  auto model = std::make_unique<LiveModel>(threads(), live_listing(random, features, hidden));
  const LiveSession session = sync_wait(threads().executor(), model->open());
  const Tensor row = random_tensor(random, {1, features});
  const std::span<const std::byte> bytes(static_cast<const std::byte*>(row.raw()), row.bytes());
  std::optional<LiveRows> made;
  const auto asked = [&] {
    auto reader = std::make_shared<CountingReader>();
    CHECK(!session.try_next(made, reader));
    return reader;
  };
  const auto replaced = asked();
  for (int n = 0; n < 3; ++n) {
    const auto reader = asked();
    CHECK(reader->news == 0);
    CHECK(session.try_push(bytes));
    reader->told.get_future().wait();
    REQUIRE(session.try_next(made, reader));
    CHECK(made->at("y").rows() == 1);
    CHECK(session.try_push(bytes));  // nobody has asked for this row
    CHECK(sync_wait(threads().executor(), session.flush()) == static_cast<std::uint64_t>(2 * n + 2));
    CHECK(reader->news == 1);
    REQUIRE(session.try_next(made, reader));
  }
  CHECK(replaced->news == 0);
  CHECK_THROWS_WITH_AS(session.try_push(bytes.first(1)), doctest::Contains("whole rows of 12 bytes, found 1"), ArgumentError);
  const auto reader = asked();
  model.reset();
  reader->told.get_future().wait();
  CHECK_THROWS_WITH_AS(session.try_next(made, reader), doctest::Contains("its model is gone"), CancelledError);
}

TEST_CASE("rows that sessions push while they are gathered share a step, which begins with half of the sessions or at the end") {
  Random random(8);
  const LiveModel model(threads(), live_listing(random, features, hidden));
  Executor& on = threads().executor();
  std::vector<LiveSession> sessions;
  for (int i = 0; i < 8; ++i) sessions.push_back(sync_wait(on, model.open()));
  const LiveRows row{{"x", LoDTensor(random_tensor(random, {1, features}))}};
  std::optional<LiveGathering> gathering(model.gather());
  for (std::size_t i = 0; i < 3; ++i) CHECK(sessions[i].try_push(row));
  CHECK(model.stats().ticks == 0);
  gathering.reset();
  for (std::size_t i = 0; i < 3; ++i) CHECK(sync_wait(on, sessions[i].flush()) == 1);
  CHECK(model.stats().ticks == 1);
  CHECK(model.stats().largest == 3);
  gathering.emplace(model.gather());
  for (std::size_t i = 0; i < 4; ++i) CHECK(sessions[i].try_push(row));
  for (std::size_t i = 0; i < 4; ++i) CHECK(sync_wait(on, sessions[i].flush()) == (i < 3 ? 2 : 1));
  CHECK(model.stats().ticks == 2);
  CHECK(model.stats().largest == 4);
}

TEST_CASE("a push that runs out of memory either says so and queues nothing or keeps its rows until there is memory for their step") {
  Random random(12);
  const Program program = live_listing(random, features, hidden);
  const WholeRun whole(program, random, 2, 20, features, hidden);
  Executor& on = threads().executor();
  const auto bytes_of = [](const Tensor& rows) {
    return std::span<const std::byte>(static_cast<const std::byte*>(rows.raw()), rows.bytes());
  };
  const std::int64_t most = std::min(whole.rows[0].dim(0), whole.rows[1].dim(0));
  for (const bool warm : {false, true}) {
    // A pool of libstdc++ that is new does not survive each small allocation that fails.
    const std::size_t least = warm ? 0 : 512;
    const std::int64_t begun = warm ? std::min<std::int64_t>(1, most) : 0;
    std::uint64_t hit = 1;
    for (std::uint64_t at = 0; hit > 0; ++at) {
      INFO("warm ", warm, ", allocation ", at);
      const LiveModel model(threads(), program);
      std::vector<LiveSession> sessions;
      for (std::size_t i = 0; i < 2; ++i) {
        LiveStart start;
        start.given["boot"] = whole.boots[i];
        sessions.push_back(sync_wait(on, model.open(std::move(start))));
        sync_wait(on, sessions[i].push(LoDTensor(whole.rows[i].rows(0, begun))));
        sync_wait(on, sessions[i].flush());
      }
      const Tensor first = whole.rows[0].rows(begun, whole.rows[0].dim(0)), second = whole.rows[1].rows(begun, whole.rows[1].dim(0));
      std::optional<LiveGathering> gathering(model.gather());
      if (warm) REQUIRE(sessions[0].try_push(bytes_of(first)));
      if (!fail_allocations({least, at})) return;
      bool pushed = false;
      try {
        pushed = sessions[1].try_push(bytes_of(second));  // with a row of each session, the step takes more memory than those before
      } catch (const std::bad_alloc&) {                   // then nothing is queued
      }
      hit = end_allocation_faults();
      gathering.reset();
      if (!pushed) REQUIRE(sessions[1].try_push(bytes_of(second)));
      if (!warm) REQUIRE(sessions[0].try_push(bytes_of(first)));
      for (std::size_t i = 0; i < 2; ++i) {
        sync_wait(on, sessions[i].finish());
        std::string bytes;
        while (const std::optional<LiveRows> made = sync_wait(on, sessions[i].next())) bytes += WholeRun::bytes(made->at("y").tensor());
        CHECK(bytes == WholeRun::bytes(whole.outputs[i]));
      }
    }
  }
}

namespace {

/// `LiveModel::next` with allocations that fail, but for those of its run.
task<void> starved_next(const LiveModel* model, std::uint64_t at, std::optional<LiveBatch>* made, std::uint64_t* failed) {
  fail_allocations({0, at});
  try {
    task<std::optional<LiveBatch>> work = model->next();
    *made = co_await std::move(work);
  } catch (const std::bad_alloc&) {
  } catch (const OutOfMemoryError&) {
  }
  *failed = end_allocation_faults();
}

}  // namespace

TEST_CASE("results that find no memory when they are taken stay, and come later with the same bits") {
  Random random(14);
  const Program program = live_listing(random, features, hidden);
  const WholeRun whole(program, random, 2, 20, features, hidden);
  Executor& on = threads().executor();
  for (int way = 0; way < 3; ++way) {
    std::uint64_t hit = 1;
    for (std::uint64_t at = 0; hit > 0; ++at) {
      INFO("way ", way, ", allocation ", at);
      const LiveModel model(threads(), program);
      std::vector<LiveSession> sessions;
      std::map<LiveId, std::string> bytes;
      for (std::size_t i = 0; i < 2; ++i) {
        LiveStart start;
        start.given["boot"] = whole.boots[i];
        sessions.push_back(sync_wait(on, model.open(std::move(start))));
        sync_wait(on, sessions[i].push(LoDTensor(whole.rows[i])));
        sync_wait(on, sessions[i].finish());
      }
      std::optional<LiveRows> rows;
      std::optional<std::vector<Tensor>> tensors;
      std::optional<LiveBatch> batch;
      if (way == 2) {
        sync_wait(starved_next(&model, at, &batch, &hit));
      } else {
        fail_allocations({0, at});
        try {
          if (way == 0) sessions[0].try_next(rows);
          if (way == 1) sessions[0].try_next(tensors);
        } catch (const std::bad_alloc&) {
        } catch (const OutOfMemoryError&) {
        }
        hit = end_allocation_faults();
      }
      std::string& first = bytes[sessions[0].id()];
      if (rows) first = WholeRun::bytes(rows->at("y").tensor());
      if (tensors) first = WholeRun::bytes(tensors->at(0));
      for (int more = 0; way == 2 && more < 2; ++more) {
        for (std::size_t i = 0; batch && i < batch->ids.size(); ++i) {
          const auto index = static_cast<std::int64_t>(i);
          bytes[batch->ids[i]] += WholeRun::bytes(batch->outputs.at("y").slice(0, index, index + 1).tensor());
        }
        batch = sync_wait(on, model.next());
      }
      for (std::size_t i = 0; i < 2; ++i) {
        std::string& all = bytes[sessions[i].id()];
        while (const std::optional<LiveRows> made = way < 2 ? sync_wait(on, sessions[i].next()) : std::nullopt)
          all += WholeRun::bytes(made->at("y").tensor());
        CHECK(all == WholeRun::bytes(whole.outputs[i]));
      }
    }
  }
}

TEST_CASE("a run that finds no memory at its start or in its wait leaves no coroutine behind") {
  Random random(16);
  const LiveModel model(threads(), live_listing(random, features, hidden));
  const LiveSession session = sync_wait(threads().executor(), model.open());
  const std::size_t before = live_frames();
  std::uint64_t hit = 1;
  for (std::uint64_t at = 0; hit > 0; ++at) {
    INFO("allocation ", at);
    if (!fail_allocations({0, at})) return;
    try {
      sync_wait(session.flush());
    } catch (const std::bad_alloc&) {
    }
    hit = end_allocation_faults();
    CHECK(live_frames() == before);
  }
}

TEST_CASE("rows of several inputs that find no memory are all queued or none") {
  Random random(15);
  Program program;
  {
    using namespace millrace::build;
    const Guard guard(program);
    const Var a = input("a", VarType(DType::f32, {DDim::unknown, features}, 1));
    const Var b = input("b", VarType(DType::f32, {DDim::unknown, features}, 1));
    output("y", a + b);
  }
  Executor& on = threads().executor();
  const Tensor rows = random_tensor(random, {200, features});
  std::uint64_t hit = 1;
  for (std::uint64_t at = 0; hit > 0; ++at) {
    INFO("allocation ", at);
    const LiveModel model(threads(), program);
    const LiveSession session = sync_wait(on, model.open());
    const LiveRows both{{"a", LoDTensor(rows)}, {"b", LoDTensor(rows)}};
    if (!fail_allocations({1024, at})) return;
    bool pushed = false;
    try {
      pushed = session.try_push(both);
    } catch (const std::bad_alloc&) {
    }
    hit = end_allocation_faults();
    if (!pushed) REQUIRE(session.try_push(both));
    sync_wait(on, session.finish());  // an ArgumentError where one input has more rows
    std::int64_t made = 0;
    while (const std::optional<LiveRows> some = sync_wait(on, session.next())) made += some->at("y").rows();
    CHECK(made == 200);
  }
}

TEST_CASE("sessions are cancelled, and end with their model, where no memory is left") {
  auto model = std::make_unique<LiveModel>(threads(), [] {
    Random random(13);
    return live_listing(random, features, hidden);
  }());
  Executor& on = threads().executor();
  const LiveSession cancelled = sync_wait(on, model->open()), left = sync_wait(on, model->open());
  const auto reader = std::make_shared<CountingReader>();
  std::optional<LiveRows> made;
  CHECK(!left.try_next(made, reader));
  if (!fail_allocations({0, {}})) return;
  cancelled.cancel();
  model.reset();
  end_allocation_faults();
  CHECK(reader->news == 1);
  CHECK_THROWS_AS(sync_wait(on, cancelled.next()), CancelledError);
  CHECK_THROWS_AS(sync_wait(on, left.next()), CancelledError);
}

TEST_CASE("what a task says of a session waits for no gathering, and takes along what is held back") {
  Random random(8);
  const LiveModel model(threads(), live_listing(random, features, hidden));
  Executor& on = threads().executor();
  std::vector<LiveSession> sessions;
  for (int i = 0; i < 8; ++i) sessions.push_back(sync_wait(on, model.open()));
  const Tensor row = random_tensor(random, {1, features});
  const LiveGathering gathering = model.gather();
  CHECK(sessions[0].try_push(LiveRows{{"x", LoDTensor(row)}}));
  CHECK(model.stats().ticks == 0);
  sync_wait(on, sessions[1].push(LoDTensor(random_tensor(random, {3, features})), Duration(std::chrono::seconds(20))));
  CHECK(sync_wait(on, sessions[1].flush(Duration(std::chrono::seconds(20)))) == 3);
  CHECK(sync_wait(on, sessions[0].flush(Duration(std::chrono::seconds(20)))) == 1);
  sync_wait(on, sessions[2].reset(Duration(std::chrono::seconds(20))));
  CHECK(model.stats().ticks == 3);
  CHECK(sessions[3].try_push(LiveRows{{"x", LoDTensor(row)}}));  // held back again
  CHECK(model.stats().ticks == 3);
}

TEST_CASE("a push to the number of a session whose handle takes another one meanwhile finds a live session, or none") {
  Random random(8);
  const LiveModel model(threads(), live_listing(random, features, hidden));
  Executor& on = threads().executor();
  const LoDTensor row(random_tensor(random, {1, features}), LoD::from_lengths({{1}}));
  std::atomic<LiveId> id{0};
  std::atomic<bool> over{false};
  std::string other;
  std::thread pusher([&] {
    while (!over) {
      const LiveId now = id;
      if (now == 0) continue;
      try {
        sync_wait(on, model.push({now}, row));
      } catch (const ArgumentError&) {
      } catch (const CancelledError&) {
      } catch (const std::exception& error) {
        other = error.what();
      }
    }
  });
  LiveSession session;
  for (int i = 0; i < 3000; ++i) {
    LiveSession next = sync_wait(on, model.open());
    id = next.id();
    session = std::move(next);
  }
  over = true;
  pusher.join();
  CHECK(other == "");
  CHECK(model.live_sessions() == 1);
}

TEST_CASE("a model that is destroyed by the reader that its ticks tell ends the process with a message") {
  if (sanitized) return;  // a child of a process with threads
  const auto [code, said] = said_by_child([] {
    Random random(8);
    Runtime runtime;
    auto model = std::make_unique<LiveModel>(runtime, live_listing(random, features, hidden));
    const LiveSession session = sync_wait(runtime.executor(), model->open());
    struct Reader final : LiveReader {
      explicit Reader(std::unique_ptr<LiveModel>& of) : model(of) {}
      void on_news() noexcept override { model.reset(); }
      std::unique_ptr<LiveModel>& model;
    };
    std::optional<LiveRows> made;
    session.try_next(made, std::make_shared<Reader>(model));
    session.try_push(LiveRows{{"x", LoDTensor(random_tensor(random, {1, features}))}});
    std::this_thread::sleep_for(std::chrono::seconds(20));
  });
  CHECK(code == SIGABRT);
  CHECK(said.find("expected its end on another thread than that of its ticks, found it within LiveReader::on_news") != std::string::npos);
}

TEST_CASE("a session that is forked at any row has a second self with the bits of the whole run, and a bound on sessions counts both") {
  for (const std::uint64_t seed : seeds(10)) {
    INFO("seed ", seed);
    Random random(seed);
    const Program program = live_listing(random, features, hidden);
    const WholeRun whole(program, random, 1, 30, features, hidden);
    LiveOptions options;
    options.sessions = 2;
    const LiveModel model(threads(), program, options);
    Executor& on = threads().executor();
    const std::int64_t rows = whole.rows[0].dim(0), cut = random.between(0, rows);
    LiveStart start;
    start.given["boot"] = whole.boots[0];
    const LiveSession session = sync_wait(on, model.open(std::move(start)));
    sync_wait(on, session.push(whole.rows[0].rows(0, cut)));
    const LiveSession second = sync_wait(on, session.fork());
    CHECK(error_of<OverflowError>(session.fork()) == "live model: expected at most 2 sessions, found another");
    const std::string wanted = WholeRun::bytes(whole.outputs[0]);
    for (const LiveSession* one : {&second, &session}) {
      sync_wait(on, one->push(whole.rows[0].rows(cut, rows)));
      sync_wait(on, one->finish());
      const std::size_t before = one == &second ? static_cast<std::size_t>(cut) * hidden * sizeof(float) : 0;
      CHECK(sync_wait(on, taker(one, "y")) == wanted.substr(before));
    }
  }
}

TEST_CASE("a session that is saved, forked and opened elsewhere goes on with the bits of the whole run") {
  for (const std::uint64_t seed : seeds(10)) {
    INFO("seed ", seed);
    Random random(seed);
    const Program program = live_listing(random, features, hidden);
    const WholeRun whole(program, random, 1, 30, features, hidden);
    LiveOptions options;
    try {
      options.state_key = std::make_shared<const StateKey>(std::string(32, 'k'));
    } catch (const UnsupportedError& absent) {
      MESSAGE("skipped: ", std::string(absent.what()));
      return;
    }
    const LiveModel model(threads(), program, options), elsewhere(threads(), program, options), stranger(threads(), program);
    Executor& on = threads().executor();
    const std::int64_t rows = whole.rows[0].dim(0), cut = random.between(0, rows);
    LiveStart start;
    start.given["boot"] = whole.boots[0];
    const LiveSession session = sync_wait(on, model.open(std::move(start)));
    sync_wait(on, session.push(whole.rows[0].rows(0, cut)));
    const std::string state = sync_wait(on, session.save());
    std::vector<LiveSession> all;
    all.push_back(sync_wait(on, session.fork()));
    for (const LiveModel* one : {&model, &elsewhere}) {
      LiveStart again;
      again.state = state;
      all.push_back(sync_wait(on, one->open(std::move(again))));
    }
    const std::string wanted = WholeRun::bytes(whole.outputs[0]);
    const auto rest = [&](const LiveSession& one) {
      sync_wait(on, one.push(whole.rows[0].rows(cut, rows)));
      sync_wait(on, one.finish());
      return sync_wait(on, taker(&one, "y"));
    };
    for (const LiveSession& one : all) {
      CHECK(one.steps() == static_cast<std::uint64_t>(cut));
      CHECK(rest(one) == wanted.substr(static_cast<std::size_t>(cut) * hidden * sizeof(float)));
    }
    CHECK(rest(session) == wanted);
    for (const std::string& wrong : {state, state.substr(1), std::string("x")}) {
      LiveStart again;
      again.state = wrong;
      CHECK(
          error_of<SavedStateError>((wrong == state ? stranger : model).open(std::move(again))).starts_with("saved state: expected bytes"));
    }
  }
}

TEST_CASE("a step that fails ends its session alone, by its name and its step") {
  LiveOptions options;
  options.recurrence.states = {{"sum", "next_sum"}};
  const LiveModel model(threads(), live_lookup(), options);
  LiveStart start;
  start.name = "wrong";
  const LiveSession bad = sync_wait(threads().executor(), model.open(std::move(start)));
  const LiveSession good = sync_wait(threads().executor(), model.open());
  const auto rows = [](std::int64_t index) { return Tensor::from<std::int64_t>({index}); };
  for (const LiveSession* session : {&bad, &good}) sync_wait(threads().executor(), session->push(rows(1)));
  sync_wait(threads().executor(), bad.push(rows(7)));
  sync_wait(threads().executor(), good.push(rows(2)));
  sync_wait(threads().executor(), good.finish());
  CHECK(sync_wait(threads().executor(), taker(&good, "y")).size() == 4 * sizeof(float));
  const std::string why = error_of<LiveError>(taker(&bad, "y"));
  CHECK(why.starts_with("session " + std::to_string(bad.id()) + " 'wrong', step 1: "));
}

TEST_CASE("sessions on an io_context of the embedder's take callbacks, futures and awaitables, and a cancellation slot") {
  Random random(5);
  const Program program = live_listing(random, features, hidden);
  const WholeRun whole(program, random, 1, 30, features, hidden);
  asio::io_context io;
  RuntimeOptions on_io;
  on_io.context = &io;
  Runtime runtime(on_io);
  LiveModel model(runtime, program);
  std::string bytes;
  bool cancelled = false;
  const auto client = [](LiveModel* to, const WholeRun* with, std::string* got) -> asio::awaitable<void> {
    LiveStart start;
    start.given["boot"] = with->boots[0];
    LiveSession session = co_await to->async_open(std::move(start), asio::use_awaitable);
    co_await session.async_push(LoDTensor(with->rows[0]), asio::use_awaitable);
    co_await session.async_finish(asio::use_awaitable);
    for (;;) {
      std::optional<LiveRows> rows = co_await session.async_next(asio::use_awaitable);
      if (!rows) break;
      *got += WholeRun::bytes(rows->at("y").tensor());
    }
  };
  std::exception_ptr failed;
  asio::co_spawn(io, client(&model, &whole, &bytes), [&](std::exception_ptr error) { failed = error; });
  io.run();
  CHECK(failed == nullptr);
  CHECK(bytes == WholeRun::bytes(whole.outputs[0]));
  io.restart();
  std::future<LiveSession> opened = model.async_open(LiveStart(), asio::use_future);
  io.run();
  const LiveSession session = opened.get();
  asio::cancellation_signal signal;
  session.async_next(asio::bind_cancellation_slot(
      signal.slot(), [&](std::exception_ptr error, const std::optional<LiveRows>&) { cancelled = error != nullptr; }));
  io.restart();
  io.poll();
  CHECK_FALSE(cancelled);
  signal.emit(asio::cancellation_type::terminal);
  io.restart();
  io.run();
  CHECK(cancelled);
  CHECK(model.live_sessions() == 1);
}

namespace {

/// h = (h + x) / 2 over rows of `width`.
Program smoothing(std::int64_t width = 1) {
  using namespace millrace::build;
  Program program;
  const Guard guard(program);
  const Var x = input("x", VarType(DType::f32, {DDim::unknown, width}, 1));
  const Var boot = input("boot", VarType(DType::f32, {DDim::unknown, width}));
  const auto [steps, order] = unpack(x, 0, sort_by_length);
  const Var n = steps.size();
  const build::TensorArray states(n, order, "states");
  Var step = 0;
  auto loop = while_loop({step});
  {
    auto frame = loop.frame();
    loop.break_if(equal(step, n));
    const Var now = steps.read(step);
    states.write(step, (shrink(states.read(step - 1, boot), now) + now) / 2.0f);
    step.update(step + 1);
  }
  output("h", pack(states, 0, order));
  return program;
}

/// Rows of two levels of sequences, through a GRU.
Program two_levels(Random& random) {
  Program program;
  const build::Guard guard(program);
  const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, features}, 2));
  const layers::GruWeights weights{
      random_tensor(random, {features, 3 * hidden}), random_tensor(random, {hidden, 3 * hidden}), random_tensor(random, {3 * hidden}), {}};
  build::output("y", layers::gru(x, {weights}).y);
  return program;
}

Tensor column(const std::vector<float>& values) { return Tensor::from<float>(values, DDim{static_cast<std::int64_t>(values.size()), 1}); }

/// The states of `smoothing` behind each row.
std::vector<float> smoothed(const std::vector<float>& rows) {
  std::vector<float> states;
  float state = 0;
  for (const float row : rows) states.push_back(state = (state + row) / 2.0f);
  return states;
}

/// The next results, as many as `count`.
std::vector<float> next_results(const LiveSession& session, std::size_t count) {
  std::vector<float> made;
  while (made.size() < count) {
    const std::optional<LiveRows> rows = sync_wait(threads().executor(), session.next());
    REQUIRE(rows);
    for (const float value : rows->at("h").tensor().to_vector<float>()) made.push_back(value);
  }
  return made;
}

constexpr std::chrono::milliseconds briefly(5);

}  // namespace

TEST_CASE("a reset or finish that is cancelled while results hold it up never happens, and rows behind it go on with the state") {
  LiveOptions options;
  options.queued_out = 16;  // results hold the sequence up
  const LiveModel model(threads(), smoothing(), options);
  Executor& on = threads().executor();
  std::vector<float> rows(64, 64.0f);
  rows.insert(rows.end(), {1000, 1000});
  const std::vector<float> wanted = smoothed(rows);
  for (const bool finish : {false, true}) {
    INFO("finish ", finish);
    const LiveSession session = sync_wait(on, model.open());
    sync_wait(on, session.push(column(std::vector<float>(64, 64.0f))));
    CHECK(error_of<DeadlineError>(finish ? session.finish(briefly) : session.reset(briefly)) != "no error");
    sync_wait(on, session.push(column({1000, 1000})));
    CHECK(next_results(session, wanted.size()) == wanted);
    CHECK(session.steps() == wanted.size());
    sync_wait(on, session.finish());
    CHECK_FALSE(sync_wait(on, session.next()));
  }
}

TEST_CASE("a save or fork that is cancelled takes nothing from the operation behind it") {
  const LiveModel model(threads(), smoothing());
  Executor& on = threads().executor();
  for (int round = 0; round < 50; ++round) {
    const LiveSession session = sync_wait(on, model.open());
    sync_wait(on, session.push(column({8, 4})));
    // It ends in time or not: the deadline passes before, within or behind the save.
    try {
      static_cast<void>(sync_wait(on, session.fork(std::chrono::microseconds(5 * round))));
    } catch (const DeadlineError&) {
    }
    sync_wait(on, session.push(column({2})));
    sync_wait(on, session.finish());
    CHECK(next_results(session, 3) == smoothed({8, 4, 2}));
    CHECK_FALSE(sync_wait(on, session.next()));
  }
}

TEST_CASE("a push to many sessions of which one has ended reaches the others, and throws the error of that one") {
  const LiveModel model(threads(), smoothing());
  Executor& on = threads().executor();
  for (int round = 0; round < 20; ++round) {
    std::vector<LiveSession> sessions;
    std::vector<LiveId> ids;
    for (int i = 0; i < 4; ++i) {
      sessions.push_back(sync_wait(on, model.open()));
      ids.push_back(sessions.back().id());
    }
    sync_wait(on, sessions[1].finish());
    const LoDTensor rows(column({1, 2, 3, 4, 5, 6, 7, 8}), LoD::from_lengths({{2, 2, 2, 2}}));
    CHECK(error_of<ArgumentError>(model.push(ids, rows)) == "session " + std::to_string(ids[1]) + ": expected nothing after finish");
    for (const std::size_t i : {0, 2, 3}) CHECK(sync_wait(on, sessions[i].flush()) == 2);
  }
}

TEST_CASE("rows and given values that nothing was written to are refused") {
  const LiveModel model(threads(), smoothing());
  Executor& on = threads().executor();
  const LiveSession session = sync_wait(on, model.open());
  const Tensor unwritten(DType::f32, {2, 1});
  CHECK(error_of<UninitializedError>(session.push(unwritten)).find("input 'x': expected rows that were written") != std::string::npos);
  CHECK_THROWS_AS(session.try_push({{"x", LoDTensor(unwritten)}}), UninitializedError);
  CHECK(error_of<UninitializedError>(model.push({session.id()}, LoDTensor(unwritten, LoD::from_lengths({{2}})))) != "no error");
  LiveStart start;
  start.given["boot"] = Tensor(DType::f32, {1, 1});
  CHECK(error_of<UninitializedError>(model.open(std::move(start))).find("given 'boot': expected a value that was written") !=
        std::string::npos);
  sync_wait(on, session.push(column({2})));
  CHECK(next_results(session, 1) == smoothed({2}));
}

TEST_CASE("a push of inner sequences that is refused opens none") {
  Random random(9);
  const LiveModel model(threads(), two_levels(random));
  Executor& on = threads().executor();
  const LiveSession session = sync_wait(on, model.open());
  const LoD two = LoD::from_lengths({{1, 2}});
  CHECK(error_of<ShapeError>(session.push(LoDTensor(random_tensor(random, {3, features + 1}), two))) != "no error");
  CHECK(error_of<UninitializedError>(session.push(LoDTensor(Tensor(DType::f32, {3, features}), two))) != "no error");
  CHECK(error_of<LoDError>(session.push(LoDTensor(random_tensor(random, {3, features}), LoD::from_lengths({{2}, {1, 2}})))) ==
        "session " + std::to_string(session.id()) +
            ", input 'x': expected at most 1 levels of LoD, as many as inner sequences may open, found 2");
  CHECK(error_of<LoDError>(session.push(random_tensor(random, {3, features}))).find("expected open of level 1 before rows") !=
        std::string::npos);
  sync_wait(on, session.push(LoDTensor(random_tensor(random, {3, features}), two)));
  CHECK(sync_wait(on, session.flush()) == 3);
  CHECK(error_of<ArgumentError>(session.close_level(1)).find("found level 1 and none open") != std::string::npos);
  sync_wait(on, session.open_level(1));
  CHECK(error_of<ArgumentError>(session.open_level(1)).find("open: expected close of level 1 first, found level 1") != std::string::npos);
}

TEST_CASE("a push of many inner sequences takes time for their number, and not for its square") {
  Random random(9);
  const LiveModel model(threads(), two_levels(random));
  Executor& on = threads().executor();
  const auto milliseconds = [&](std::int64_t count) {
    const LiveSession session = sync_wait(on, model.open());
    const LoDTensor rows(random_tensor(random, {count, features}), LoD::from_lengths({LoD::Level(static_cast<std::size_t>(count), 1)}));
    const auto begun = std::chrono::steady_clock::now();
    Running<void> push = start_run(on, session.push(rows), "push");
    for (std::int64_t taken = 0; taken < count;) taken += sync_wait(on, session.next()).value().at("y").tensor().dim(0);
    push.get();
    return std::chrono::duration<double, std::milli>(std::chrono::steady_clock::now() - begun).count();
  };
  milliseconds(500);
  const double few = milliseconds(1000), many = milliseconds(8000);
  INFO("1000: ", few, " ms, 8000: ", many, " ms");
  CHECK(many < 32 * few + 100);  // 64 times as long where each cuts all
}

TEST_CASE("the limit of memory bounds the states of live sessions: those beyond it fail, the others go on") {
  RuntimeOptions limited;
  limited.memory_limit = std::size_t{8} << 20;
  limited.threads = 1;
  Runtime runtime(limited);
  Executor& on = runtime.executor();
  constexpr std::int64_t width = 65536;  // a state takes 256 KiB
  const LiveModel model(runtime, smoothing(width));
  const Tensor row = Tensor::from<float>(std::vector<float>(width, 1), DDim{1, width});
  std::vector<LiveSession> good, bad;
  for (int i = 0; i < 60; ++i) {
    LiveSession session = sync_wait(on, model.open());
    sync_wait(on, session.push(row));
    try {
      const std::optional<LiveRows> made = sync_wait(on, session.next());
      CHECK(made);
      good.push_back(std::move(session));
    } catch (const LiveError& error) {
      CHECK_THROWS_AS(std::rethrow_exception(error.cause()), OutOfMemoryError);
      bad.push_back(std::move(session));
    }
  }
  CHECK(good.size() >= 8);
  CHECK(good.size() <= 32);
  for (const LiveSession& session : good) {
    sync_wait(on, session.push(row));
    const std::optional<LiveRows> rows = sync_wait(on, session.next());
    REQUIRE(rows);
    CHECK(rows->at("h").tensor().to_vector<float>().back() == 0.75f);
  }
}

TEST_CASE("a handle without a session says so in every operation") {
  const LiveModel model(threads(), smoothing());
  LiveSession session = sync_wait(threads().executor(), model.open());
  const LiveSession moved = std::move(session);
  const LiveSession& gone = session;
  const char* const why = "live session: expected a session, found a handle without one, such as one that was moved from";
  std::optional<LiveRows> made;
  CHECK(gone.id() == 0);
  CHECK_NOTHROW(gone.cancel());
  CHECK_THROWS_WITH_AS(static_cast<void>(LiveSession().next()), why, ArgumentError);
  CHECK_THROWS_WITH_AS(gone.steps(), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(gone.push(column({1}))), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(gone.next()), why, ArgumentError);
  CHECK_THROWS_WITH_AS(gone.try_push(LiveRows()), why, ArgumentError);
  CHECK_THROWS_WITH_AS(gone.try_next(made), why, ArgumentError);
  CHECK_THROWS_WITH_AS(static_cast<void>(gone.fork()), why, ArgumentError);
  CHECK_THROWS_WITH_AS(gone.async_finish(asio::use_future), why, ArgumentError);
}

TEST_CASE("values of another kind than the input's are an error that the handler is told") {
  Random random(8);
  const LiveModel model(threads(), live_listing(random, features, hidden));
  const LiveSession session = sync_wait(threads().executor(), model.open());
  const std::vector<double> wrong(features);
  std::future<void> told;
  CHECK_NOTHROW(told = session.async_push(std::span<const double>(wrong), asio::use_future));
  CHECK_THROWS_WITH_AS(told.get(), doctest::Contains("expected whole rows of f32"), ArgumentError);
  const std::vector<float> part(features + 1);
  CHECK_NOTHROW(told = session.async_push(std::span<const float>(part), asio::use_future));
  CHECK_THROWS_AS(told.get(), ArgumentError);
}

TEST_CASE("spans, rows by name and deadlines have initiating functions of a session and of a model") {
  const LiveModel model(threads(), smoothing());
  const LiveSession session = model.async_open(LiveStart(), asio::use_future, std::chrono::seconds(60)).get();
  const std::vector<float> row{8};
  session.async_push(std::span<const float>(row), asio::use_future).get();
  LiveRows rows;
  rows.emplace("x", LoDTensor(column({4, 2}), LoD::from_lengths({{2}})));
  model.async_push({session.id()}, rows, asio::use_future, std::chrono::seconds(60)).get();
  CHECK(next_results(session, 3) == smoothed({8, 4, 2}));
  CHECK_THROWS_AS(model.async_next(asio::use_future, briefly).get(), DeadlineError);
}

TEST_CASE("a state with more rows that wait than a model queues is refused as a saved state") {
  LiveOptions options;
  try {
    options.state_key = std::make_shared<const StateKey>(StateKey::random());
  } catch (const UnsupportedError& absent) {
    MESSAGE("skipped: ", std::string(absent.what()));
    return;
  }
  Program sum;
  {
    const build::Guard guard(sum);
    const VarType rows(DType::f32, {DDim::unknown, 1}, 1);
    build::output("z", build::input("x", rows) + build::input("y", rows));
  }
  const LiveModel wide(threads(), sum, options);
  options.queued_in = 16;
  const LiveModel narrow(threads(), sum, options);
  const LiveSession session = sync_wait(threads().executor(), wide.open());
  LiveRows ahead;
  ahead.emplace("x", column(std::vector<float>(100, 1)));
  sync_wait(threads().executor(), session.push(std::move(ahead)));
  LiveStart start;
  start.state = sync_wait(threads().executor(), session.save());
  CHECK(error_of<SavedStateError>(narrow.open(start)).find("input 'x': expected at most 16 bytes that wait, found 400") !=
        std::string::npos);
  CHECK_NOTHROW(sync_wait(threads().executor(), wide.open(start)));
}
