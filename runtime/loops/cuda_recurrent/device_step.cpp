// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cuda_recurrent/device_step.h>

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/format.h>

#include <millrace/kernels/gemm.h>
#include <millrace/kernels/library_products.h>
#include <millrace/kernels/lstm_sequence.h>
#include <millrace/runtime/loops/cuda_graph/captured_loop.h>
#include <millrace/runtime/loops/cuda_graph/tick_graph.h>
#include <millrace/runtime/loops/cuda_recurrent/internal/device_rows.h>
#include <millrace/runtime/lowering/passes.h>
#include <millrace/runtime/program/internal/op_name.h>
#include <millrace/runtime/program/ops/internal/lstm_form.h>
#include <millrace/runtime/program/straight_program.h>
#include <millrace/tensor/cuda_device.h>

namespace millrace {
namespace {

[[noreturn]] void refuse(const std::string& why) { throw UnsupportedError(why); }
/// The elements of its first input in the same order, with other extents.
bool is_view(const Op& op) { return op.type == "reshape" || op.type == "squeeze" || op.type == "unsqueeze" || op.type == "identity"; }

}  // namespace

// ---- What a step is ----

struct DeviceStepForm::Reader {
  DeviceStepForm& made;
  const Recurrence& recurrence;
  const Program& step;
  const std::vector<Op>& ops;
  std::map<VarId, const Op*> maker;
  std::map<const Op*, Cell> cells;
  std::set<VarId> wanted;
  std::vector<const Op*> needed;

  Reader(DeviceStepForm& form, const Recurrence& of) : made(form), recurrence(of), step(form.step_), ops(step.block(0).ops) {
    for (const Op& op : ops)
      for (const VarId output : op.outputs) maker[output] = &op;
  }

  void read(Backend backend) {
    made.inputs_ = recurrence.inputs.size();
    made.outputs_ = recurrence.outputs.size();
    std::size_t next = made.outputs_;
    for (const Recurrence::State& state : recurrence.states)
      made.next_.push_back(state.changes ? std::optional<std::size_t>(next++) : std::nullopt);
    if (backend != Backend::captured) find_cells();
    if (backend == Backend::captured) made.reason_ = "the captured backend was asked for";
    if (backend == Backend::fused && cells.empty()) refuse(made.reason_);
    made.cells_ = cells.size();
    find_needed();
    for (std::size_t i = 0; i < recurrence.states.size(); ++i) made.gathered_.push_back(wanted.contains(state(i)));
    cut();
  }

  VarId state(std::size_t i) const { return step.inputs()[made.inputs_ + i].var; }
  std::int64_t width(std::size_t i) const { return recurrence.states[i].dims.elements(); }
  VarId root(VarId var) const {
    for (auto at = maker.find(var); at != maker.end() && is_view(*at->second); at = maker.find(var)) var = at->second->inputs[0];
    return var;
  }

  void find_cells() {
    made.reason_ = "no op of it is lstm_cell, the only cell with a kernel";
    for (const Op& op : ops) {
      if (op.type != "lstm_cell") continue;
      try {
        const Cell cell = read_cell(op);
        cells.emplace(&op, cell);
        made.next_[cell.h] = made.next_[cell.c] = std::nullopt;
      } catch (const UnsupportedError& error) {
        made.reason_ = internal::op_name(op) + ": " + error.what();
      }
    }
  }

  std::size_t state_of(VarId var, std::int64_t hidden) const {
    const VarId from = root(var);
    for (std::size_t i = 0; i < recurrence.states.size(); ++i)
      if (state(i) == from && width(i) == hidden && made.next_[i]) return i;
    refuse("its h and c are not two states that it alone carries on");
  }

