// SPDX-License-Identifier: Apache-2.0
#include <string>
#include <tuple>

#include <bench/families.h>
#include <bench/library/our_lstm.h>
#include <bench/library/python_peer.h>
#include <bench/lstm_peer.h>
#include <bench/machine.h>

namespace millrace::bench {
namespace {

struct Step {
  Context& context;
  std::int64_t hidden;
  int threads;
  LstmProblem problem = make_problem(hidden, {1});
  OurStep ours = OurStep(problem, threads);

  Row row(const std::string& peer, double goal) const {
    Row made;
    made.id = "C1";
    made.shape = "one step, B1 H" + std::to_string(hidden) + " f32, " + threads_text(threads);
    made.peer_name = peer;
    made.goal = goal;
    const std::int64_t weights = problem.w.elements() + problem.r.elements();
    made.floor = context.machine->floor(2.0 * static_cast<double>(weights), weights * 4, 1, threads);
    made.panel = "one step over H, B 1, " + threads_text(threads);
    made.x = static_cast<double>(hidden);
    return made;
  }
  void beside_dnnl() const {
    LstmPeer peer = make_lstm_peer(problem, padded(problem, {0}), true, threads);
    if (peer.timer) {
      peer.timer(0);
      check_peer(difference(ours.h(), peer.y), peer.timer, peer.note);
    }
    emit_pair(context, row(peer.name, hidden <= 128 ? 1.8 : 1.3), ours.timer(), peer.timer, peer.note);
  }
  void beside_python(const std::string& name, const std::string& set_up, double goal) const {
    PythonPeer peer = make_python_peer(context.python, name, set_up, problem, threads);
    if (peer.timer) check_peer(difference(ours.h(), peer.result()), peer.timer, peer.note);
    emit_pair(context, row(peer.name, goal), ours.timer(), peer.timer, peer.note);
  }
};

}  // namespace

void measure_one_step(Context& context) {
  for (const int threads : context.threads)
    for (const std::int64_t hidden : {128, 256}) {
      const Step step{context, hidden, threads};
      step.beside_dnnl();
      step.beside_python("ONNX Runtime", "onnx_step", 4);
      step.beside_python("PyTorch", "torch_step", 10);
    }
}

void measure_low_precision(Context& context) {
  for (const std::int64_t hidden : {128, 256, 512}) {
    const LstmProblem problem = make_problem(hidden, {1});
    const OurStep whole(problem, 1);
    for (const auto& [name, dtype, goal] : {std::tuple("bf16", DType::bf16, 1.7), std::tuple("int8", DType::i8, 3.0)}) {
      const OurStep narrow(problem, 1, dtype);
      Row row;
      row.id = "C2";
      row.shape = "one step, B1 H" + std::to_string(hidden) + " " + name + " weights, 1 thread";
      row.peer_name = "our f32";
      row.goal = goal;
      const std::int64_t weights = problem.w.elements() + problem.r.elements();
      const auto bytes = weights * static_cast<std::int64_t>(size_of(dtype));
      // Products of i8 are four times as many a cycle: memory is their limit.
      row.floor =
          context.machine->floor(dtype == DType::i8 ? 0.5 * static_cast<double>(weights) : 2.0 * static_cast<double>(weights), bytes, 1, 1);
      std::string why_not;
      Timer peer = whole.timer();
      // A hundredth of what a state may be: the rounding of weights, and no more.
      if (const double apart = difference(narrow.h(), whole.h()); apart > 0.02) {
        peer = nullptr;
        why_not = "not measured: the result is " + std::to_string(apart) + " from that of f32";
      }
      emit_pair(context, row, narrow.timer(), peer, why_not);
    }
  }
}

}  // namespace millrace::bench
