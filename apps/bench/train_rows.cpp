// SPDX-License-Identifier: Apache-2.0
#include <memory>
#include <utility>

#include <fmt/format.h>

#include <bench/families.h>
#include <bench/library/our_lstm.h>
#include <bench/library/python_peer.h>
#include <bench/library/train_problem.h>
#include <bench/lstm_peer.h>
#include <bench/machine.h>
#include <millrace/runtime/training/extract.h>
#include <millrace/runtime/training/trainer.h>

namespace millrace::bench {
namespace {

// ---- Whole steps: forward, backward, update ----

std::shared_ptr<training::Trainer> trainer_of(const TrainProblem& problem, bool layer_norm, int threads) {
  training::TrainerOptions options;
  options.optimizer.kind = training::OptimizerOptions::Kind::adam;
  options.schedule.base = 1e-5;
  options.threads = threads;
  return std::make_shared<training::Trainer>(classifier(problem, layer_norm), options);
}

Timer steps_of(const std::shared_ptr<training::Trainer>& trainer, const Feeds& feeds) {
  return timer_of([trainer, feeds] { trainer->step(feeds); });
}

PythonPeer train_peer(Context& context, const TrainProblem& problem, const std::string& form, int threads) {
  const RawFiles files{{"w", problem.w},           {"r", problem.r},
                       {"bias", problem.bias},     {"out", problem.out},
                       {"shift", problem.shift},   {"x", problem.x},
                       {"labels", problem.labels}, {"lengths", Tensor::from(problem.lengths, problem.labels.dims())}};
  const auto number = [](std::int64_t value) { return std::to_string(value); };
  const std::vector<std::string> words{
      "torch_train", number(problem.features()), number(problem.hidden()), number(problem.classes()), form, number(threads)};
  return make_python_peer(context.python, "PyTorch " + form, words, files);
}

void step_rows(Context& context, const TrainProblem& problem, const std::string& shape, int threads) {
  const Feeds feeds = feeds_of(problem);
  const std::pair<const char*, double> forms[] = {{"padded", 3}, {"packed", 5}};
  for (const auto& [form, goal] : forms) {
    const auto ours = trainer_of(problem, false, threads);
    PythonPeer peer = train_peer(context, problem, form, threads);
    if (peer.timer) check_peer(difference(ours->compute(feeds).by_name.at("lstm_0_recurrent"), peer.result()), peer.timer, peer.note);
    Row row;
    row.id = "C7";
    row.shape = fmt::format("training step, {}, {}", shape, threads_text(threads));
    row.peer_name = peer.name;
    row.goal = goal;
    emit_pair(context, row, steps_of(ours, feeds), peer.timer, peer.note);
  }
}

/// A user's layer-norm LSTM against the built-in one.
void cell_row(Context& context, const TrainProblem& problem, const std::string& shape, int threads) {
  const Feeds feeds = feeds_of(problem);
  Row row;
  row.id = "C7";
  row.shape = fmt::format("training step, layer-norm LSTM, {}, {}", shape, threads_text(threads));
  row.peer_name = "our LSTM";
  row.goal = 1 / 1.3;
  emit_pair(context, row, steps_of(trainer_of(problem, true, threads), feeds), steps_of(trainer_of(problem, false, threads), feeds), "");
}

// ---- Forward and backward of one layer ----

void backward_row(Context& context, std::int64_t hidden, std::int64_t batch, int threads) {
  constexpr std::int64_t steps = 64;
  const LstmProblem problem = make_problem(hidden, std::vector<std::int64_t>(static_cast<std::size_t>(batch), steps));
  const Tensor dy = random_tensor(problem.x.dims(), 9);
  Feeds feeds = feeds_of(problem);
  feeds["dy"] = Value(dy);
  const Program forward = lstm_program(problem);
  for (const auto& [name, weight] : training::weights_of(forward)) feeds[training::fed_name(name)] = Value(weight);
  const OurProgram ours(with_backward(forward, VarType(DType::f32, {DDim::unknown, hidden})), feeds, threads);
  const Tensor found = ours.output("d_lstm_0_recurrent").tensor();
  // Sums over all rows grow with their number.
  const double most = 1e-5 * static_cast<double>(problem.rows());
  PythonPeer torch = make_python_peer(context.python, "PyTorch nn.LSTM", "torch_backward", problem, threads, {{"dy", dy}});
  if (torch.timer) check_peer(difference(found, torch.result()), torch.timer, torch.note, most);
  LstmPeer onednn = make_lstm_backward_peer(problem, dy, threads);
  if (onednn.timer) check_peer(difference(found, onednn.y), onednn.timer, onednn.note, most);
  Row row;
  row.id = "C7";
  row.shape = fmt::format("forward + backward, {} steps, B{} H{} f32, {}", steps, batch, hidden, threads_text(threads));
  row.goal = 1;
  // Three products as large as that of the forward for each of both weights.
  row.floor = context.machine->floor(12.0 * static_cast<double>(problem.r.elements() * problem.rows()), problem.r.elements() * 4,
                                     2.0 * static_cast<double>(steps), threads);
  row.peer_name = onednn.name;
  emit_pair(context, row, ours.timer(), onednn.timer, onednn.note);
  row.peer_name = torch.name;
  emit_pair(context, row, ours.timer(), torch.timer, torch.note);
}

}  // namespace

void measure_training(Context& context) {
  using Shape = std::pair<std::int64_t, std::int64_t>;
  const TrainProblem vowels = make_train_problem(12, 100, 9, vowel_lengths());
  const std::vector<Shape> shapes =
      context.quick ? std::vector<Shape>{{64, 4}} : std::vector<Shape>{{128, 1}, {128, 16}, {128, 64}, {256, 16}};
  for (const int threads : context.threads) {
    step_rows(context, vowels, "JapaneseVowels' lengths, B27 C12 H100 f32", threads);
    cell_row(context, vowels, "JapaneseVowels' lengths, B27 C12 H100 f32", threads);
    for (const auto& [hidden, batch] : shapes) {
      const std::vector<std::int64_t> lengths(static_cast<std::size_t>(batch), 64);
      cell_row(context, make_train_problem(hidden, hidden, 9, lengths), fmt::format("64 steps, B{} H{} f32", batch, hidden), threads);
    }
    for (const auto& [hidden, batch] : shapes) backward_row(context, hidden, batch, threads);
  }
}

}  // namespace millrace::bench