  Cell read_cell(const Op& op) const {
    const auto input = [&](std::size_t at) { return at < op.inputs.size() ? op.inputs[at] : no_var; };
    Cell cell;
    cell.x = input(ops::in_x);
    cell.w = input(ops::in_w);
    cell.r = input(ops::in_r);
    cell.bias = input(ops::in_bias);
    cell.peepholes = input(ops::in_peephole);
    cell.h_next = op.outputs[0];
    cell.c_next = op.outputs[1];
    for (const VarId var : {cell.w, cell.r, cell.bias, cell.peepholes})
      if (var != no_var && step.constant(var) == nullptr) refuse("its weights are computed");
    if (step.constant(cell.x) != nullptr) refuse("its X is the same in every step");
    const Tensor &w = *step.constant(cell.w), &r = *step.constant(cell.r);
    cell.desc = ops::lstm_form(op, 2);
    cell.desc.input = w.dim(0);
    cell.desc.hidden = r.dim(0);
    cell.desc.dtype = step.var(cell.x).type.dtype;
    cell.desc.weights = w.dtype();
    if (cell.desc.dtype == DType::f64) refuse("there is no kernel in f64");
    cell.h = state_of(input(ops::in_h), cell.desc.hidden);
    cell.c = state_of(input(ops::in_c), cell.desc.hidden);
    const auto goes_on = [&](std::size_t state, VarId next) { return root(step.outputs()[*made.next_[state]].var) == next; };
    if (cell.h == cell.c || !goes_on(cell.h, cell.h_next) || !goes_on(cell.c, cell.c_next))
      refuse("its h and c are not what it makes of the step before");
    return cell;
  }

  /// Finds the ops that the outputs need, and those that the next states need which no cell leaves in the slab.
  void find_needed() {
    for (std::size_t i = 0; i < made.outputs_; ++i) wanted.insert(step.outputs()[i].var);
    for (const std::optional<std::size_t>& next : made.next_)
      if (next) wanted.insert(step.outputs()[*next].var);
    for (std::size_t i = ops.size(); i-- > 0;) {
      const Op& op = ops[i];
      const auto cell = cells.find(&op);
      const bool used = std::any_of(op.outputs.begin(), op.outputs.end(), [&](VarId id) { return wanted.contains(id); });
      if (op.type == "constant" || (!used && cell == cells.end())) continue;
      needed.insert(needed.begin(), &op);
      if (cell == cells.end()) {
        wanted.insert(op.inputs.begin(), op.inputs.end());
      } else {
        cell->second.keeps_c = wanted.contains(cell->second.c_next);
        wanted.insert(cell->second.x);
      }
    }
  }

  void cut() {
    std::vector<const Op*> between;
    for (const Op* op : needed) {
      const auto cell = cells.find(op);
      if (cell == cells.end()) {
        between.push_back(op);
        continue;
      }
      add_ops(between);
      between.clear();
      made.stages_.emplace_back().cell = cell->second;
    }
    add_ops(between);
  }

  /// A stage of ops, whose outputs are those that other stages or the caller read.
  void add_ops(const std::vector<const Op*>& own) {
    if (own.empty()) return;
    Stage& stage = made.stages_.emplace_back();
    Program& program = stage.program.emplace(step.shared_registry());
    std::map<VarId, VarId> to;
    for (const Op* op : own) {
      Op copied{op->type, {}, {}, op->attributes, op->label};
      for (const VarId input : op->inputs) {
        if (input != no_var && !to.contains(input)) bring(input, stage, to);
        copied.inputs.push_back(input == no_var ? no_var : to.at(input));
      }
      std::vector<std::string> names;
      for (const VarId output : op->outputs) names.push_back(step.var(output).name);
      const std::vector<VarId> outputs = program.append(0, std::move(copied), names);
      for (std::size_t i = 0; i < outputs.size(); ++i) to[op->outputs[i]] = outputs[i];
    }
    for (const Op* op : own)
      for (const VarId output : op->outputs)
        if (leaves(output, own)) {
          program.add_output(step.var(output).name, to.at(output));
          stage.outputs.push_back(output);
        }
  }

  void bring(VarId input, Stage& stage, std::map<VarId, VarId>& to) const {
    const Tensor* value = step.constant(input);
    const std::string& name = step.var(input).name;
    to[input] = value != nullptr ? stage.program->add_parameter(name, *value) : stage.program->add_input(name, step.var(input).type);
    if (value == nullptr) stage.inputs.push_back(input);
  }

