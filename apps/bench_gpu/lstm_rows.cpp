// SPDX-License-Identifier: Apache-2.0
// One layer of an LSTM: G1, G2, G3 and G5.
#include <fmt/format.h>

#include <bench_gpu/cudnn_peer.h>
#include <bench_gpu/gpu_families.h>
#include <bench_gpu/gpu_lstm.h>
#include <bench_gpu/kernel_lstm.h>
#include <millrace/tensor/error.h>

namespace millrace::bench {
namespace {

struct Shape {
  std::int64_t steps, rows, hidden;
};

double goal_of(const Shape& shape) {
  const std::int64_t h = shape.hidden;
  if (h > 1024) return shape.rows <= 1 ? 2.5 : shape.rows <= 16 ? 2 : 1.3;
  if (shape.rows <= 16) return h <= 512 ? 2 : h <= 768 ? 1.5 : 1.2;
  if (shape.rows <= 64) return h <= 128 ? 3.5 : h <= 512 ? 5 : h <= 768 ? 3.5 : 2.2;
  return h <= 128 ? 3.5 : h <= 512 ? 4 : h <= 768 ? 2.5 : 1.6;
}

/// The distance that two of a dtype may be apart behind a thousand steps, whose sums are taken in other orders.
double allowed(DType dtype) { return dtype == DType::f16 ? 0.03 : dtype == DType::bf16 ? 0.2 : 1e-3; }

struct Side {
  GpuLstm problem;
  OurProgram ours;
  std::string backend;
  Tensor last;

  Side(Context& context, const Shape& shape, DType dtype)
      : problem(make_gpu_lstm(*context.gpu, shape.steps, shape.rows, shape.hidden, dtype)),
        ours(lstm_program(problem), feeds_of(problem), context.gpu->device()) {
    const RunResult result = ours.run_once();
    backend = backend_of(result);
    last = last_step(result["y"].tensor());
  }
  Timer timer() const { return a_step(ours.timer(), problem.steps); }
};

Row row_of(Context& context, const char* id, const Shape& shape, const Side& side) {
  Row row;
  row.id = id;
  row.shape = fmt::format("a step of {}, B{} H{} {}", shape.steps, shape.rows, shape.hidden, name_of(side.problem.dtype));
  row.note = side.backend;
  if (const auto floor = context.gpu->lstm_floor(shape.steps, shape.rows, shape.hidden, shape.hidden, side.problem.dtype))
    row.floor = *floor / static_cast<double>(shape.steps);
  row.panel = fmt::format("a step of {} {} over H, B {}", shape.steps, name_of(side.problem.dtype), shape.rows);
  row.x = static_cast<double>(shape.hidden);
  return row;
}

/// The kernels that the backend above consists of, without a program.
void kernels_beside(Context& context, const char* id, const Shape& shape, const Side& side, const Timer& peer, const std::string& peer_name,
                    const std::string& why_not) {
  Row row = row_of(context, id, shape, side);
  row.shape += ", kernels alone";
  row.peer_name = peer_name;
  row.panel.clear();
  try {
    const KernelLstm kernels = make_kernel_lstm(*context.gpu, side.problem);
    row.note = kernels.schedule + (kernels.phases.empty() ? "" : "; " + kernels.phases);
    if (const double apart = difference_of(side.last, kernels.last); !(apart <= allowed(side.problem.dtype)))
      row.note = fmt::format("not measured: {:.3g} from what the layer gives; {}", apart, row.note);
    else
      return emit_pair(context, row, a_step(kernels.timer, shape.steps), peer, why_not);
  } catch (const UnsupportedError& error) {
    row.note = std::string("not measured: ") + error.what();
  }
  context.emit(std::move(row));
}

void beside_cudnn(Context& context, const char* id, const Shape& shape, const Side& side, std::optional<double> goal) {
  CudnnLstm peer = make_cudnn_lstm(*context.gpu, side.problem, context.effort);
  if (peer.timer) check_peer(difference_of(side.last, peer.last_step()), peer.timer, peer.note, allowed(side.problem.dtype));
  Row row = row_of(context, id, shape, side);
  row.peer_name = peer.name;
  row.goal = goal;
  if (peer.timer) row.note += "; " + peer.note;
  emit_pair(context, row, side.timer(), a_step(peer.timer, shape.steps), peer.note);
  kernels_beside(context, id, shape, side, a_step(peer.timer, shape.steps), peer.name, peer.note);
}

/// f16 and bf16 side by side.
void lstm_shape(Context& context, const char* id, const Shape& shape) {
  const Side half(context, shape, DType::f16);
  beside_cudnn(context, id, shape, half, goal_of(shape));
  const Side brain(context, shape, DType::bf16);
  const bool clause = shape.hidden <= 512 || shape.rows <= 16;
  beside_cudnn(context, "G3", shape, brain, clause ? std::optional<double>(6) : std::nullopt);
  Row row = row_of(context, "G3", shape, brain);
  row.peer_name = "ours, f16";
  row.goal = 0.97;
  row.panel.clear();
  emit_pair(context, row, brain.timer(), half.timer(), "");
}

void lstm_shapes(Context& context, const char* id, const std::vector<std::int64_t>& widths, const std::vector<std::int64_t>& batches) {
  if (context.quick) return lstm_shape(context, id, {16, batches.front(), 32});
  for (const std::int64_t hidden : widths)
    for (const std::int64_t rows : batches)
      if (is_wanted(context, hidden, rows)) lstm_shape(context, id, {1024, rows, hidden});
}

const std::vector<std::int64_t> usual_widths{128, 256, 512, 768, 1024};

}  // namespace

void measure_few_rows(Context& context) { lstm_shapes(context, "G1", usual_widths, {1, 4, 16}); }
void measure_many_rows(Context& context) { lstm_shapes(context, "G2", usual_widths, {64, 256}); }
void measure_wide(Context& context) { lstm_shapes(context, "G5", {1536, 2048}, {1, 16, 64}); }

}  // namespace millrace::bench
