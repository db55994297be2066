// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cuda_recurrent/cell_loop.h>

#include <algorithm>
#include <cstdlib>

#include <fmt/format.h>

#include <millrace/runtime/layers/spell_cells.h>
#include <millrace/tensor/error.h>

namespace millrace {
namespace {

using From = passes::Source::From;

[[noreturn]] void refuse(const std::string& why) { throw UnsupportedError(why); }

bool is(const passes::Source& a, const passes::Source& b) { return a.from == b.from && a.place == b.place; }

/// Cells as ops that row plans have.
Program spelled(Program step) {
  std::vector<VarId> first;
  for (const Op& op : step.block(0).ops)
    if (!op.outputs.empty()) first.push_back(op.outputs[0]);
  for (const VarId output : first) layers::spell_cell(step, output);
  return step;
}

}  // namespace

/// Takes the iteration apart, and describes what is left of it.
class CellLoop::Reader {
 public:
  explicit Reader(CellLoop& made) : made_(made), form_(made.form_) {}

  void read(bool tf32) {
    check_form();
    const std::size_t inputs = form_.inputs.size(), states = form_.states.size();
    Program step = passes::merge_products(passes::share_expressions(spelled(form_.step)));
    made_.phases_ = passes::split(step, inputs, states, form_.outputs.size());
    // Ops for the rows of all iterations at once must keep them apart too.
    for (const passes::Phase* phase : {&made_.phases_.ahead, &made_.phases_.behind})
      if (!phase->program.outputs().empty()) RowKernel(phase->program, RowKernel::Truth::numbers);
    const passes::Phase& iteration = made_.phases_.step;
    if (iteration.program.outputs().empty()) refuse("its iterations depend on no state");
    const RowKernel kernel(iteration.program, RowKernel::Truth::numbers, false, {}, true);
    desc_.rows = kernel.plan().desc();
    desc_.numbers = kernel.known().constants;
    desc_.tf32 = tf32;
    made_.constants_ = kernel.known().constants;
    read_inputs(kernel);
    read_matrices(kernel);
    read_states();
    read_outputs();
    made_.plan_ = make_cell_plan(desc_);
    std::vector<Matrix> used;
    for (const CellPlan::Product& product : made_.plan_.products) used.push_back(made_.matrices_[product.matrix]);
    made_.matrices_ = std::move(used);
  }

 private:
  void check_form() const {
    if (form_.inputs.empty()) refuse("no rows come in");
    const std::int64_t stride = form_.inputs[0].index.stride;
    for (const LoopForm::StepInput& input : form_.inputs)
      if (std::abs(input.index.stride) != 1 || input.shrinks || input.boot != no_var)
        refuse("it reads other slots than one after the other");
    for (const LoopForm::StepInput& input : form_.inputs)
      if (input.index.stride != stride) refuse("it reads one input from the first slot on and another from the last");
    for (const LoopForm::Output& output : form_.outputs)
      if (std::abs(output.index.stride) != 1) refuse("it writes other slots than one after the other");
  }

  const VarType& type_of(const Source& source) const {
    const Program& step = form_.step;
    if (source.from == From::input) return step.var(step.inputs()[source.place].var).type;
    if (source.from == From::state) return step.var(step.inputs()[form_.inputs.size() + source.place].var).type;
    const Program& program = source.from == From::ahead ? made_.phases_.ahead.program : made_.phases_.step.program;
    return program.var(program.outputs()[source.place].var).type;
  }
  DDim row_of(const Source& source) const {
    const VarType& type = type_of(source);
    if (!type.shape || type.rank() == 0 || (*type.shape)[0] != DDim::unknown) refuse("a value is no rows: " + type.to_string());
    const DDim dims = type.shape->erased(0);
    for (const std::int64_t extent : dims)
      if (extent == DDim::unknown) refuse("a value has rows of extents that are not known yet: " + type.to_string());
    return dims;
  }

  CellDesc::Input input_of(const Source& source, bool shared) const {
    if (shared) return {CellDesc::Input::Kind::shared, 0};
    if (source.from == From::state) {
      check_float(source);
      return {CellDesc::Input::Kind::state, source.place};
    }
    const DType dtype = type_of(source).dtype;
    if (dtype != DType::f32 && dtype != DType::boolean) refuse("its iterations read rows of " + type_of(source).to_string());
    return {dtype == DType::boolean ? CellDesc::Input::Kind::truth : CellDesc::Input::Kind::rows, 0};
  }
  void check_float(const Source& source) const {
    if (type_of(source).dtype != DType::f32) refuse("it carries or writes " + type_of(source).to_string() + ", and generated kernels f32");
  }

  void read_inputs(const RowKernel& kernel) {
    made_.inputs_ = made_.phases_.step.inputs;
    for (std::size_t i = 0; i < made_.inputs_.size(); ++i) {
      const Source& source = made_.inputs_[i];
      desc_.inputs.push_back(input_of(source, kernel.inputs()[i].shared));
    }
  }