  bool leaves(VarId var, const std::vector<const Op*>& own) const {
    for (std::size_t i = 0; i < step.outputs().size(); ++i)
      if (step.outputs()[i].var == var && (i < made.outputs_ || std::find(made.next_.begin(), made.next_.end(), i) != made.next_.end()))
        return true;
    return std::any_of(needed.begin(), needed.end(), [&](const Op* op) {
      return std::find(own.begin(), own.end(), op) == own.end() && std::find(op->inputs.begin(), op->inputs.end(), var) != op->inputs.end();
    });
  }
};

DeviceStepForm::DeviceStepForm(const Recurrence& recurrence, Backend backend) : step_(passes::share_expressions(recurrence.batched)) {
  expect_no_host(step_);
  Reader(*this, recurrence).read(backend);
}

std::string DeviceStepForm::to_string() const {
  std::size_t ops = 0;
  for (const Stage& stage : stages_)
    if (stage.program)
      ops += static_cast<std::size_t>(std::count_if(stage.program->block(0).ops.begin(), stage.program->block(0).ops.end(),
                                                    [](const Op& op) { return op.type != "constant"; }));
  const auto gathered = std::count(gathered_.begin(), gathered_.end(), true);
  std::string text = fmt::format("backend: {}: a graph of {} and {} ops", name_of(backend()),
                                 cells_ == 1 ? "1 cell with its own kernel" : fmt::format("{} cells with their own kernel", cells_), ops);
  text += fmt::format("; {} of {} states are gathered from their slots\n", gathered, gathered_.size());
  if (cells_ == 0) text += "  not fused, because " + reason_ + "\n";
  return text;
}

// ---- On a device ----

namespace {

/// A graph has room for so many rows: little more than a tick has, and few graphs in all.
std::int64_t room_for(std::int64_t rows) {
  std::int64_t room = 1;
  while (room < rows) room *= 2;
  const std::int64_t less = room / 4 * 3;
  return room >= 32 && rows <= less ? less : room;
}

/// A cell's kernel with its weights.
class CellKernel {
 public:
  CellKernel(const DeviceStepForm::Cell& cell, const Program& step, Device& device)
      : plan_(make_lstm_sequence(cell.desc, device.place(), uses_tf32(device))),
        projection_(
            make_gemm_plan({cell.desc.input, 4 * cell.desc.hidden, cell.desc.dtype, DType::f32, cell.desc.weights}, device.place())) {
    const StreamRef stream = device.stream(0);
    const auto held = [&](VarId var) { return var == no_var ? std::nullopt : std::optional<Tensor>(brought(*step.constant(var), stream)); };
    const std::optional<Tensor> bias = held(cell.bias), peepholes = held(cell.peepholes);
    weights_ = pack(plan_, *held(cell.r), bias ? &*bias : nullptr, peepholes ? &*peepholes : nullptr, stream);
    w_ = pack(projection_, *held(cell.w), stream);
    probe_library_product(projection_, w_, stream);
  }

  /// The next h, and c where `c_next` wants it; the state of each slot in place.
  Tensor run(const Tensor& x, const cuda::TickStep::Values& values, Tensor h, Tensor c, Tensor* c_next, StreamRef stream) const {
    const std::int64_t rows = values.slots.dim(0), hidden = plan_.desc().hidden;
    LstmSequenceRows all;
    // Sums in f32, whatever the dtype: rounded in between, it would be another result than the cell's.
    all.projection = Tensor(DType::f32, DDim{rows, 4 * hidden}, stream.memory());
    millrace::run(projection_, w_, x, all.projection, stream);
    all.y = Tensor(plan_.desc().dtype, DDim{rows, hidden}, stream.memory());
    if (c_next != nullptr) all.c_steps = *c_next = Tensor(c.dtype(), all.y.dims(), stream.memory());
    all.offsets = {0, rows};
    all.offsets_there = values.bounds;
    all.slots_there = values.slots;
    all.h = all.h_out = h.reshape(DDim{h.dim(0), hidden});
    all.c = all.c_out = c.reshape(DDim{c.dim(0), hidden});
    millrace::run(plan_, weights_, all, stream);
    return all.y;
  }

 private:
  LstmSequencePlan plan_;
  GemmPlan projection_;
  PackedLstmSequence weights_;
  PackedMatrix w_;
};

}  // namespace

struct DeviceStep::Parts {
  using Values = std::map<VarId, Tensor>;

