// SPDX-License-Identifier: Apache-2.0
// Work goes on after a failure on a device: some are told, others are not, and streams take work again.
#include <millrace/tensor/recovery.h>

#include <ctime>
#include <string>
#include <thread>

#include <doctest/doctest.h>

#include <gpu/scenario.h>
#include <gpu/spin.h>
#include <millrace/kernels/elementwise.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/gather.h>
#include <millrace/runtime/task/asio.h>
#include <millrace/streaming/client/stream_client.h>
#include <millrace/streaming/live/state_slab.h>
#include <millrace/tensor/copy.h>
#include <millrace/tensor/cuda_device.h>
#include <streaming/live/live_model.h>
#include <streaming/live/served.h>
#include <support/test_place.h>

namespace millrace::testing {
namespace {

std::shared_ptr<Device> tested(std::size_t streams = 4) { return make_device(Place::parse(test_place()), 1, streams); }

/// Rows of a table on the device, behind work that takes a while: an index outside is found when all has been enqueued that needs them.
Tensor looked_up(std::int64_t index, const Tensor& table, StreamRef stream) {
  const Tensor wanted = clone(Tensor::from<std::int64_t>({index, 0}), stream);
  doze(50'000'000, stream);
  return gather(table, wanted, 0, stream);
}

Tensor table_on(StreamRef stream) {
  const Tensor table = clone(Tensor::from<float>({1, 2, 3}), stream);
  table.ready().wait();
  return table;
}

std::vector<float> floats(const Tensor& tensor) { return tensor.copy_to(CpuPlace{}).to_vector<float>(); }

double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }

const std::vector<std::pair<std::string, std::string>> carried{{"sum", "next_sum"}};

/// The answers that a session of live_lookup gets, which asks for row 1 again and again, with their times.
ClientPlan asking(std::int64_t steps, double rows_per_second) {
  ClientPlan plan;
  plan.start.reply = ReplyFormat::binary;
  const std::vector<std::int64_t> indices(static_cast<std::size_t>(steps), 1);
  plan.bytes.assign(reinterpret_cast<const char*>(indices.data()), indices.size() * sizeof(std::int64_t));
  plan.unit_bytes = sizeof(std::int64_t);
  plan.units_per_second = rows_per_second;
  return plan;
}

std::string answers(std::int64_t steps) {
  std::string bytes;
  for (std::int64_t i = 1; i <= steps; ++i) {
    const float row[2] = {3.0f * static_cast<float>(i), 4.0f * static_cast<float>(i)};
    bytes.append(reinterpret_cast<const char*>(row), sizeof row);
  }
  return bytes;
}

/// Four sessions on two places, one of which is lost while they go on.
void serve_through_a_trap() {
  const auto device = tested();
  ServerOptions options;
  options.devices = {device, make_cpu_device()};
  std::vector<std::string> said;
  asio::io_context context(1);
  Server server(context, std::make_shared<const ServedModel>(live_lookup(), StreamConfig(), carried), std::move(options));
  server.on_lost = [&](const std::string& why, std::size_t sessions, std::size_t left) {
    said.push_back(why);
    CHECK(sessions == 2);
    CHECK(left == 1);
  };
  std::thread runs([&] { context.run(); });
  StreamUrl url;
  url.host = "127.0.0.1";
  url.port = server.port();
  constexpr std::int64_t steps = 60;
  ClientOptions watching;
  bool trapped = false;
  watching.on_progress = [&](const ClientProgress& progress) {
    if (progress.steps >= 20 && !std::exchange(trapped, true)) trap(device->stream(1));
  };
  const std::vector<ClientRecord> records = stream_plans(url, std::vector<ClientPlan>(4, asking(steps, 60)), watching);
  std::size_t lost = 0;
  for (const ClientRecord& one : records) {
    INFO("error: ", one.error);
    const std::string got = one.outputs.empty() ? "" : one.outputs[0];
    if (one.error.empty()) {
      CHECK(got == answers(steps));
      continue;
    }
    ++lost;
    CHECK(one.error.starts_with("lost: cuda:0 is lost: "));
    CHECK(one.error.find("cudaErrorLaunchFailure") != std::string::npos);
    // Any call may report the failure first, also one for memory or on a stream that has run no kernel: fault_test.cpp looks for the kernels.
    CHECK(one.error.find(" on cuda:0") != std::string::npos);
    CHECK(answers(steps).starts_with(got));
  }
  CHECK(lost == 2);
  for (const ClientRecord& one : stream_plans(url, std::vector<ClientPlan>(3, asking(5, 1000)))) {
    CHECK(one.error == "");
    CHECK(one.outputs.at(0) == answers(5));
  }
  const double begin = processor_seconds();
  std::this_thread::sleep_for(std::chrono::milliseconds(500));
  CHECK(processor_seconds() - begin < 0.1);
  asio::post(context, [&] { server.drain(); });
  runs.join();
  REQUIRE(said.size() == 1);
  CHECK(server.places().at(0).lost == said[0]);
  CHECK(server.live_sessions() == 0);
}

const Scenario scenarios[] = {{"a kernel traps on one of the places that serve", serve_through_a_trap}};

}  // namespace

