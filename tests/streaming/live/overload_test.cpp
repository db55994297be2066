// SPDX-License-Identifier: Apache-2.0
// A server that is offered more sessions than it holds.
#include <millrace/streaming/live/server.h>

#include <algorithm>
#include <chrono>
#include <thread>

#include <doctest/doctest.h>

#include <millrace/streaming/client/stream_client.h>
#include <streaming/live/live_model.h>
#include <streaming/live/served.h>

using namespace millrace;
using namespace millrace::testing;

namespace {

using Clock = std::chrono::steady_clock;

constexpr std::int64_t features = 3, hidden = 4;
constexpr double rate = 25, seconds = 1;
constexpr std::size_t held = 20;  // sessions

struct Seen {
  std::size_t on_time = 0, refused = 0, served = 0;
};

/// So many clients at once, each for a second at its rate. On time is a result within half a second.
Seen offer(const Served& served, std::size_t clients) {
  ClientPlan plan;
  plan.start.reply = ReplyFormat::binary;
  plan.unit_bytes = features * sizeof(float);
  plan.bytes = std::string(static_cast<std::size_t>(rate * seconds) * plan.unit_bytes, '\0');
  plan.units_per_second = rate;
  ClientOptions options;
  options.paced_piece = std::chrono::milliseconds(40);
  options.speed = 1;
  Seen seen;
  for (const ClientRecord& record : stream_plans(served.url(), std::vector<ClientPlan>(clients, plan), options)) {
    if (!record.error.empty()) {
      CHECK(record.error.starts_with("overload: with another session about "));
      ++seen.refused;
      continue;
    }
    ++seen.served;
    for (std::size_t step = 0; step < record.received.size(); ++step) {
      const double due = static_cast<double>(step + 1) / rate;
      if (std::chrono::duration<double>(record.received[step] - record.begun).count() < due + 0.5) ++seen.on_time;
    }
  }
  return seen;
}

}  // namespace

TEST_CASE("what is offered beyond the capacity is refused, and costs those who are in nothing") {
  Random random(1);
  ServerOptions options;
  options.admission.capacity = rate * held;
  options.admission.session_rate = rate;
  Served served(live_listing(random, features, hidden), options);
  const Seen once = offer(served, held);
  CHECK(once.refused == 0);
  REQUIRE(once.on_time > 0);
  CHECK(served.ask([&] { return served.server->load().capacity; }) == rate * held);
  for (const std::size_t times : {2, 10}) {
    const double wanted = 0.9 * static_cast<double>(once.on_time);
    Seen more;
    for (int tries = 0; tries < 4 && static_cast<double>(more.on_time) < wanted; ++tries) {  // the machine has other work
      std::this_thread::sleep_for(std::chrono::milliseconds(2200));                          // those before are seen to be gone
      more = offer(served, times * held);
      CHECK(more.served == held);
    }
    MESSAGE(times, " times the load: ", more.served, " served, ", more.refused, " refused, ", more.on_time, " results on time, of ",
            once.on_time, " at once the load");
    CHECK(static_cast<double>(more.on_time) >= wanted);
  }
}

TEST_CASE("a session too many is told within 100 ms, with a time to come back") {
  Random random(1);
  ServerOptions options;
  options.admission.capacity = 10;
  options.admission.session_rate = 25;
  Served served(live_listing(random, features, hidden), options);
  double fastest = 1;
  for (int tries = 0; tries < 10; ++tries) {  // the quickest: the machine has other work
    const auto begun = Clock::now();
    const ClientRecord record = stream_plans(served.url(), std::vector<ClientPlan>(1)).at(0);
    fastest = std::min(fastest, std::chrono::duration<double>(Clock::now() - begun).count());
    CHECK(record.error.starts_with("overload: "));
  }
  CHECK(fastest < 0.1);
}
