// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cuda_recurrent/device_cell.h>

#include <algorithm>

#include <millrace/runtime/files/code_cache.h>
#include <millrace/runtime/loops/cuda_recurrent/internal/whole_run.h>

namespace millrace {
namespace {

using From = passes::Source::From;

CellSequence compiled(const CellPlan& plan, const Place& place) {
  const CodeCache cache = CodeCache::of_user();
  const std::string key = cell_compiler(place) + "\n" + plan.source;
  if (const std::optional<std::string> known = cache.find(key)) return make_cell_sequence(plan, place, {*known, {}});
  const CellCode code = compile_cell(plan, place);
  cache.store(key, code.image);
  return make_cell_sequence(plan, place, code);
}

}  // namespace

DeviceCell::DeviceCell(const LoopSite& site) : loop_(*site.program, site.block, *site.op, uses_tf32(*site.device)), device_(site.device) {
  const passes::Phases& phases = loop_.phases();
  for (const auto& [phase, made] : {std::pair{&phases.invariant, &invariant_}, {&phases.ahead, &ahead_}, {&phases.behind, &behind_}})
    if (!phase->program.outputs().empty()) made->emplace(phase->program, device_);
  cell_ = compiled(loop_.plan(), device_->place());
  const StreamRef stream = device_->stream(0);
  for (const Tensor& constant : loop_.constants()) constants_.push_back(brought(constant, stream));
  const auto& matrices = loop_.matrices();
  if (std::all_of(matrices.begin(), matrices.end(), [](const CellLoop::Matrix& one) { return one.value.has_value(); })) {
    std::vector<Tensor> values;
    for (const CellLoop::Matrix& one : matrices) values.push_back(*one.value);
    packed_ = packed(values, stream);
  }
}

/// `matrices`: as they stand in the program.
PackedCell DeviceCell::packed(const std::vector<Tensor>& matrices, StreamRef stream) const {
  std::vector<Tensor> straight;
  for (std::size_t i = 0; i < matrices.size(); ++i) {
    const Tensor there = brought(matrices[i], stream);
    straight.push_back(loop_.matrices()[i].transposed ? there.permute({1, 0}) : there);
  }
  return pack(*cell_, straight, stream);
}

std::string DeviceCell::to_string() const {
  std::string text = loop_.to_string();
  for (const std::int64_t rows : {1, 16, 64, 256})
    text += "  " + std::to_string(rows) + " rows: " + schedule_cell(cell_->plan(), rows, cell_->limits()).to_string() + "\n";
  return text;
}

class DeviceCell::Run final : public WholeRun {
 public:
  Run(const DeviceCell& cell, LoopOperands operands, StreamRef stream) : WholeRun(cell.form(), std::move(operands), stream), cell_(cell) {}

  std::vector<SlotValue> finish() override {
    std::vector<SlotValue> last;
    for (std::size_t i = 0; i < states_.size(); ++i) last.push_back(last_state(rows_, i, states_[i], iterations() - 1, stream_));
    return last;
  }

 private:
  using Source = CellLoop::Source;

  /// A value that is there before the kernel, or, behind it, one that the kernel writes.
  Tensor value(const Source& source) const {
    switch (source.from) {
      case From::input: return rows_.inputs[source.place];
      case From::shared: return shared_[source.place];
      case From::invariant: return invariant_[source.place];
      case From::ahead: return ahead_[source.place];
      default: break;
    }
    const std::size_t steps = cell_.loop_.phases().step.program.outputs().size();
    if (source.from == From::step && source.place >= steps) return behind_[source.place - steps];
    return written_[cell_.loop_.place(source)];
  }
  std::vector<Tensor> run(const std::optional<StraightProgram>& program, const passes::Phase& phase) const {
    std::vector<Tensor> made;
    if (!program) return made;
    std::vector<Value> inputs;
    for (const Source& source : phase.inputs) inputs.emplace_back(value(source));
    for (const Value& one : program->run(inputs)) made.push_back(one.tensor().tensor());
    return made;
  }

