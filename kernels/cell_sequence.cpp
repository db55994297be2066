// SPDX-License-Identifier: Apache-2.0
#include <millrace/kernels/cell_sequence.h>

#include <algorithm>
#include <optional>

#include <fmt/format.h>

#include <millrace/kernels/cuda/cell_sequence.h>
#include <millrace/kernels/cuda/lstm_sequence.h>
#include <millrace/kernels/cuda/recurrent_costs.h>
#include <millrace/kernels/internal/check.h>
#include <millrace/kernels/internal/row_major.h>
#include <millrace/tensor/launch.h>
#include <millrace/tensor/multiprocessor_reserve.h>

namespace millrace {
namespace {

constexpr const char* op = "cell sequence";
using Group = LstmSchedule::Group;
using Costs = cuda::RecurrentCosts;
using cuda::lstm_pieces;

int device_of(const Place& place) {
  if (!internal::on_cuda(place))
    throw PlaceError("cell sequence: expected a CUDA device, found " + place.to_string() + ": a CPU fuses loops row by row");
  return std::get<CudaPlace>(place).index;
}

std::int64_t k_of(const CellPlan& plan, const CellPlan::Product& product) {
  return plan.vectors[static_cast<std::size_t>(product.vector)].width;
}
std::int64_t unit_blocks(const CellPlan& plan) { return lstm_pieces(plan.units, 8); }

}  // namespace

struct CellSequence::State {
  CellPlan plan;
  Place place;
  LstmLimits limits;
  std::shared_ptr<const cuda::CellKernel> kernel;
};

const CellPlan& CellSequence::plan() const noexcept { return state_->plan; }
const Place& CellSequence::place() const noexcept { return state_->place; }
const LstmLimits& CellSequence::limits() const noexcept { return state_->limits; }

std::string cell_compiler(const Place& place) { return cuda::compiler_of(cuda::architecture_of(device_of(place))); }
CellCode compile_cell(const CellPlan& plan, const Place& place) { return cuda::compile(plan, cuda::architecture_of(device_of(place))); }
std::string cell_compiler(const std::string& architecture) { return cuda::compiler_of(architecture); }
CellCode compile_cell(const CellPlan& plan, const std::string& architecture) { return cuda::compile(plan, architecture); }

CellSequence make_cell_sequence(CellPlan plan, const Place& place, const CellCode& code) {
  const std::shared_ptr<const cuda::CellKernel> kernel = cuda::load_cell(code, device_of(place));
  LstmLimits limits = cuda::limits_of(*kernel);
  limits.tf32 = plan.tf32;
  CellSequence made;
  made.state_ = std::make_shared<const CellSequence::State>(CellSequence::State{std::move(plan), place, std::move(limits), kernel});
  return made;
}

// ---- Which blocks do what ----

cuda::CellSharedParts cuda::cell_shared_parts(const CellPlan& plan, const CellSchedule& schedule) {
  CellSharedParts made;
  const std::int64_t units = lstm_pieces(unit_blocks(plan), schedule.blocks);
  std::int64_t at = 0;
  for (std::size_t p = 0; p < plan.products.size(); ++p) {
    made.weights.push_back(at);
    at += units * schedule.resident[p] * cell_weights_of_chunk(plan.products[p].gates, cell_by_mma(plan));
  }
  made.staged = at;
  std::int64_t most = 0, results = 0;
  for (int stage = 0; stage < plan.stages; ++stage) {
    std::int64_t bytes = 0;
    for (const CellPlan::Vector& vector : plan.vectors)
      if ((vector.reads >> stage & 1) != 0) bytes += cell_vector_bytes(vector, plan.factors);
    most = std::max(most, bytes);
    results = std::max<std::int64_t>(results, plan.results[static_cast<std::size_t>(stage)]);
  }
  made.folds = made.staged + schedule.staged * most;
  // Behind the results, a line of sums for each warp.
  made.bytes = made.folds + (results > 0 ? schedule.staged * 8 * results * 4 + std::int64_t{schedule.warps} * 32 * 4 : 0);
  return made;
}

std::int64_t cell_shared_bytes(const CellPlan& plan, const CellSchedule& schedule) { return cuda::cell_shared_parts(plan, schedule).bytes; }

namespace {

double estimate(const CellPlan& plan, const CellSchedule& of, std::int64_t tiles) {
  const bool by_mma = cuda::cell_by_mma(plan);
  const auto mine = static_cast<double>(lstm_pieces(tiles, of.groups));
  const auto units = static_cast<double>(lstm_pieces(unit_blocks(plan), of.blocks));
  const double meeting = of.group == Group::block ? Costs::block : of.group == Group::cluster ? Costs::cluster : Costs::grid;
  double all = plan.stages * (meeting + Costs::second_cache * std::ceil(mine / of.staged));
  for (int stage = 0; stage < plan.stages; ++stage)
    for (const CellPlan::Vector& vector : plan.vectors)
      if ((vector.reads >> stage & 1) != 0)
        all += mine * static_cast<double>(cuda::cell_vector_bytes(vector, plan.factors)) * Costs::cache_rate;
  const double rounds = std::ceil(units * mine / of.warps);
  for (std::size_t p = 0; p < plan.products.size(); ++p) {
    const auto chunks = static_cast<double>(lstm_pieces(k_of(plan, plan.products[p]), cuda::cell_chunk(plan.factors)));
    const double gates = plan.products[p].gates / 4.0;
    const double rate = units * mine * chunks * gates * (by_mma ? Costs::mma : Costs::fma);
    const double chain = rounds * chunks * (by_mma ? Costs::mma_latency : 8 * Costs::fma_latency);
    all += std::max(rate, chain) * Costs::clock;
    all += units * (chunks - static_cast<double>(of.resident[p])) * mine *
           static_cast<double>(cuda::cell_weights_of_chunk(plan.products[p].gates, cuda::cell_by_mma(plan))) * Costs::cache_rate;
  }
  return all + rounds * (Costs::pointwise(1, false) + Costs::outputs(1));
}

/// As many weights as fit stay in shared memory.
bool fill_shared(CellSchedule& made, const CellPlan& plan, const LstmLimits& limits) {
  made.resident.assign(plan.products.size(), 0);
  std::int64_t left = limits.shared_bytes - cell_shared_bytes(plan, made);
  if (left < 0) return false;
  const std::int64_t units = lstm_pieces(unit_blocks(plan), made.blocks);
  for (std::size_t p = 0; p < plan.products.size(); ++p) {
    const std::int64_t bytes = units * cuda::cell_weights_of_chunk(plan.products[p].gates, cuda::cell_by_mma(plan));
    made.resident[p] = std::min(lstm_pieces(k_of(plan, plan.products[p]), cuda::cell_chunk(plan.factors)), left / bytes);
    left -= made.resident[p] * bytes;
  }
  return true;
}

}  // namespace

CellSchedule schedule_cell(const CellPlan& plan, std::int64_t rows, const LstmLimits& limits) {
  const std::int64_t tiles = std::max<std::int64_t>(1, lstm_pieces(rows, 8));
  std::optional<CellSchedule> best;
  const auto consider = [&](Group group, std::int64_t blocks, std::int64_t groups) {
    CellSchedule one;
    one.group = group;
    one.blocks = static_cast<int>(blocks);
    one.groups = static_cast<int>(std::min(groups, tiles));
    if (one.groups < 1 || one.blocks < 1) return;
    constexpr std::int64_t most_staged = 32;
    for (std::int64_t staged = std::min(lstm_pieces(tiles, one.groups), most_staged); staged > 0; staged /= 2) {
      one.staged = static_cast<int>(staged);
      if (!fill_shared(one, plan, limits)) continue;
      one.step_ns = estimate(plan, one, tiles);
      if (!best || one.step_ns < best->step_ns) best = one;
    }
  };
  consider(Group::block, 1, limits.multiprocessors);
  for (const auto& [blocks, most] : limits.clusters)
    if (blocks <= unit_blocks(plan)) consider(Group::cluster, blocks, most);
  for (std::int64_t groups = 1; limits.cooperative && groups <= 16; groups *= 2) {
    const std::int64_t blocks = std::min<std::int64_t>(limits.multiprocessors / groups, unit_blocks(plan));
    if (blocks > 1) consider(Group::grid, blocks, groups);
  }
  if (!best)
    throw UnsupportedError(
        fmt::format("cell sequence: expected shared memory for {}, found {} bytes a block", plan.to_string(), limits.shared_bytes));
  return *best;
}

std::string CellSchedule::to_string() const {
  const char* const kind = group == Group::block ? "block" : group == Group::cluster ? "cluster" : "grid";
  return fmt::format("{} group{} of {} block{} ({}), {} warps a block, {} rows staged, estimated {:.0f} ns a step", groups,
                     groups == 1 ? "" : "s", blocks, blocks == 1 ? "" : "s", kind, warps, 8 * staged, step_ns);
}

// ---- Weights and rows ----

PackedCell pack(const CellSequence& cell, std::span<const Tensor> matrices, StreamRef stream) {
  const CellPlan& plan = cell.plan();
  if (matrices.size() != plan.products.size())
    throw ArgumentError(fmt::format("cell sequence: expected {} matrices, found {}", plan.products.size(), matrices.size()));
  PackedCell made;
  for (std::size_t p = 0; p < matrices.size(); ++p) {
    const CellPlan::Product& product = plan.products[p];
    internal::check_device_places(op, stream, {&matrices[p]});
    if (matrices[p].dtype() != DType::bf16) internal::check_dtype(op, "a matrix", matrices[p], plan.factors);
    internal::check_dims(op, "a matrix", matrices[p], DDim{k_of(plan, product), product.gates * plan.units});
    const Tensor straight = internal::row_major_as(op, matrices[p], plan.factors, stream);
    const std::int64_t bytes = unit_blocks(plan) * lstm_pieces(k_of(plan, product), cuda::cell_chunk(plan.factors)) *
                               cuda::cell_weights_of_chunk(product.gates, cuda::cell_by_mma(plan));
    const Tensor packed(DType::u8, DDim{bytes}, stream.memory());
    launch(
        TensorRefs<1>{&straight}, TensorRefs<1>{&packed},
        [cell, p, straight, packed](KernelContext& context) { cuda::pack_cell_product(cell.plan(), p, straight, packed, context); },
        stream);
    made.products.push_back(packed);
  }
  return made;
}

namespace {

void check_rows(const char* role, const Tensor& tensor, std::int64_t rows) {
  if (tensor.rank() < 1 || tensor.dim(0) < rows)
    throw ShapeError(fmt::format("cell sequence: expected {} rows of {}, found {}", rows, role, tensor.to_string()));
}

void check(const CellSequence& cell, const PackedCell& weights, const CellRows& rows) {
  const CellPlan& plan = cell.plan();
  const auto expect = [](const char* what, std::size_t expected, std::size_t found) {
    if (expected != found) throw ArgumentError(fmt::format("cell sequence: expected {} {}, found {}", expected, what, found));
  };
  expect("products", plan.products.size(), weights.products.size());
  expect("inputs", plan.input_rows.size(), rows.inputs.size());
  expect("shared values", plan.shared.size(), rows.shared.size());
  expect("outputs", plan.output_widths.size(), rows.outputs.size());
  expect("states", plan.state_widths.size(), rows.states.size());
  expect("states behind the steps", plan.state_widths.size(), rows.states_out.size());
  const std::int64_t last = rows.offsets.empty() ? 0 : rows.offsets.back();
  if (rows.offsets.empty() || rows.offsets.front() < 0)
    throw ArgumentError("cell sequence: expected offsets from 0 or more on, one more than steps");
  for (std::size_t t = 1; t < rows.offsets.size(); ++t)
    if (const std::int64_t count = rows.offsets[t] - rows.offsets[t - 1];
        count < 0 || (t > 1 && count > rows.offsets[t - 1] - rows.offsets[t - 2]))
      throw ArgumentError(
          fmt::format("cell sequence: expected steps of no more rows than the one before, found {} in step {}", count, t - 1));
  if (rows.reversed) {
    const std::int64_t first = rows.offsets.size() < 2 ? 0 : rows.offsets[1] - rows.offsets[0];
    for (std::size_t t = 1; t < rows.offsets.size(); ++t)
      if (const std::int64_t count = rows.offsets[t] - rows.offsets[t - 1]; count != first)
        throw ArgumentError(fmt::format("cell sequence: expected reversed steps of {} rows, found {} in step {}", first, count, t - 1));
    if (!rows.places.empty() || rows.watermark) throw ArgumentError("cell sequence: expected reversed steps without places and watermark");
  }
  for (const Tensor& input : rows.inputs) {
    check_rows("an input", input, last);
    internal::check_contiguous(op, "an input", input);
    if (input.dtype() != DType::boolean) internal::check_dtype(op, "an input", input, DType::f32);
  }
  for (const Tensor& shared : rows.shared) {
    internal::check_contiguous(op, "a shared value", shared);
    internal::check_dtype(op, "a shared value", shared, DType::f32);
  }
  for (std::size_t i = 0; i < rows.outputs.size(); ++i) {
    check_rows("an output", rows.outputs[i], last);
    internal::check_dtype(op, "an output", rows.outputs[i], DType::f32);
    internal::check_contiguous(op, "an output", rows.outputs[i]);
  }
  const std::int64_t sequences = rows.offsets.size() < 2 ? 0 : rows.offsets[1] - rows.offsets[0];
  for (std::size_t i = 0; i < rows.states.size(); ++i)
    for (const Tensor* state : {&rows.states[i], &rows.states_out[i]}) {
      check_rows("a state", *state, rows.slots.empty() ? sequences : 0);
      internal::check_dtype(op, "a state", *state, DType::f32);
      internal::check_contiguous(op, "a state", *state);
      for (const std::int64_t slot : rows.slots)
        if (slot < 0 || slot >= state->dim(0))
          throw IndexError(fmt::format("cell sequence: expected a slot below {}, found {}", state->dim(0), slot));
    }
  if (!rows.slots.empty() && std::cmp_not_equal(rows.slots.size(), sequences))
    throw ArgumentError(fmt::format("cell sequence: expected {} slots, found {}", sequences, rows.slots.size()));
  if (!rows.places.empty() && std::cmp_less(rows.places.size(), last))
    throw ArgumentError(fmt::format("cell sequence: expected a place for each of {} rows", last));
}

}  // namespace

void run(const CellSequence& cell, const PackedCell& weights, const CellRows& rows, StreamRef stream, const CellSchedule* schedule) {
  check(cell, weights, rows);
  auto steps = static_cast<std::int64_t>(rows.offsets.size()) - 1;
  while (steps > 0 && rows.offsets[static_cast<std::size_t>(steps)] == rows.offsets[static_cast<std::size_t>(steps) - 1]) --steps;
  if (steps == 0) return;
  const int reserved = reserved_multiprocessors(std::get<CudaPlace>(cell.place()).index);
  const CellSchedule chosen =
      schedule != nullptr ? *schedule : schedule_cell(cell.plan(), rows.offsets[1] - rows.offsets[0], cell.limits().without(reserved));
  if (cell_shared_bytes(cell.plan(), chosen) > cell.limits().shared_bytes)
    throw ArgumentError(fmt::format("cell sequence: expected no more than {} bytes of shared memory, found {}", cell.limits().shared_bytes,
                                    chosen.to_string()));
  const std::int64_t at_once = rows.steps_a_launch > 0 ? rows.steps_a_launch : steps;
  for (std::int64_t first = 0; first < steps; first += at_once) {
    CellRows now = rows;
    for (std::size_t i = 0; first > 0 && i < now.states.size(); ++i)
      if (cell.plan().state_changes[i]) now.states[i] = now.states_out[i];
    TensorRefs<128> reads{};
    TensorRefs<64> writes{};
    std::size_t count = 0;
    for (const std::vector<Tensor>* all :
         {&weights.products, &std::as_const(now.inputs), &std::as_const(now.shared), &std::as_const(now.states)})
      for (const Tensor& one : *all) reads[count++] = &one;
    count = 0;
    for (const Tensor& one : now.outputs) writes[count++] = &one;
    for (std::size_t i = 0; i < now.states.size(); ++i)
      if (cell.plan().state_changes[i]) writes[count++] = &now.states_out[i];
    launch(
        reads, writes,
        [cell, chosen, weights, now, first, last = std::min(steps, first + at_once)](KernelContext& context) {
          cuda::cell_sequence(cell.plan(), *cell.state().kernel, chosen, weights, now, first, last, context);
        },
        stream);
  }
}

}  // namespace millrace