TEST_CASE(
    "what a kernel finds wrong fails all that came behind it, on other streams and devices, though nobody waits for what is between") {
  const auto device = tested();
  const Tensor table = table_on(device->stream(0));
  const Tensor other = ones(DDim{2}, DType::f32, device->stream(3));
  const Tensor wrong = looked_up(99, table, device->stream(0));
  const Tensor behind = add(wrong, wrong, device->stream(1));
  const Tensor further = add(behind, behind, device->stream(2));
  CHECK_THROWS_WITH_AS(further.ready().wait(), doctest::Contains("found 99"), IndexError);
  CHECK_THROWS_AS(behind.ready().wait(), IndexError);
  CHECK_THROWS_AS(wrong.ready().wait(), IndexError);
  CHECK(floats(other) == std::vector<float>{1, 1});
  if (cuda_devices().size() < 2) return;
  const auto first = tested();
  const auto second = make_device(CudaPlace{1});
  const Tensor there = table_on(first->stream(0));
  const Tensor copied = clone(looked_up(99, there, first->stream(0)), second->stream(0));
  const Tensor doubled = add(copied, copied, second->stream(1));
  CHECK_THROWS_AS(doubled.ready().wait(), IndexError);
}

TEST_CASE("a stream that came behind another before that failed goes on") {
  const auto device = tested();
  const Tensor table = table_on(device->stream(0));
  const Tensor good = looked_up(2, table, device->stream(0));
  const Tensor doubled = add(good, good, device->stream(1));
  CHECK(floats(doubled) == std::vector<float>{6, 2});
  const Tensor wrong = looked_up(-7, table, device->stream(0));
  CHECK_THROWS_AS(wrong.ready().wait(), IndexError);
  CHECK(floats(add(doubled, doubled, device->stream(1))) == std::vector<float>{12, 4});
}

TEST_CASE("streams that failed take work again once they were renewed, and what failed stays failed") {
  const auto device = tested();
  const Tensor table = table_on(device->stream(0));
  for (int round = 0; round < 3; ++round) {
    const Tensor wrong = looked_up(99, table, device->stream(0));
    const Tensor behind = add(wrong, wrong, device->stream(1));
    CHECK_THROWS_AS(behind.ready().wait(), IndexError);
    CHECK(lost(*device) == nullptr);
    REQUIRE(renew(*device));
    CHECK_THROWS_AS(wrong.ready().wait(), IndexError);
    CHECK_THROWS_AS(behind.ready().wait(), IndexError);
    const Tensor good = looked_up(1, table, device->stream(0));
    CHECK(floats(add(good, good, device->stream(1))) == std::vector<float>{4, 2});
  }
}

TEST_CASE("a live row whose index is outside fails alone on a device, tick after tick, and its companions keep their state") {
  RecurrenceOptions options;
  options.states = carried;
  StateSlab slab(recurrence_of(live_lookup(), options), tested()), behind(recurrence_of(live_lookup(), options), tested());
  Tick tick;
  tick.starts = {{0, {}}, {1, {}}, {2, {}}};
  const auto check = [](const TickResult& result, float times) {
    CHECK(result.lost == nullptr);
    REQUIRE(result.failures.size() == 1);
    CHECK(result.failures[0].row == 1);
    CHECK_THROWS_AS(std::rethrow_exception(result.failures[0].error), IndexError);
    CHECK(result.outputs.at(0).to_vector<float>() == std::vector<float>{5 * times, 6 * times, 0, 0, 3 * times, 4 * times});
  };
  for (int round = 1; round <= 3; ++round) {
    tick.slots = {0, 1, 2};
    tick.inputs = {Tensor::from<std::int64_t>({2, 99, 1}).reshape({3, 1})};
    const auto times = static_cast<float>(round);
    check(slab.run(tick), times);
    CHECK(slab.state(0, 2).to_vector<float>() == std::vector<float>{3 * times, 4 * times});
    behind.start(tick);
    tick.starts.clear();
  }
  for (int round = 1; round <= 3; ++round) check(behind.finish(), static_cast<float>(round));
}

TEST_CASE("a server that loses a device tells the sessions there, goes on elsewhere, and ends") {
  try {
    static_cast<void>(to_json(StartMessage()));
  } catch (const UnsupportedError&) {
    return;  // a build without JSON speaks to no client
  }
  CHECK(ScenarioProcess("a kernel traps on one of the places that serve").ended_with() == 0);
}

}  // namespace millrace::testing
