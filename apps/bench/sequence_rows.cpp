// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <map>
#include <numeric>

#include <fmt/format.h>

#include <bench/families.h>
#include <bench/library/our_lstm.h>
#include <bench/library/python_peer.h>
#include <bench/lstm_peer.h>
#include <bench/machine.h>

namespace millrace::bench {
namespace {

using Chosen = std::vector<std::size_t>;

/// The least time of both products of every row; the recurrent weights are read once a step, those of the input once.
double floor_of(Context& context, const LstmProblem& problem, int threads) {
  const double steps = static_cast<double>(*std::max_element(problem.lengths.begin(), problem.lengths.end()));
  const std::int64_t weights = problem.r.elements();
  return context.machine->floor(4.0 * static_cast<double>(weights * problem.rows()), weights * 4, steps + 1, threads);
}

void equal_sequences(Context& context, std::int64_t hidden, std::int64_t batch, int threads) {
  constexpr std::int64_t steps = 64;
  const LstmProblem problem = make_problem(hidden, std::vector<std::int64_t>(static_cast<std::size_t>(batch), steps));
  const OurProgram ours(lstm_program(problem), feeds_of(problem), threads);
  Chosen all(problem.lengths.size());
  std::iota(all.begin(), all.end(), std::size_t{0});
  LstmPeer peer = make_lstm_peer(problem, padded(problem, all), false, threads);
  if (peer.timer) {
    peer.timer(0);
    Tensor y(DType::f32, problem.x.dims());
    unpadded(problem, all, peer.y, y);
    check_peer(difference(ours.output("y").tensor(), y), peer.timer, peer.note);
  }
  Row row;
  row.id = "C3";
  row.shape = fmt::format("{} steps, B{} H{} f32, {}", steps, batch, hidden, threads_text(threads));
  row.peer_name = peer.name;
  row.goal = 1.05;
  row.floor = floor_of(context, problem, threads);
  row.panel = fmt::format("{} steps over B, H {}, {}", steps, hidden, threads_text(threads));
  row.x = static_cast<double>(batch);
  emit_pair(context, row, ours.timer(), peer.timer, peer.note);
  PythonPeer torch = make_python_peer(context.python, "PyTorch nn.LSTM", "torch_dense", problem, threads);
  if (torch.timer) check_peer(difference(ours.output("y").tensor(), torch.result()), torch.timer, torch.note);
  row.peer_name = torch.name;
  row.panel.clear();
  emit_pair(context, row, ours.timer(), torch.timer, torch.note);
}

/// Several padded batches, one after the other, as one peer.
struct Batches {
  std::vector<LstmPeer> peers;
  Timer timer;
  std::string name, note;
  std::int64_t rows = 0;  ///< with padding
  Tensor y;
};

/// Runs each batch once a call. oneDNN's timer of 0 seconds makes two calls, of which the second is timed; so does every batch.
Batches make_batches(const LstmProblem& problem, const std::vector<Chosen>& groups, int threads) {
  Batches batches;
  batches.y = Tensor(DType::f32, problem.x.dims());
  for (const Chosen& chosen : groups) {
    const Tensor x = padded(problem, chosen);
    batches.rows += x.dim(0) * x.dim(1);
    batches.peers.push_back(make_lstm_peer(problem, x, false, threads));
    const LstmPeer& peer = batches.peers.back();
    batches.name = peer.name;
    batches.note = peer.note;
    if (!peer.timer) return batches;
    peer.timer(0);
    unpadded(problem, chosen, peer.y, batches.y);
  }
  batches.timer = [peers = batches.peers](double seconds) {
    double sum = 0;
    for (const LstmPeer& peer : peers) sum += peer.timer(seconds / static_cast<double>(peers.size()));
    return sum;
  };
  return batches;
}

/// Sequences whose lengths lie between the same two powers of two.
std::vector<Chosen> buckets_of(const std::vector<std::int64_t>& lengths) {
  std::map<int, Chosen> buckets;
  for (std::size_t i = 0; i < lengths.size(); ++i) {
    int power = 0;
    while ((std::int64_t{1} << power) < lengths[i]) ++power;
    buckets[power].push_back(i);
  }
  std::vector<Chosen> all;
  for (auto& [power, chosen] : buckets) all.push_back(std::move(chosen));
  return all;
}

struct Ragged {
  Context& context;
  std::int64_t hidden;
  std::int64_t count;
  int threads;
  LstmProblem problem = make_problem(hidden, log_normal_lengths(count, 40, 0.6));
  OurProgram ours = OurProgram(lstm_program(problem), feeds_of(problem), threads);
  Tensor y = ours.output("y").tensor();

  Row row(const std::string& peer, double goal) const {
    Row made;
    made.id = "C4";
    made.shape = fmt::format("ragged, N{} H{} f32, {} rows, longest {}, {}", count, hidden, problem.rows(),
                             *std::max_element(problem.lengths.begin(), problem.lengths.end()), threads_text(threads));
    made.peer_name = peer;
    made.goal = goal;
    made.floor = floor_of(context, problem, threads);
    return made;
  }
  void beside_dnnl(const std::string& how, const std::vector<Chosen>& groups, double goal) const {
    Batches batches = make_batches(problem, groups, threads);
    if (batches.timer) check_peer(difference(y, batches.y), batches.timer, batches.note);
    const std::string name =
        fmt::format("{} {}, {:.2f} rows a row", batches.name, how, static_cast<double>(batches.rows) / static_cast<double>(problem.rows()));
    emit_pair(context, row(name, goal), ours.timer(), batches.timer, batches.note);
  }
  void beside_torch() const {
    PythonPeer peer = make_python_peer(context.python, "PyTorch packed", "torch_packed", problem, threads);
    if (peer.timer) check_peer(difference(y, peer.result()), peer.timer, peer.note);
    emit_pair(context, row(peer.name, 1.5), ours.timer(), peer.timer, peer.note);
  }
};

}  // namespace

void measure_sequences(Context& context) {
  const std::vector<std::int64_t> widths = context.quick ? std::vector<std::int64_t>{128} : std::vector<std::int64_t>{128, 256, 512};
  const std::vector<std::int64_t> batches = context.quick ? std::vector<std::int64_t>{1, 8} : std::vector<std::int64_t>{1, 2, 4, 8, 16, 64};
  for (const int threads : context.threads)
    for (const std::int64_t hidden : widths)
      for (const std::int64_t batch : batches) equal_sequences(context, hidden, batch, threads);
}

void measure_ragged(Context& context) {
  for (const int threads : context.threads)
    for (const std::int64_t hidden : context.quick ? std::vector<std::int64_t>{64} : std::vector<std::int64_t>{128, 256}) {
      const Ragged ragged{context, hidden, context.quick ? 32 : 256, threads};
      Chosen all(ragged.problem.lengths.size());
      std::iota(all.begin(), all.end(), std::size_t{0});
      ragged.beside_dnnl("padded", {all}, 3);
      ragged.beside_dnnl("bucketed", buckets_of(ragged.problem.lengths), 1.6);
      ragged.beside_torch();
    }
}

}  // namespace millrace::bench
