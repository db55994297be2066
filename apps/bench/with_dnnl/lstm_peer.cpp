// SPDX-License-Identifier: Apache-2.0
#include <bench/lstm_peer.h>

#include <memory>
#include <unordered_map>

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <bench/with_dnnl/threads.h>

namespace millrace::bench {
namespace {

using dnnl::memory;
constexpr auto f32 = memory::data_type::f32;

/// The primitive with its memories. Its weights are [L, D, C, 4, H] with gates i f c~ o: ours, as they lie.
struct Layer {
  dnnl::engine engine{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream{engine};
  dnnl::lstm_forward primitive;
  std::unordered_map<int, memory> arguments;
  Tensor x, y, h, c;  // the storage of the memories
  int threads;

  Layer(const LstmProblem& problem, const Tensor& input, bool stateful, int thread_count)
      : x(input), y(DType::f32, input.dims()), h(problem.h), c(problem.c), threads(thread_count) {
    set_dnnl_threads(threads);
    const std::int64_t steps = x.dim(0), n = x.dim(1), hidden = problem.hidden;
    const memory::desc rows({steps, n, hidden}, f32, memory::format_tag::tnc);
    const memory::desc weights({1, 1, hidden, 4, hidden}, f32, memory::format_tag::any);
    const memory::desc bias({1, 1, 4, hidden}, f32, memory::format_tag::ldgo);
    const memory::desc state = stateful ? memory::desc({1, 1, n, hidden}, f32, memory::format_tag::ldnc) : memory::desc();
    const dnnl::lstm_forward::primitive_desc desc(
        dnnl::lstm_forward::desc(dnnl::prop_kind::forward_inference, dnnl::rnn_direction::unidirectional_left2right, rows, state, state,
                                 weights, weights, bias, rows, state, state),
        engine);
    primitive = dnnl::lstm_forward(desc);
    arguments = {{DNNL_ARG_SRC_LAYER, memory(rows, engine, x.raw_mutable())},
                 {DNNL_ARG_DST_LAYER, memory(rows, engine, y.mutable_data<float>())},
                 {DNNL_ARG_BIAS, memory(bias, engine, problem.bias.raw_mutable())},
                 {DNNL_ARG_WEIGHTS_LAYER, packed(problem.w, hidden, desc.weights_layer_desc())},
                 {DNNL_ARG_WEIGHTS_ITER, packed(problem.r, hidden, desc.weights_iter_desc())}};
    if (stateful) {
      arguments.insert({DNNL_ARG_SRC_ITER, memory(state, engine, h.raw_mutable())});
      arguments.insert({DNNL_ARG_SRC_ITER_C, memory(desc.src_iter_c_desc(), engine, c.raw_mutable())});
      arguments.insert({DNNL_ARG_DST_ITER, memory(state, engine)});
      arguments.insert({DNNL_ARG_DST_ITER_C, memory(desc.dst_iter_c_desc(), engine)});
    }
  }

  memory packed(const Tensor& from, std::int64_t hidden, const memory::desc& to) {
    memory plain(memory::desc({1, 1, hidden, 4, hidden}, f32, memory::format_tag::ldigo), engine, from.raw_mutable());
    memory made(to, engine);
    dnnl::reorder(plain, made).execute(stream, plain, made);
    stream.wait();
    return made;
  }
  void run() {
    primitive.execute(stream, arguments);
    stream.wait();
  }
};

}  // namespace

LstmPeer make_lstm_peer(const LstmProblem& problem, const Tensor& x, bool stateful, int threads) {
  const dnnl_version_t* version = dnnl_version();
  LstmPeer peer;
  peer.name = fmt::format("oneDNN {}.{}.{} LSTM", version->major, version->minor, version->patch);
  const auto layer = std::make_shared<Layer>(problem, x, stateful, threads);
  peer.y = layer->y;
  const Timer timer = timer_of([layer] { layer->run(); });
  peer.timer = [timer, threads](double seconds) {
    set_dnnl_threads(threads);
    return timer(seconds);
  };
  return peer;
}

}  // namespace millrace::bench
