// SPDX-License-Identifier: Apache-2.0
#include <millrace/streaming/live/live_place.h>

#include <condition_variable>
#include <mutex>

#include <doctest/doctest.h>

#include <millrace/runtime/task/sync_wait.h>
#include <millrace/streaming/live/live_model.h>
#include <millrace/streaming/protocol/data.h>
#include <millrace/streaming/protocol/row_assembler.h>
#include <millrace/tensor/device.h>
#include <streaming/live/allocation_count.h>
#include <streaming/live/live_model.h>
#include <streaming/live/table.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

constexpr std::int64_t features = 3, hidden = 4;

/// A place whose batcher lives under a lock.
class LockedPlace final : public LivePlace {
 public:
  explicit LockedPlace(const std::shared_ptr<const Recurrence>& recurrence) : LivePlace(recurrence, options()) {}
  LockedPlace(const std::shared_ptr<const Recurrence>& recurrence, const AllocationFaults& faults)
      : LivePlace(recurrence, options()), faults_(std::in_place, faults) {}
  ~LockedPlace() override { join(); }

  /// Sends ticks off until nothing is ready.
  void run() {
    std::unique_lock lock(mutex_);
    if (faults_) post_to_ticks(*faults_);
    pump();
    came_back_.wait(lock, [this] { return idle(); });
  }
  int idle_calls = 0;
  std::uint64_t failed_allocations() const { return faults_->failed; }

 private:
  /// On the thread of ticks.
  struct Faults final : Runnable {
    explicit Faults(const AllocationFaults& of) : wanted(of) {}
    void execute() noexcept override { fail_allocations(wanted); }
    AllocationFaults wanted;
    std::uint64_t failed = 0;
  };
  static Options options() {
    Options own;
    own.device = make_cpu_device();
    return own;
  }
  void tick_done() noexcept override {
    if (faults_) faults_->failed += end_allocation_faults();
    const std::lock_guard lock(mutex_);
    finish();
    came_back_.notify_all();
  }
  void became_idle() override { ++idle_calls; }

  std::optional<Faults> faults_;
  std::mutex mutex_;
  std::condition_variable came_back_;
};

/// Counts steps, and keeps what each gave first.
class CountedSteps final : public Batcher::Sink {
 public:
  void step(std::uint64_t seq, std::span<const std::span<const std::byte>> rows) override {
    CHECK(seq == steps++);
    if (bytes.size() + rows[0].size() <= bytes.capacity()) bytes.append(reinterpret_cast<const char*>(rows[0].data()), rows[0].size());
  }
  void failed(std::uint64_t, std::exception_ptr) override { FAIL("a step failed"); }
  void drained() override { ended = true; }

  std::uint64_t steps = 0;
  std::string bytes;
  bool ended = false;
};

}  // namespace

TEST_CASE("a place steps what is ready on its thread, with the bits of the whole run, and allocates nothing once it is warm") {
  Random random(7);
  const Program program = live_listing(random, features, hidden);
  const WholeRun whole(program, random, 5, 200, features, hidden);
  LockedPlace place(recurrence_of(program));
  std::vector<RowAssembler> sources;
  std::vector<CountedSteps> sinks(whole.rows.size());
  std::vector<LiveId> ids;
  sources.reserve(sinks.size());
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    RowAssembler& source = sources.emplace_back("x", DType::f32, DDim{features}, std::size_t{1} << 20);
    sinks[i].bytes.reserve(whole.outputs[i].bytes());
    ids.push_back(place.batcher().open({&source}, sinks[i], {whole.boots[i]}));
  }
  const auto feed = [&](std::int64_t begin, std::int64_t end) {
    for (std::size_t i = 0; i < sinks.size(); ++i) {
      const std::int64_t rows = whole.rows[i].dim(0);
      const Tensor piece = whole.rows[i].rows(std::min(begin, rows), std::min(end, rows));
      sources[i].feed({static_cast<const std::byte*>(piece.raw()), piece.bytes()});
      place.batcher().changed(ids[i]);
    }
  };
  feed(0, 10);
  place.run();
  CHECK(place.idle_calls == 1);
  feed(10, 200);
  AllocationCount count;
  place.run();
  CHECK(count.stop() == 0);
  for (std::size_t i = 0; i < sinks.size(); ++i) {
    CHECK(sinks[i].bytes == WholeRun::bytes(whole.outputs[i]));
    sources[i].end();
    place.batcher().changed(ids[i]);
    CHECK(sinks[i].ended);
  }
  CHECK(place.batcher().stats().largest == 5);
  CHECK(place.state_bytes() > 0);
}

