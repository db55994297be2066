// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cpu_fused/fused_loop.h>

#include <algorithm>
#include <string_view>

#include <fmt/format.h>

#include <millrace/tensor/spill_memory.h>

namespace millrace {

FusedLoop::FusedLoop(const Program& program, int block, const Op& loop) {
  const auto fits_unbatched = [&](Error& refused) {
    try {
      prepare(find_loop_form(program, block, loop, true));
      return true;
    } catch (const Error& error) {
      if (std::string_view(error.what()) != refused.what()) refused.add_context(fmt::format(" (unbatched: {})", error.what()));
      return false;
    }
  };
  try {
    prepare(find_loop_form(program, block, loop));
  } catch (UnsupportedError& refused) {
    if (!fits_unbatched(refused)) throw;
  }
  output_memory_.resize(form_.outputs.size());
  const Block& body = program.block(loop.attributes.get<BlockId>("sub_block").index);
  for (const Op& op : body.ops)
    for (std::size_t i = 0; i < form_.outputs.size() && op.type == "tensor_array_write"; ++i)
      if (op.inputs[0] == form_.outputs[i].array && op.attributes.has("spill"))
        output_memory_[i] = std::make_shared<SpillMemory>(op.attributes.get<std::string>("spill"));
}

/// Takes the iteration apart. UnsupportedError says which op has no rule for rows.
void FusedLoop::prepare(LoopForm form) {
  form_ = std::move(form);
  const Program& recurrence = form_.step;
  const std::size_t inputs = form_.inputs.size();
  for (const std::vector<Program::Port>* ports : {&recurrence.inputs(), &recurrence.outputs()})
    for (std::size_t i = 0; i < ports->size(); ++i) {
      const Program::Port& port = (*ports)[i];
      const VarType& type = recurrence.var(port.var).type;
      const bool rows = type.rank() > 0 && (*type.shape)[0] == DDim::unknown;
      const bool slots = ports == &recurrence.inputs() && i < inputs;  // truth is widened when they are read
      const bool truth = type.dtype == DType::boolean || (rows && is_integer(type.dtype));
      if ((truth && !slots) || (rows && type.dtype == DType::bf16)) throw UnsupportedError("'" + port.name + "' is of " + type.to_string());
    }
  const std::size_t states = form_.states.size();
  passes_.clear();
  invariant_.reset();
  invariant_inputs_.clear();
  most_rows_.reset();
  const auto note = [this](const char* name, const Program& made) { passes_.emplace_back(name, made.to_string()); };
  note("recurrence", recurrence);
  Program step = passes::project_cells(recurrence, inputs, inputs + states);
  note("project_cells", step);
  step = passes::share_expressions(step);
  note("share_expressions", step);
  step = passes::merge_products(step);
  note("merge_products", step);
  passes::Phases phases = passes::split(step, inputs, states, form_.outputs.size());
  note("split: invariant", phases.invariant.program);
  note("split: ahead", phases.ahead.program);
  note("split: iteration", phases.step.program);
  note("split: behind", phases.behind.program);
  if (!phases.invariant.program.block(0).ops.empty()) {
    invariant_ = std::move(phases.invariant.program);
    invariant_inputs_ = phases.invariant.inputs;
  }
  // Parts hand rows to one another, so all compute in the dtype of the loop: one of them may see integers and truth alone.
  const std::optional<DType> numbers = RowKernel::numbers_of(recurrence);
  ahead_ = part_of(phases.ahead, numbers);
  step_ = part_of(phases.step, numbers);
  behind_ = part_of(phases.behind, numbers);
  check_handed_on(step_);
  check_handed_on(behind_);
  outputs_ = phases.outputs;
  // Slots and next states are rows that a part of the iteration makes.
  for (const passes::Source& made : outputs_)
    if (made.from == passes::Source::From::shared || made.from == passes::Source::From::invariant)
      throw UnsupportedError("a value that it writes, or its next state, is the same in every iteration");
  step_outputs_ = phases.step.program.outputs().size();
  rest_ = find_rest();
}

/// The op that alone gives the output, if it is a choice for whole rows.
std::optional<FusedLoop::Choice> FusedLoop::choice_of(const passes::Source& output) const {
  using From = passes::Source::From;
  if (output.from != From::step) return std::nullopt;
  const bool is_behind = output.place >= step_outputs_;
  const Part& part = is_behind ? behind_ : step_;
  const RowDesc& desc = part.kernel->plan().desc();
  const auto reg_of = [&](const RowOperand& operand) -> const RowRegister& {
    return desc.registers[static_cast<std::size_t>(operand.reg)];
  };
  const auto writes = [&](const RowOperand& operand) {
    return operand.reg >= 0 && reg_of(operand).kind == RowRegister::Kind::output &&
           reg_of(operand).place == output.place - (is_behind ? step_outputs_ : 0);
  };
  const RowOp* writer = nullptr;
  for (const RowOp& op : desc.ops) {
    if (!writes(op.out) && !writes(op.out2)) continue;
    if (writer != nullptr) return std::nullopt;
    writer = &op;
  }
  if (writer == nullptr || writer->kind != RowOp::Kind::where || writer->outer != 1 || writer->inner != reg_of(writer->out).width)
    return std::nullopt;
  const auto given = [&](const RowOperand& operand, From from) -> std::optional<std::size_t> {
    if (reg_of(operand).kind != RowRegister::Kind::input || part.inputs[reg_of(operand).place].from != from) return std::nullopt;
    return part.inputs[reg_of(operand).place].place;
  };
  const std::optional<std::size_t> truth = given(writer->in[0], From::input);
  if (!truth || reg_of(writer->in[0]).width != 1) return std::nullopt;
  const RowOperand& otherwise = writer->in[2];
  if (reg_of(otherwise).kind == RowRegister::Kind::constant) {
    const Tensor& value = part.kernel->known().constants[reg_of(otherwise).place];
    const auto* bytes = static_cast<const std::byte*>(value.raw());
    const auto count = static_cast<std::ptrdiff_t>(value.elements()) * static_cast<std::ptrdiff_t>(size_of(value.dtype()));
    if (!std::all_of(bytes, bytes + count, [](std::byte byte) { return byte == std::byte{0}; })) return std::nullopt;
    return Choice{*truth, std::nullopt};
  }
  const std::optional<std::size_t> state = given(otherwise, From::state);
  if (!state || otherwise.begin != 0 || otherwise.inner_step != 1 || reg_of(otherwise).width != writer->inner) return std::nullopt;
  return Choice{*truth, state};
}

std::optional<FusedLoop::Rest> FusedLoop::find_rest() const {
  std::optional<Rest> rest;
  std::size_t at = 0;
  const auto rests = [&](std::size_t output) {
    const std::optional<Choice> choice = choice_of(outputs_[output]);
    if (!choice || (rest && choice->input != rest->input)) return std::optional<Choice>();
    if (!rest) rest.emplace(Rest{choice->input, {}});
    return choice;
  };
  for (; at < form_.outputs.size(); ++at) {
    const std::optional<Choice> choice = rests(at);
    if (!choice) return std::nullopt;
    rest->states.push_back(choice->state);
  }
  for (std::size_t state = 0; state < form_.states.size(); ++state) {
    if (!form_.states[state].changes) continue;
    const std::optional<Choice> choice = rests(at++);
    if (!choice || choice->state != state) return std::nullopt;
  }
  return rest;
}

FusedLoop::Part FusedLoop::part_of(const passes::Phase& phase, std::optional<DType> numbers) {
  Part made;
  made.inputs = phase.inputs;
  if (phase.program.outputs().empty()) return made;
  made.kernel.emplace(phase.program, RowKernel::Truth::integers, true, numbers);
  if (made.kernel->couples_rows())
    most_rows_ = std::min(most_rows_.value_or(made.kernel->plan().block_rows()), made.kernel->plan().block_rows());
  for (std::size_t i = 0; i < made.inputs.size(); ++i)
    if (made.kernel->inputs()[i].shared) made.shared.push_back(i);
  for (const RowOp& op : made.kernel->plan().desc().ops)
    made.multiplies |= op.kind == RowOp::Kind::matmul || op.kind == RowOp::Kind::matmul_int8 || op.kind == RowOp::Kind::lstm_cell;
  return made;
}

/// A kernel takes integers up to `most_given`, also those that another part makes.
void FusedLoop::check_handed_on(const Part& part) const {
  using From = passes::Source::From;
  for (const passes::Source& input : part.inputs) {
    if (input.from != From::ahead && input.from != From::step) continue;
    const RowKernel::Port& made = (input.from == From::ahead ? ahead_ : step_).kernel->outputs()[input.place];
    if (made.most > static_cast<double>(RowKernel::most_given))
      throw UnsupportedError(fmt::format("its iterations hand on integers that may be beyond {}", RowKernel::most_given));
  }
}

namespace {

std::size_t count(const std::optional<RowKernel>& kernel, RowOp::Kind kind) {
  std::size_t found = 0;
  if (kernel)
    for (const RowOp& op : kernel->plan().desc().ops) found += op.kind == kind ? 1 : 0;
  return found;
}

/// " (1 in bf16, 2 in int8)", of products and cells; nothing where all weights have the dtype of the rows.
std::string narrow_weights(const RowKernel& kernel) {
  std::size_t bf16 = 0;
  for (const RowWeights::Matrix& matrix : kernel.known().matrices) bf16 += matrix.plan.desc().weights_dtype() == DType::bf16 ? 1 : 0;
  for (const RowWeights::Cell& cell : kernel.known().cells) bf16 += cell.plan.desc().weights_dtype() == DType::bf16 ? 1 : 0;
  const std::size_t int8 = kernel.known().int8.size();
  if (bf16 + int8 == 0) return "";
  std::string text = bf16 > 0 ? fmt::format("{} with weights in bf16", bf16) : "";
  if (int8 > 0) text += fmt::format("{}{} with weights in int8", bf16 > 0 ? ", " : "", int8);
  return " (" + text + ")";
}

std::string summary(const char* when, const std::optional<RowKernel>& kernel) {
  if (!kernel) return fmt::format("  {}: nothing\n", when);
  return fmt::format("  {}: {} ops over rows, {} of them products{}, {} LSTM cells; {} bytes of scratch for {} rows\n", when,
                     kernel->plan().desc().ops.size(), count(kernel, RowOp::Kind::matmul) + count(kernel, RowOp::Kind::matmul_int8),
                     narrow_weights(*kernel), count(kernel, RowOp::Kind::lstm_cell), kernel->plan().workspace_bytes(),
                     kernel->plan().block_rows());
}

}  // namespace

std::string FusedLoop::describe() const {
  std::string text = "backend: fused\n";
  text += fmt::format("  once: {} ops\n", invariant_ ? invariant_->block(0).ops.size() : 0);
  text += summary("for a run of iterations, before them", ahead_.kernel);
  text += summary("iteration by iteration", step_.kernel);
  text += summary("for a run of iterations, behind them", behind_.kernel);
  if (rest_) text += fmt::format("  iterations where '{}' is false for all rows: skipped\n", form_.step.inputs()[rest_->input].name);
  if (most_rows_)
    text +=
        fmt::format("  rows on one thread, iterations of more than {}: interpreted, for an op that looks along the rows\n", *most_rows_);
  return text;
}

std::string FusedLoop::to_string() const {
  std::string text;
  std::string last;
  for (const auto& [name, program] : passes_) {
    text += fmt::format("--- {}{}\n", name, program == last ? ": nothing to do" : "");
    if (program != last) text += program;
    last = program;
  }
  return text + describe();
}

}  // namespace millrace
