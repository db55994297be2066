// SPDX-License-Identifier: Apache-2.0
// `using namespace millrace` and the builder's names beside Boost.Asio and stand-alone Asio: nothing is ambiguous.
#include <millrace/kernels/activation.h>
#include <millrace/kernels/elementwise.h>
#include <millrace/kernels/math.h>
#include <millrace/runtime/builder/decoding.h>
#include <millrace/runtime/builder/dynamic_rnn.h>
#include <millrace/runtime/builder/generation.h>
#include <millrace/runtime/builder/sequence_ops.h>
#include <millrace/runtime/builder/static_rnn.h>
#include <millrace/runtime/runtime.h>
#include <millrace/streaming/client/stream_client.h>
#include <millrace/streaming/live/server.h>

#include <asio.hpp>
#include <boost/asio.hpp>
#include <cmath>

using namespace millrace;

namespace whole {

// The builder's names in full, both kinds of Asio by the names that they have.
Program run_on(boost::asio::io_context& boost_context, asio::io_context& context) {
  asio::post(context, [] {});
  RuntimeOptions options;
  options.context = &boost_context;
  Program program;
  const build::Guard guard(program);
  const build::Var x = build::input("x", VarType(DType::f32, {DDim::unknown, 4}, 1));
  const auto [steps, order] = build::unpack(x, 0, build::sort_by_length);
  const build::TensorArray states(steps.size(), order, "states");
  build::output("y", minimum(less_equal(x, x), tanh(x) + exp(x)));
  return program;
}

Tensor computed(const Tensor& a, const Tensor& b, StreamRef stream) {
  return minimum(maximum(a, b, stream), tanh(add(a, b, stream), stream), stream);
}

}  // namespace whole

namespace both {

using namespace millrace::build;

// Both namespaces open: the arguments tell a tensor's function from a program's. TensorArray alone needs to be spelled in full.
Var appended(const Var& x) {
  const Var bounded = minimum(maximum(x, 0.0), where(less_equal(x, 1.0), x, sqrt(abs(x))));
  const auto [steps, order] = unpack(x, 0, sort_by_length);
  const build::TensorArray states(steps.size(), order, "states");
  Var step = 0;
  auto loop = while_loop({step});
  {
    auto frame = loop.frame();
    loop.break_if(equal(step, steps.size()));
    states.write(step, sigmoid(steps.read(step)));
    step.update(step + 1);
  }
  return add(pack(states, 0, order), softmax(log(exp(bounded))));
}

Tensor computed(const Tensor& a, const Tensor& b, StreamRef stream) {
  return sqrt(abs(minimum(a, less_equal(a, b, stream), stream), stream), stream);
}

task<LoDTensor> by_hand(LoDTensor x, Device* device) {
  const auto [steps, order] = unpack(x, 0, true, device->stream(0));
  const millrace::TensorArray states = millrace::TensorArray(steps.size(), order).named("states");
  SlotValue first = co_await steps.read(0);
  states.write(0, first.tensor());
  LoDTensor y = co_await pack(states, 0, order, device->stream(0));
  co_return y;
}

}  // namespace both
