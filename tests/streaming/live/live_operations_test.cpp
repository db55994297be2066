// SPDX-License-Identifier: Apache-2.0
// Every initiating function of LiveModel and LiveSession, with every kind of completion token, and in every order of destruction.
#include <millrace/streaming/live/live_model.h>

#include <atomic>
#include <future>

#include <boost/asio/strand.hpp>
#include <boost/asio/thread_pool.hpp>

#include <doctest/doctest.h>

#include <millrace/runtime/task/asio.h>
#include <millrace/runtime/task/sync_wait.h>
#include <streaming/live/live_model.h>
#include <support/completion_tokens.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::int64_t features = 3, hidden = 4;

const auto cancelled = [](std::exception_ptr error, auto&&...) {
  REQUIRE(error != nullptr);
  CHECK_THROWS_AS(std::rethrow_exception(error), CancelledError);
};

/// A runtime on the context of an embedder.
struct Embedded {
  Embedded() : runtime(options(context)) {}
  static RuntimeOptions options(asio::io_context& on) {
    RuntimeOptions own;
    own.context = &on;
    return own;
  }
  LiveSession open(const LiveModel& model) {
    std::optional<LiveSession> opened;
    model.async_open({}, [&](std::exception_ptr, LiveSession session) { opened = std::move(session); });
    run_until(context, opened);
    return *std::move(opened);
  }

  asio::io_context context{1};
  Runtime runtime;
};

/// The rows of one sequence through callbacks, strand and pool of an embedder: chunk behind chunk, with what is there taken beside it.
class Pump : public std::enable_shared_from_this<Pump> {
 public:
  Pump(LiveSession session, Tensor rows, std::uint64_t seed, asio::any_io_executor executor)
      : session_(std::move(session)), rows_(std::move(rows)), random_(seed), executor_(std::move(executor)) {}

  std::future<std::string> start() {
    asio::post(executor_, [self = shared_from_this()] {
      self->push();
      self->take();
    });
    return done_.get_future();
  }

 private:
  void push() {
    if (at_ == rows_.dim(0)) {
      session_.async_finish(
          asio::bind_executor(executor_, [self = shared_from_this()](std::exception_ptr error) { CHECK(error == nullptr); }));
      return;
    }
    const std::int64_t to = std::min(rows_.dim(0), at_ + random_.between(1, 7));
    LoDTensor piece(rows_.rows(at_, to));
    at_ = to;
    session_.async_push(std::move(piece), asio::bind_executor(executor_, [self = shared_from_this()](std::exception_ptr error) {
                          CHECK(error == nullptr);
                          self->push();
                        }));
  }
  void take() {
    session_.async_next(asio::bind_executor(executor_, [self = shared_from_this()](std::exception_ptr error, std::optional<LiveRows> rows) {
      if (error != nullptr) return self->done_.set_exception(error);
      if (!rows) return self->done_.set_value(self->bytes_);
      self->bytes_ += WholeRun::bytes(rows->at("y").tensor());
      self->take();
    }));
  }

  LiveSession session_;
  Tensor rows_;
  Random random_;
  asio::any_io_executor executor_;
  std::int64_t at_ = 0;
  std::string bytes_;
  std::promise<std::string> done_;
};

asio::awaitable<std::string> awaited(const LiveSession* session, Tensor rows) {
  std::string bytes;
  for (std::int64_t at = 0; at < rows.dim(0); ++at) {
    LoDTensor row(rows.rows(at, at + 1));
    co_await session->async_push(std::move(row), asio::use_awaitable);
    const std::optional<LiveRows> made = co_await session->async_next(asio::use_awaitable);
    bytes += WholeRun::bytes(made->at("y").tensor());
  }
  co_await session->async_finish(asio::use_awaitable);
  const std::optional<LiveRows> none = co_await session->async_next(asio::use_awaitable);
  CHECK_FALSE(none);
  co_return bytes;
}

}  // namespace

