// SPDX-License-Identifier: Apache-2.0
#include <cstring>
#include <memory>
#include <numeric>
#include <unordered_map>

#include <fmt/format.h>
#include <oneapi/dnnl/dnnl.hpp>

#include <bench/lstm_peer.h>
#include <bench/with_dnnl/threads.h>

namespace millrace::bench {
namespace {

using dnnl::memory;
using Tag = memory::format_tag;
constexpr auto f32 = memory::data_type::f32;

/// Both primitives with their memories. Weights and their gradients are [L, D, C, 4, H] with gates i f c~ o: ours, as they lie.
class TrainedLayer {
 public:
  TrainedLayer(const LstmProblem& problem, const Tensor& given, int threads)
      : hidden_(problem.hidden), x_(time_first(problem, problem.x)), dy_(time_first(problem, given)), dr_(DType::f32, problem.r.dims()) {
    set_dnnl_threads(threads);
    const memory::desc rows({x_.dim(0), x_.dim(1), hidden_}, f32, Tag::tnc), any({1, 1, hidden_, 4, hidden_}, f32, Tag::any);
    const memory::desc bias({1, 1, 4, hidden_}, f32, Tag::ldgo), state({1, 1, x_.dim(1), hidden_}, f32, Tag::ldnc), none;
    constexpr auto onward = dnnl::rnn_direction::unidirectional_left2right;
    const dnnl::lstm_forward::primitive_desc forward(
        dnnl::lstm_forward::desc(dnnl::prop_kind::forward_training, onward, rows, state, state, any, any, bias, rows, none, none), engine_);
    const dnnl::lstm_backward::primitive_desc backward(
        dnnl::lstm_backward::desc(dnnl::prop_kind::backward, onward, rows, state, state, any, any, bias, rows, none, none, rows, state,
                                  state, any, any, bias, rows, none, none),
        engine_, forward);
    forward_ = dnnl::lstm_forward(forward);
    backward_ = dnnl::lstm_backward(backward);
    const memory x(rows, engine_, x_.raw_mutable()), y(rows, engine_), workspace(forward.workspace_desc(), engine_);
    const memory b(bias, engine_, problem.bias.raw_mutable());
    const memory h(state, engine_), c(state, engine_);
    for (const memory& zeros : {h, c}) std::memset(zeros.get_data_handle(), 0, state.get_size());
    of_forward_ = {{DNNL_ARG_SRC_LAYER, x},
                   {DNNL_ARG_SRC_ITER, h},
                   {DNNL_ARG_SRC_ITER_C, c},
                   {DNNL_ARG_DST_LAYER, y},
                   {DNNL_ARG_BIAS, b},
                   {DNNL_ARG_WORKSPACE, workspace},
                   {DNNL_ARG_WEIGHTS_LAYER, packed(problem.w, forward.weights_layer_desc())},
                   {DNNL_ARG_WEIGHTS_ITER, packed(problem.r, forward.weights_iter_desc())}};
    sums_ = {memory(backward.diff_weights_layer_desc(), engine_), memory(backward.diff_weights_iter_desc(), engine_),
             memory(backward.diff_bias_desc(), engine_)};
    of_backward_ = {{DNNL_ARG_SRC_LAYER, x},
                    {DNNL_ARG_SRC_ITER, h},
                    {DNNL_ARG_SRC_ITER_C, c},
                    {DNNL_ARG_DIFF_SRC_ITER, memory(state, engine_)},
                    {DNNL_ARG_DIFF_SRC_ITER_C, memory(state, engine_)},
                    {DNNL_ARG_DST_LAYER, y},
                    {DNNL_ARG_BIAS, b},
                    {DNNL_ARG_WORKSPACE, workspace},
                    {DNNL_ARG_WEIGHTS_LAYER, packed(problem.w, backward.weights_layer_desc())},
                    {DNNL_ARG_WEIGHTS_ITER, packed(problem.r, backward.weights_iter_desc())},
                    {DNNL_ARG_DIFF_DST_LAYER, memory(rows, engine_, dy_.raw_mutable())},
                    {DNNL_ARG_DIFF_SRC_LAYER, memory(rows, engine_)},
                    {DNNL_ARG_DIFF_WEIGHTS_LAYER, sums_[0]},
                    {DNNL_ARG_DIFF_WEIGHTS_ITER, sums_[1]},
                    {DNNL_ARG_DIFF_BIAS, sums_[2]}};
  }

  void run() {
    for (memory& sum : sums_) std::memset(sum.get_data_handle(), 0, sum.get_desc().get_size());  // the primitive adds to them
    forward_.execute(stream_, of_forward_);
    backward_.execute(stream_, of_backward_);
    stream_.wait();
  }
  /// The gradient of the last run.
  Tensor recurrent_gradient() {
    memory plain(memory::desc({1, 1, hidden_, 4, hidden_}, f32, Tag::ldigo), engine_, dr_.mutable_data<float>());
    dnnl::reorder(sums_[1], plain).execute(stream_, sums_[1], plain);
    stream_.wait();
    return dr_;
  }

 private:
  static Tensor time_first(LstmProblem problem, const Tensor& rows) {
    problem.x = rows;
    std::vector<std::size_t> all(problem.lengths.size());
    std::iota(all.begin(), all.end(), std::size_t{0});
    return padded(problem, all);
  }
  memory packed(const Tensor& from, const memory::desc& to) {
    memory plain(memory::desc({1, 1, hidden_, 4, hidden_}, f32, Tag::ldigo), engine_, from.raw_mutable());
    memory made(to, engine_);
    dnnl::reorder(plain, made).execute(stream_, plain, made);
    stream_.wait();
    return made;
  }

  std::int64_t hidden_;
  Tensor x_, dy_, dr_;  // in which memories lie
  dnnl::engine engine_{dnnl::engine::kind::cpu, 0};
  dnnl::stream stream_{engine_};
  dnnl::lstm_forward forward_;
  dnnl::lstm_backward backward_;
  std::unordered_map<int, memory> of_forward_, of_backward_;
  std::vector<memory> sums_;
};

}  // namespace

LstmPeer make_lstm_backward_peer(const LstmProblem& problem, const Tensor& dy, int threads) {
  const dnnl_version_t* version = dnnl_version();
  LstmPeer peer;
  peer.name = fmt::format("oneDNN {}.{}.{} LSTM training", version->major, version->minor, version->patch);
  const auto layer = std::make_shared<TrainedLayer>(problem, dy, threads);
  layer->run();
  peer.y = layer->recurrent_gradient();
  const Timer timer = timer_of([layer] { layer->run(); });
  peer.timer = [timer, threads](double seconds) {
    set_dnnl_threads(threads);
    return timer(seconds);
  };
  return peer;
}

}  // namespace millrace::bench
