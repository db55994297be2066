// SPDX-License-Identifier: Apache-2.0
// The library inside a program that has an io_context of its own.
// [embedding]
#include <millrace/runtime/builder/loop.h>
#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/runtime.h>
#include <millrace/streaming/client/stream_client.h>
#include <millrace/streaming/live/server.h>

#include <boost/asio/io_context.hpp>
#include <cstdio>
#include <cstring>

using namespace millrace;

Program smoothing() {  // h ← (h + x) / 2, over any number of sequences of any lengths
  Program program;
  const build::Guard guard(program);
  const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 1}, 1));
  const build::Var boot = build::input("boot", VarType(DType::f32, {DDim::unknown, 1}));
  const auto [steps, order] = build::unpack(x, 0, build::sort_by_length);
  const build::Var n = steps.size();
  const build::TensorArray states(n, order, "states");
  build::Var step = 0;
  auto loop = build::while_loop({step});
  {
    auto frame = loop.frame();
    loop.break_if(equal(step, n));
    const build::Var now = steps.read(step);
    states.write(step, (shrink(states.read(step - 1, boot), now) + now) / 2.0f);
    step.update(step + 1);
  }
  build::output("h", build::pack(states, 0, order));
  return program;
}

int main() {
  boost::asio::io_context io;  // the embedder's own: everything below runs on it
  RuntimeOptions options;
  options.context = &io;
  Runtime runtime(options);
  const LoDTensor x(Tensor::from<float>({8, 4, 2, 6, 1}).reshape({5, 1}), LoD::from_lengths({{3, 2}}));
  std::vector<float> whole, live(3);
  runtime.async_run(smoothing(), {{"x", x}, {"boot", Tensor::from<float>({0, 2}).reshape({2, 1})}},
                    [&](std::exception_ptr error, const RunResult& result) {  // or use_future, use_awaitable, …
                      if (error == nullptr) whole = result["h"].tensor().to_vector<float>();
                    });
  Server server(io, std::make_shared<const ServedModel>(smoothing(), StreamConfig()), ServerOptions());
  ClientPlan first;  // a client of it: sequence 0 as a live session, in pieces of 5 bytes
  first.bytes.assign(static_cast<const char*>(x.tensor().raw()), 3 * sizeof(float));
  ClientOptions pieces;
  pieces.piece_bytes = 5;
  const auto url = parse_stream_url("tcp://127.0.0.1:" + std::to_string(server.port()));
  async_stream_plans(io.get_executor(), url, {first}, pieces, [&](const std::vector<ClientRecord>& records) {
    if (records[0].error.empty()) std::memcpy(live.data(), records[0].outputs[0].data(), 3 * sizeof(float));
    server.drain();
  });
  io.run();
  std::printf("whole %g %g %g, live %g %g %g\n", whole.at(0), whole.at(1), whole.at(2), live[0], live[1], live[2]);
  return std::equal(live.begin(), live.end(), whole.begin()) && whole[2] == 3.0f ? 0 : 1;
}
// [embedding]