TEST_CASE("every operation of a live session takes every completion token") {
  Random random(1);
  Embedded here;
  const Program program = live_listing(random, features, hidden);
  const LiveModel model(here.runtime, program);
  const Tensor row = random_tensor(random, {1, features});
  const LiveSession session = here.open(model);
  check_completion_tokens(here.context, [&]<class Token>(Token&& token) { return model.async_open({}, std::forward<Token>(token)); });
  check_completion_tokens(here.context,
                          [&]<class Token>(Token&& token) { return session.async_push(LoDTensor(row), std::forward<Token>(token)); });
  check_completion_tokens(here.context, [&]<class Token>(Token&& token) {
    LiveRows rows;
    rows.emplace("x", LoDTensor(row));
    return session.async_push(std::move(rows), std::forward<Token>(token));
  });
  check_completion_tokens(here.context, [&]<class Token>(Token&& token) {
    LoDTensor rows(row, LoD::from_lengths({{1}}));
    return model.async_push({session.id()}, std::move(rows), std::forward<Token>(token));
  });
  check_completion_tokens(here.context, [&]<class Token>(Token&& token) { return session.async_flush(std::forward<Token>(token)); });
  check_completion_tokens(here.context, [&]<class Token>(Token&& token) {
    const LoDTensor one(row);
    session.async_push(one, [](std::exception_ptr error) { CHECK(error == nullptr); });
    return session.async_next(std::forward<Token>(token));
  });
  check_completion_tokens(here.context, [&]<class Token>(Token&& token) {
    const LoDTensor one(row);
    session.async_push(one, [](std::exception_ptr error) { CHECK(error == nullptr); });
    return model.async_next(std::forward<Token>(token));
  });
  check_completion_tokens(here.context, [&]<class Token>(Token&& token) { return session.async_reset(std::forward<Token>(token)); });
  check_completion_tokens(here.context, [&]<class Token>(Token&& token) { return session.async_fork(std::forward<Token>(token)); });
  try {
    static_cast<void>(StateKey::random());
    check_completion_tokens(here.context, [&]<class Token>(Token&& token) { return session.async_save(std::forward<Token>(token)); });
  } catch (const UnsupportedError& absent) {
    MESSAGE("save is skipped: ", std::string(absent.what()));
  }
  std::vector<LiveSession> ending;
  for (int i = 0; i < 5; ++i) ending.push_back(here.open(model));
  check_completion_tokens(here.context, [&, next = std::size_t{0}]<class Token>(Token&& token) mutable {
    return ending.at(next++).async_finish(std::forward<Token>(token));
  });
}

TEST_CASE("opening and closing of levels take every completion token") {
  using namespace millrace::build;
  Embedded here;
  Program program;
  {
    const Guard guard(program);
    const Var x = input("x", VarType(DType::f32, {DDim::unknown, features}, 2));
    output("y", build::tanh(x));
  }
  const LiveModel model(here.runtime, program);
  std::vector<LiveSession> open;
  for (int i = 0; i < 5; ++i) open.push_back(here.open(model));
  check_completion_tokens(here.context, [&, next = std::size_t{0}]<class Token>(Token&& token) mutable {
    return open.at(next++).async_open_level(1, std::forward<Token>(token));
  });
  check_completion_tokens(here.context, [&, next = std::size_t{0}]<class Token>(Token&& token) mutable {
    return open.at(next++).async_close_level(1, std::forward<Token>(token));
  });
}

