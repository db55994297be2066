// SPDX-License-Identifier: Apache-2.0
#include <bench_gpu/kernel_lstm.h>

#include <algorithm>
#include <memory>
#include <numeric>

#include <fmt/format.h>

#include <millrace/kernels/fill.h>
#include <millrace/kernels/gemm.h>
#include <millrace/kernels/lstm_sequence.h>
#include <millrace/tensor/copy.h>

namespace millrace::bench {
namespace {

class Kernels {
 public:
  Kernels(GpuMachine& machine, const GpuLstm& problem)
      : device_(machine.device()),
        product_(make_gemm_plan(product_of(problem), device_->place())),
        plan_(make_lstm_sequence(desc_of(problem), device_->place())),
        x_(problem.x.reshape(DDim{problem.steps * problem.rows, problem.hidden})) {
    const layers::LstmWeights& weights = problem.weights.front();
    const Tensor w = there(weights.input), r = there(weights.recurrent), bias = there(*weights.bias);
    w_ = pack(product_, w, stream());
    r_ = pack(plan_, r, &bias, nullptr, stream());
    const DDim state{problem.rows, problem.hidden};
    rows_.projection = Tensor(DType::f32, DDim{x_.dim(0), 4 * problem.hidden}, device_->memory());
    rows_.y = Tensor(problem.dtype, x_.dims(), device_->memory());
    rows_.h = zeros(state, problem.dtype, stream());
    rows_.c = zeros(state, DType::f32, stream());
    rows_.h_out = Tensor(problem.dtype, state, device_->memory());
    rows_.c_out = Tensor(DType::f32, state, device_->memory());
    for (std::int64_t t = 0; t <= problem.steps; ++t) rows_.offsets.push_back(t * problem.rows);
  }
  void run() {
    millrace::run(product_, w_, x_, rows_.projection, stream());
    millrace::run(plan_, r_, rows_, stream());
    rows_.y.ready().wait();
  }
  Tensor last() const { return rows_.h_out.copy_to(CpuPlace{}); }
  std::string schedule(std::int64_t rows) const {
    const LstmSchedule made = schedule_lstm(plan_.desc(), rows, plan_.limits());
    return fmt::format("{}; predicted, without the product before: {:.0f} ns a step", made.to_string(), made.step_ns);
  }
  /// "6120 cycles a step: ask 2 %, wait 31 %, …", of one run more by the kernel that takes the time.
  std::string phases() {
    if (plan_.desc().dtype != DType::f16) return {};
    LstmSequenceRows timed = rows_;
    timed.phases = Tensor(DType::i64, DDim{static_cast<std::int64_t>(lstm_phases.size())}, device_->memory());
    millrace::run(plan_, r_, timed, stream());
    const std::vector<std::int64_t> cycles = timed.phases->copy_to(CpuPlace{}).to_vector<std::int64_t>();
    const auto all = static_cast<double>(std::accumulate(cycles.begin(), cycles.end(), std::int64_t{0}));
    std::string text = fmt::format("{:.0f} cycles a step:", all / static_cast<double>(rows_.offsets.size() - 1));
    for (std::size_t i = 0; i < cycles.size(); ++i)
      text += fmt::format("{} {} {:.0f} %", i == 0 ? "" : ",", lstm_phases[i], 100 * static_cast<double>(cycles[i]) / std::max(all, 1.0));
    return text;
  }

 private:
  static GemmDesc product_of(const GpuLstm& problem) {
    GemmDesc desc;
    desc.k = problem.hidden;
    desc.n = 4 * problem.hidden;
    desc.dtype = problem.dtype;
    return desc;
  }
  static LstmDesc desc_of(const GpuLstm& problem) {
    LstmDesc desc;
    desc.input = desc.hidden = problem.hidden;
    desc.dtype = problem.dtype;
    return desc;
  }
  StreamRef stream() const { return device_->stream(0); }
  Tensor there(const Tensor& x) const {
    Tensor made(x.dtype(), x.dims(), device_->memory());
    copy(x, made, stream());
    made.ready().wait();
    return made;
  }

  std::shared_ptr<Device> device_;
  GemmPlan product_;
  LstmSequencePlan plan_;
  Tensor x_;
  PackedMatrix w_;
  PackedLstmSequence r_;
  LstmSequenceRows rows_;
};

}  // namespace

KernelLstm make_kernel_lstm(GpuMachine& machine, const GpuLstm& problem) {
  const auto kernels = std::make_shared<Kernels>(machine, problem);
  kernels->run();
  return {timer_of([kernels] { kernels->run(); }), kernels->last(), kernels->schedule(problem.rows), kernels->phases()};
}

}  // namespace millrace::bench