  void enqueue() override {
    const CellLoop& loop = cell_.loop_;
    const passes::Phases& phases = loop.phases();
    for (const Tensor& one : operands_.shared) shared_.push_back(brought(one, stream_));
    invariant_ = run(cell_.invariant_, phases.invariant);
    ahead_ = run(cell_.ahead_, phases.ahead);
    const CellRows rows = cell_rows();
    millrace::run(*cell_.cell_, weights(), rows, stream_);
    for (std::size_t i = 0; i < written_.size(); ++i) {
      const DDim dims = loop.written_dims()[i].inserted(0, rows_.offsets.back());
      written_[i] = written_[i].reshape(dims);
    }
    for (std::size_t i = 0; i < states_.size(); ++i) states_[i] = states_[i].reshape(rows_.states[i].dims());
    behind_ = run(cell_.behind_, phases.behind);
    for (std::size_t i = 0; i < operands_.outputs.size(); ++i) {
      const Source& source = phases.outputs[i];
      write(i, value(source), of_kernel(source) ? watermark_ : nullptr);
    }
  }

  PackedCell weights() const {
    if (cell_.packed_) return *cell_.packed_;
    std::vector<Tensor> matrices;
    for (const CellLoop::Matrix& one : cell_.loop_.matrices()) matrices.push_back(one.value ? *one.value : value(one.source));
    return cell_.packed(matrices, stream_);
  }

  Tensor flat(const Tensor& rows) const {
    const Tensor straight = rows.is_contiguous() ? rows : contiguous(rows, stream_);
    return straight.reshape(DDim{rows.dim(0), rows.dim(0) == 0 ? 0 : rows.elements() / rows.dim(0)});
  }

  CellRows cell_rows() {
    const CellLoop& loop = cell_.loop_;
    const CellPlan& plan = loop.plan();
    CellRows made;
    for (const std::size_t input : plan.input_rows) made.inputs.push_back(flat(value(loop.inputs()[input])));
    for (const CellPlan::Shared& one : plan.shared) {
      const Tensor shared = one.constant ? cell_.constants_[one.place] : value(loop.inputs()[one.place]);
      made.shared.push_back(shared.is_contiguous() ? shared : contiguous(shared, stream_));
    }
    const std::int64_t rows = rows_.offsets.back();
    for (const std::int64_t width : plan.output_widths) written_.emplace_back(DType::f32, DDim{rows, width}, stream_.memory());
    made.outputs = written_;
    for (std::size_t i = 0; i < rows_.states.size(); ++i) {
      made.states.push_back(flat(rows_.states[i]));
      states_.push_back(plan.state_changes[i] ? Tensor(DType::f32, made.states[i].dims(), stream_.memory()) : made.states[i]);
    }
    made.states_out = states_;
    made.offsets = rows_.offsets;
    made.places = rows_.places;
    made.slots = rows_.slots;
    made.reversed = rows_.reversed;
    made.steps_a_launch = iterations_a_launch;
    const bool seen =
        std::any_of(loop.phases().outputs.begin(), loop.phases().outputs.begin() + static_cast<std::ptrdiff_t>(operands_.outputs.size()),
                    [this](const Source& source) { return of_kernel(source); });
    if (seen && !rows_.reversed && rows_.counts.back() > 0) watermark_ = stream_.watermark(static_cast<std::uint64_t>(rows_.counts.size()));
    made.watermark = watermark_;
    return made;
  }

  bool of_kernel(const Source& source) const {
    return source.from == From::state || (source.from == From::step && source.place < cell_.loop_.phases().step.program.outputs().size());
  }

  const DeviceCell& cell_;
  std::vector<Tensor> shared_, invariant_, ahead_, written_, behind_, states_;
  std::shared_ptr<Watermark> watermark_;
};

std::unique_ptr<LoopRun> DeviceCell::prepare(LoopOperands operands, StreamRef stream) const {
  return std::make_unique<Run>(*this, std::move(operands), stream);
}

}  // namespace millrace