TEST_CASE("operations that wait are cancelled by their slot or their deadline, and the session goes on") {
  Random random(2);
  Embedded here;
  const Program program = live_listing(random, features, hidden);
  const WholeRun whole(program, random, 1, 30, features, hidden);
  const Tensor& rows = whole.rows[0];
  LiveOptions options;
  options.queued_in = options.queued_out = 1;
  const LiveModel model(here.runtime, program, options);
  std::optional<LiveSession> session;
  LiveStart start;
  start.given["boot"] = whole.boots[0];
  model.async_open(std::move(start), [&](std::exception_ptr, LiveSession opened) { session = std::move(opened); });
  run_until(here.context, session);
  check_cancellation(here.context, [&](auto handler) { session->async_next(std::move(handler)); }, cancelled);
  check_cancellation(here.context, [&](auto handler) { model.async_next(std::move(handler)); }, cancelled);
  std::optional<std::exception_ptr> late;
  session->async_next([&](std::exception_ptr error, const std::optional<LiveRows>&) { late = error; }, std::chrono::milliseconds(5));
  run_until(here.context, late);
  CHECK_THROWS_AS(std::rethrow_exception(*late), DeadlineError);
  // A push, a flush and a finish wait while no result is taken, here that of a row pushed before. A cancelled operation takes nothing back.
  const LiveSession silent = here.open(model);
  std::optional<bool> answered;
  silent.async_push(LoDTensor(random_tensor(random, {1, features})), [&](std::exception_ptr) {
    silent.async_flush([&](std::exception_ptr error, std::uint64_t) { answered = error == nullptr; });
  });
  run_until(here.context, answered);
  CHECK(*answered);
  const LoDTensor many(random_tensor(random, {100, features}));
  check_cancellation(here.context, [&](auto handler) { silent.async_push(many, std::move(handler)); }, cancelled);
  check_cancellation(here.context, [&](auto handler) { silent.async_flush(std::move(handler)); }, cancelled);
  check_cancellation(here.context, [&](auto handler) { silent.async_finish(std::move(handler)); }, cancelled);
  std::optional<std::string> bytes;
  asio::co_spawn(here.context, awaited(&*session, rows), [&](std::exception_ptr error, std::string all) {
    CHECK(error == nullptr);
    bytes = std::move(all);
  });
  run_until(here.context, bytes);
  CHECK(*bytes == WholeRun::bytes(whole.outputs[0]));
}

TEST_CASE("sessions on strands of a pool of threads, by callbacks, have the bits of the whole run") {
  for (const std::uint64_t seed : seeds(4)) {
    INFO("seed ", seed);
    Random random(seed);
    const Program program = live_listing(random, features, hidden);
    const WholeRun whole(program, random, 8, 60, features, hidden);
    LiveOptions options;
    options.queued_in = options.queued_out = static_cast<std::size_t>(random.between(1, 300));
    Runtime runtime;
    asio::thread_pool pool(3);
    const LiveModel model(runtime, program, options);
    std::vector<std::future<std::string>> all;
    for (std::size_t i = 0; i < whole.rows.size(); ++i) {
      LiveStart start;
      start.given["boot"] = whole.boots[i];
      LiveSession session = model.async_open(std::move(start), asio::use_future).get();
      all.push_back(std::make_shared<Pump>(std::move(session), whole.rows[i], seed + i, asio::make_strand(pool))->start());
    }
    for (std::size_t i = 0; i < all.size(); ++i) CHECK(all[i].get() == WholeRun::bytes(whole.outputs[i]));
    pool.join();
  }
}

TEST_CASE("a session, its model and their runtime go in any order while operations wait, each of which completes once") {
  for (const std::uint64_t seed : seeds(30)) {
    INFO("seed ", seed);
    Random random(seed);
    const Program program = live_listing(random, features, hidden);
    LiveOptions options;
    options.queued_in = options.queued_out = 1;
    auto runtime = std::make_unique<Runtime>();
    auto model = std::make_unique<LiveModel>(*runtime, program, options);
    std::vector<LiveSession> sessions;
    std::atomic<int> completed{0};
    int begun = 0;
    const auto count = [&](std::exception_ptr, auto&&...) { ++completed; };
    const LoDTensor many(random_tensor(random, {50, features}));
    for (int i = 0; i < 4; ++i) {
      sessions.push_back(sync_wait(runtime->executor(), model->open()));
      const LiveSession& one = sessions.back();
      if (random.coin()) one.async_next(count), ++begun;
      if (random.coin())
        one.async_push(many, count), ++begun;
      else
        one.async_fork(count), ++begun;
    }
    if (random.coin()) model->async_next(count), ++begun;
    switch (random.between(0, 2)) {
      case 0:
        sessions.clear();
        model.reset();
        break;
      case 1:
        model.reset();
        sessions.clear();
        break;
      default:
        while (!sessions.empty()) {
          sessions.erase(sessions.begin() + random.between(0, static_cast<std::int64_t>(sessions.size()) - 1));
          if (sessions.size() == 2) model.reset();
        }
    }
    runtime.reset();  // joins: every handler was called before
    CHECK(completed == begun);
  }
}
