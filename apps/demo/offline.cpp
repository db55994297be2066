// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <random>
#include <thread>

#include <fmt/format.h>
#include <boost/asio/io_context.hpp>
#include <boost/asio/post.hpp>

#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/executor/run_program.h>
#include <millrace/runtime/task/asio.h>
#include <millrace/runtime/task/sync_wait.h>
#include <millrace/runtime/task/thread_executor.h>
#include <millrace/streaming/client/stream_client.h>
#include <millrace/streaming/live/server.h>
#include <millrace/tensor/start_thread.h>

#include "demos.h"

namespace millrace::demo {
namespace {

constexpr std::int64_t features = 40, hidden = 64, sessions = 8;

/// Numbers that depend on the seed alone; mt19937 is the same everywhere, distributions are not.
class Numbers {
 public:
  explicit Numbers(std::uint32_t seed) : generator_(seed) {}
  float real() { return static_cast<float>(static_cast<std::int32_t>(generator_() >> 8) - (1 << 23)) / static_cast<float>(1 << 23); }
  std::int64_t between(std::int64_t low, std::int64_t high) {
    return low + static_cast<std::int64_t>(generator_() % static_cast<std::uint32_t>(high - low + 1));
  }
  Tensor tensor(const DDim& dims, float scale) {
    std::vector<float> values;
    for (std::int64_t i = 0; i < dims.elements(); ++i) values.push_back(scale * real());
    return Tensor::from(values, dims);
  }

 private:
  std::mt19937 generator_;
};

Program listing(const Tensor& u, const Tensor& w) {
  using namespace millrace::build;
  Program program;
  program.set_title("listing");
  const Guard guard(program);
  const Var x = input("x", VarType(DType::f32, {DDim::unknown, w.dim(0)}, 1));
  const Var boot_state = input("boot", VarType(DType::f32, {DDim::unknown, u.dim(0)}));
  const Var U = parameter("U", u);
  const Var W = parameter("W", w);

  auto [steps, order] = unpack(x, 0, true);
  auto n = steps.size();
  build::TensorArray states(n, order, "states"), outputs(n, order, "outputs");
  Var step = constant(0);
  auto loop = while_loop({step});
  {
    auto frame = loop.frame();
    loop.break_if(equal(step, n));
    auto step_input = steps.read(step);
    auto pre_state = shrink(states.read(step - 1, boot_state), step_input);
    auto state = sigmoid(matmul(pre_state, U) + matmul(step_input, W));
    states.write(step, state);
    outputs.write(step, state, share);
    step.update(step + 1);
  }
  auto y = pack(outputs, 0, order);
  output("y", y);
  return program;
}

/// A server on a thread of its own, for as long as this lives.
class Served {
 public:
  explicit Served(const Program& program)
      : server_(context_, std::make_shared<const ServedModel>(program, StreamConfig()), ServerOptions()),
        thread_(start_thread("demo: the thread of its server", [this] { run_servers(context_); })) {}
  ~Served() {
    asio::post(context_, [this] { server_.drain(); });
    thread_.join();
  }
  StreamUrl url() const {
    StreamUrl url;
    url.host = server_.address();
    url.port = server_.port();
    return url;
  }
  /// Once no session is live.
  Batcher::Stats stats() const { return server_.stats(); }

 private:
  asio::io_context context_{1};
  Server server_;
  std::thread thread_;
};

ClientPlan plan_for(const Tensor& rows, const Tensor& boot, std::int64_t session) {
  ClientPlan plan;
  plan.start.session = fmt::format("session {}", session);
  plan.start.reply = session % 2 == 0 ? ReplyFormat::binary : ReplyFormat::json;
  for (const float value : boot.to_vector<float>()) plan.start.given["boot"].push_back(value);
  plan.bytes.assign(reinterpret_cast<const char*>(rows.data<float>()), rows.bytes());
  return plan;
}

}  // namespace

int offline() {
  Numbers numbers(2017);
  const Program program = listing(numbers.tensor({hidden, hidden}, 0.2f), numbers.tensor({features, hidden}, 0.2f));
  LoD::Level lengths;
  std::int64_t rows = 0;
  for (std::int64_t i = 0; i < sessions; ++i) rows += lengths.emplace_back(numbers.between(20, 200));
  const LoDTensor x(numbers.tensor({rows, features}, 1.0f), LoD::from_lengths({lengths}));
  const Tensor boot = numbers.tensor({sessions, hidden}, 1.0f);

  ThreadExecutor executor(1);
  const RunResult whole = sync_wait(executor, run(program, {{"x", x}, {"boot", boot}}));
  const std::vector<LoDTensor> wanted = whole["y"].peel();

  std::vector<ClientPlan> plans;
  const std::vector<LoDTensor> pieces = x.peel();
  for (std::int64_t i = 0; i < sessions; ++i)
    plans.push_back(plan_for(pieces[static_cast<std::size_t>(i)].tensor(), boot.rows(i, i + 1), i));
  ClientOptions options;
  options.next_piece = [&numbers](std::size_t) {
    return static_cast<std::size_t>(numbers.between(1, numbers.between(0, 3) == 0 ? 5000 : 300));
  };
  const Served served(program);
  const std::vector<ClientRecord> records = stream_plans(served.url(), std::move(plans), std::move(options));

  int equal = 0;
  for (std::size_t i = 0; i < records.size(); ++i) {
    const Tensor& own = wanted[i].tensor();
    const bool same = records[i].error.empty() && records[i].outputs[0].size() == own.bytes() &&
                      std::memcmp(records[i].outputs[0].data(), own.raw(), own.bytes()) == 0;
    equal += same ? 1 : 0;
    fmt::print("session {}: {} rows of {} features, {} replies{}{}\n", i, own.dim(0), features, records[i].received.size(),
               same ? ", the bits of the whole" : ", other bits than the whole", records[i].error.empty() ? "" : ": " + records[i].error);
  }
  fmt::print("demo: streamed == whole, bit for bit: {}/{}\n", equal, sessions);
  return equal == sessions ? 0 : 1;
}

}  // namespace millrace::demo