  const DeviceStepForm& form;
  std::shared_ptr<cuda::RecordingDevice> device;
  std::shared_ptr<MemoryResource> pinned = pinned_memory();
  std::vector<std::optional<StraightProgram>> programs;  // by stage
  std::vector<std::optional<CellKernel>> cells;
  std::vector<Tensor> slabs;
  std::map<std::int64_t, std::shared_ptr<cuda::TickGraph>> graphs;  // by rows

  Parts(const DeviceStepForm& step, std::shared_ptr<Device> on) : form(step), device(cuda::make_recording_device(std::move(on), 0)) {
    for (const DeviceStepForm::Stage& stage : form.stages()) {
      programs.emplace_back();
      cells.emplace_back();
      if (stage.cell) {
        cells.back().emplace(*stage.cell, form.step(), *device);
      } else {
        programs.back().emplace(*stage.program, device);
      }
    }
  }

  cuda::TickGraph& graph_for(std::int64_t rows) {
    const std::int64_t room = room_for(rows);
    std::shared_ptr<cuda::TickGraph>& graph = graphs[room];
    if (graph == nullptr) graph = record(room);
    return *graph;
  }

  std::shared_ptr<cuda::TickGraph> record(std::int64_t rows) {
    cuda::TickStep step;
    step.rows = rows;
    const std::vector<Program::Port>& ports = form.step().inputs();
    for (std::size_t i = 0; i < form.inputs(); ++i) {
      const VarType& type = form.step().var(ports[i].var).type;
      step.inputs.push_back({type.dtype, type.shape->erased(0).inserted(0, rows)});
    }
    std::size_t results = step.outputs = form.outputs();
    for (std::size_t i = 0; i < slabs.size(); ++i)
      step.states.push_back({slabs[i], form.gathered()[i], form.next()[i] ? std::optional(results++) : std::nullopt});
    step.run = [this](const cuda::TickStep::Values& values) { return run(values); };
    step.pinned = pinned;
    return cuda::record_tick(device, step);
  }

  std::vector<Tensor> run(const cuda::TickStep::Values& given) const {
    const std::vector<Program::Port>& ports = form.step().inputs();
    Values values;
    for (std::size_t i = 0; i < given.inputs.size(); ++i) values[ports[i].var] = given.inputs[i];
    for (std::size_t i = 0; i < given.states.size(); ++i)
      if (form.gathered()[i]) values[ports[given.inputs.size() + i].var] = given.states[i];
    for (std::size_t at = 0; at < form.stages().size(); ++at) run_stage(at, given, values);
    std::vector<Tensor> results;
    const std::vector<Program::Port>& outputs = form.step().outputs();
    for (std::size_t i = 0; i < form.outputs(); ++i) results.push_back(values.at(outputs[i].var));
    for (const std::optional<std::size_t>& next : form.next())
      if (next) results.push_back(values.at(outputs[*next].var));
    return results;
  }

  void run_stage(std::size_t at, const cuda::TickStep::Values& given, Values& values) const {
    const DeviceStepForm::Stage& stage = form.stages()[at];
    if (stage.cell) {
      const DeviceStepForm::Cell& cell = *stage.cell;
      values[cell.h_next] = cells[at]->run(values.at(cell.x), given, slabs[cell.h], slabs[cell.c],
                                           cell.keeps_c ? &values[cell.c_next] : nullptr, device->stream(0));
      return;
    }
    std::vector<Value> inputs;
    for (const VarId var : stage.inputs) inputs.emplace_back(values.at(var));
    const std::vector<Value> made = programs[at]->run(inputs);
    for (std::size_t i = 0; i < made.size(); ++i) values[stage.outputs[i]] = made[i].tensor().tensor();
  }
};

DeviceStep::DeviceStep(DeviceStepForm form, std::shared_ptr<Device> device)
    : form_(std::move(form)), parts_(std::make_unique<Parts>(form_, std::move(device))) {}
DeviceStep::~DeviceStep() = default;

void DeviceStep::moved(const std::vector<Tensor>& slabs) {
  parts_->graphs.clear();
  parts_->slabs = slabs;
}

void DeviceStep::prepare(std::int64_t rows) { parts_->graph_for(rows); }

DeviceStep::Started DeviceStep::start(const std::vector<std::int64_t>& slots, const std::vector<Tensor>& inputs) {
  return parts_->graph_for(static_cast<std::int64_t>(slots.size())).start(slots, inputs);
}

}  // namespace millrace