  void read_matrices(const RowKernel& kernel) {
    std::vector<Source> shared;
    for (std::size_t i = 0; i < made_.inputs_.size(); ++i)
      if (kernel.inputs()[i].shared) shared.push_back(made_.inputs_[i]);
    for (std::size_t i = 0; i < kernel.matrices().size(); ++i) {
      const RowKernel::MatrixSource& matrix = kernel.matrices()[i];
      const GemmDesc& gemm = kernel.known().matrices[i].plan.desc();
      const DType factors = matrix.rows == DType::bf16 && gemm.weights_dtype() == DType::bf16 ? DType::bf16 : DType::f32;
      const bool widens = matrix.rows == DType::f32 && gemm.weights_dtype() == DType::bf16 && !desc_.tf32;
      if (factors == DType::f32 && !widens && (gemm.weights_dtype() != DType::f32 || matrix.rows != DType::f32))
        refuse(fmt::format("it multiplies {} by {}, and generated kernels f32 by f32 or bf16, or bf16 by bf16", name_of(matrix.rows),
                           name_of(gemm.weights_dtype())));
      if (i > 0 && factors != desc_.factors) refuse("it has products of f32 and of bf16, and a generated kernel one arithmetic");
      desc_.factors = factors;
      desc_.products.emplace_back(gemm.k, gemm.n);
      made_.matrices_.push_back({matrix.value, matrix.input ? shared[*matrix.input] : Source{}, matrix.transposed});
    }
  }

  /// The register of a value, which is made an input of the row plan where it is none.
  int register_of(const Source& source) {
    std::vector<RowRegister>& regs = desc_.rows.registers;
    if (source.from == From::step) {
      for (std::size_t reg = 0; reg < regs.size(); ++reg)
        if (regs[reg].kind == RowRegister::Kind::output && regs[reg].place == source.place) return static_cast<int>(reg);
      refuse("a value that it carries or writes is made behind the iterations");
    }
    if (source.from != From::state && source.from != From::input && source.from != From::ahead)
      refuse("a value that it carries or writes is the same in every iteration");
    for (std::size_t reg = 0; reg < regs.size(); ++reg)
      if (regs[reg].kind == RowRegister::Kind::input && is(made_.inputs_[regs[reg].place], source)) return static_cast<int>(reg);
    desc_.inputs.push_back(input_of(source, false));
    made_.inputs_.push_back(source);
    regs.push_back({RowRegister::Kind::input, row_of(source).elements(), made_.inputs_.size() - 1});
    return static_cast<int>(regs.size()) - 1;
  }

  void read_states() {
    std::size_t next = form_.outputs.size();
    for (std::size_t i = 0; i < form_.states.size(); ++i) {
      const Source own{From::state, i};
      check_float(own);
      const int reg = form_.states[i].changes ? register_of(made_.phases_.outputs[next++]) : -1;
      desc_.states.push_back({row_of(own).elements(), reg});
    }
  }

  bool is_behind(const Source& source) const {
    return source.from == From::step && source.place >= made_.phases_.step.program.outputs().size();
  }
  void write(const Source& source) {
    if ((source.from != From::step && source.from != From::state) || is_behind(source)) return;
    if (std::any_of(made_.written_.begin(), made_.written_.end(), [&](const Source& known) { return is(known, source); })) return;
    check_float(source);
    made_.written_.push_back(source);
    made_.written_dims_.push_back(row_of(source));
    desc_.outputs.push_back(register_of(source));
  }
  void read_outputs() {
    for (std::size_t i = 0; i < form_.outputs.size(); ++i) {
      const Source& source = made_.phases_.outputs[i];
      if (source.from == From::shared || source.from == From::invariant) refuse("a value that it writes is the same in every iteration");
      write(source);
    }
    for (const Source& source : made_.phases_.behind.inputs) write(source);
  }

  CellLoop& made_;
  const LoopForm& form_;
  CellDesc desc_;
};

CellLoop::CellLoop(const Program& program, int block, const Op& loop, bool tf32) : form_(find_loop_form(program, block, loop)) {
  Reader(*this).read(tf32);
}

std::size_t CellLoop::place(const Source& source) const {
  const auto found = std::find_if(written_.begin(), written_.end(), [&](const Source& known) { return is(known, source); });
  return static_cast<std::size_t>(found - written_.begin());
}

std::string CellLoop::to_string() const {
  const auto ops = [](const passes::Phase& phase) {
    const std::vector<Op>& all = phase.program.block(0).ops;
    return std::count_if(all.begin(), all.end(), [](const Op& op) { return op.type != "constant"; });
  };
  return fmt::format(
      "backend: fused, as a generated kernel\n  once: {} ops\n  for the rows of all iterations, before the kernel: {} ops\n"
      "  iteration by iteration, as one kernel: {} ops in {}\n  for the rows of all iterations, behind it: {} ops\n",
      ops(phases_.invariant), ops(phases_.ahead), ops(phases_.step), plan_.to_string(), ops(phases_.behind));
}

}  // namespace millrace