TEST_CASE(
    "whichever allocation of a tick fails, each row has its result with the same bits or an explicit failure, and starts are not lost") {
  struct Sink final : Batcher::Sink {
    void step(std::uint64_t, std::span<const std::span<const std::byte>> rows) override {
      bytes.append(reinterpret_cast<const char*>(rows[0].data()), rows[0].size());
    }
    void failed(std::uint64_t, std::exception_ptr) override { ++failures; }
    void drained() override {}
    std::string bytes;
    int failures = 0;
  };
  Random random(7);
  const Program program = live_listing(random, features, hidden);
  const WholeRun whole(program, random, 3, 20, features, hidden);
  const std::shared_ptr<const Recurrence> recurrence = recurrence_of(program);
  std::uint64_t hit = 1, failures = 0;
  for (std::uint64_t at = 0; hit > 0; ++at) {
    INFO("allocation ", at);
    if (!fail_allocations({0, 0})) return;
    end_allocation_faults();
    LockedPlace place(recurrence, AllocationFaults{0, at});
    std::vector<RowAssembler> sources;
    std::vector<Sink> sinks(whole.rows.size());
    std::vector<LiveId> ids;
    sources.reserve(sinks.size());
    for (std::size_t i = 0; i < sinks.size(); ++i) {
      RowAssembler& source = sources.emplace_back("x", DType::f32, DDim{features}, std::size_t{1} << 20);
      ids.push_back(place.batcher().open({&source}, sinks[i], {whole.boots[i]}));
    }
    const auto feed = [&](std::size_t i) {
      sources[i].feed({static_cast<const std::byte*>(whole.rows[i].raw()), whole.rows[i].bytes()});
      place.batcher().changed(ids[i]);
    };
    feed(0);
    feed(1);
    place.run();  // the third has a start in the first tick, and rows later
    hit = place.failed_allocations();
    if (sinks[2].failures == 0) feed(2);
    place.run();
    for (std::size_t i = 0; i < sinks.size(); ++i) {
      const std::string wanted = WholeRun::bytes(whole.outputs[i]);
      failures += static_cast<std::uint64_t>(sinks[i].failures);
      if (sinks[i].failures > 0)
        CHECK(wanted.starts_with(sinks[i].bytes));
      else
        CHECK(sinks[i].bytes == wanted);
      CHECK(sinks[i].failures <= 1);
    }
  }
  CHECK(failures < 30);  // most are tried again
}

TEST_CASE("steps of a LiveSession allocate nothing of their own, whatever a push and what is taken cost") {
  Random random(3);
  const Program program = live_listing(random, features, hidden);
  Runtime runtime;
  LiveOptions options;
  options.queued_in = options.queued_out = std::size_t{1} << 20;
  const LiveModel model(runtime, program, options);
  Executor& on = runtime.executor();
  const LiveSession session = sync_wait(on, model.open());
  const Tensor rows = random_tensor(random, {4000, features});
  const auto allocations = [&](std::int64_t steps) {
    const LoDTensor piece(rows.rows(0, steps));
    AllocationCount count;
    sync_wait(on, session.push(piece));
    sync_wait(on, session.flush());
    const std::uint64_t all = count.stop();
    sync_wait(on, session.next());
    return all;
  };
  allocations(4000);
  const std::uint64_t few = allocations(1000), many = allocations(4000);
  CHECK(many <= few + 8);  // results wait in memory that doubles
}

TEST_CASE("steps of a Session allocate their replies, and nothing else") {
  Random random(3);
  Table table(live_listing(random, features, hidden));
  const auto session = table.sit();
  StartMessage start;
  start.reply = ReplyFormat::binary;
  session->receive(text_message(to_json(start)));
  Tick tick;
  TickResult result;
  const std::vector<float> values(200 * features, 0.5f);
  const auto allocations = [&](std::size_t steps) {
    Message message = encode_data({}, std::as_bytes(std::span<const float>(values).first(steps * features)));
    AllocationCount count;
    session->receive(std::move(message));
    while (table.batcher.ready()) {
      table.batcher.take(tick);
      table.slab.run(tick, result);
      table.batcher.finish(result);
    }
    const std::uint64_t all = count.stop();
    while (session->has_output()) session->written(session->take_output().payload.size());
    return all;
  };
  allocations(200);
  const std::uint64_t few = allocations(100), many = allocations(200);
  CHECK(many <= few + 2 * 100);  // the payload of a reply, and its place in the queue
}
