// SPDX-License-Identifier: Apache-2.0
#include <millrace/runtime/loops/cpu_fused/internal/row_compiler.h>

#include <algorithm>
#include <cmath>
#include <numeric>
#include <set>

#include <fmt/format.h>

#include <millrace/kernels/cast.h>
#include <millrace/kernels/cpu/matrix_state_kernels.h>
#include <millrace/kernels/fill.h>
#include <millrace/kernels/matmul_rows.h>
#include <millrace/runtime/program/internal/op_name.h>
#include <millrace/runtime/program/ops/internal/packing.h>
#include <millrace/tensor/copy.h>

namespace millrace {
namespace {

/// A product of extents beyond which a copy that no two steps describe is not worth its ops.
constexpr std::int64_t most_copies = 64;

/// Axes of views over the same extents, merged where all of them allow it: at most `outer` × `inner` remain, or nothing.
struct Merged {
  std::int64_t outer = 1;
  std::int64_t inner = 1;
  std::vector<std::int64_t> outer_steps;
  std::vector<std::int64_t> inner_steps;
};

std::optional<Merged> merge(const DDim& dims, const std::vector<DDim>& strides) {
  struct Axis {
    std::int64_t extent;
    std::vector<std::int64_t> steps;
  };
  std::vector<Axis> axes;
  for (int axis = 0; axis < dims.rank(); ++axis) {
    if (dims[axis] == 1) continue;
    Axis next{dims[axis], {}};
    for (const DDim& each : strides) next.steps.push_back(each[axis]);
    bool joins = !axes.empty();
    for (std::size_t k = 0; joins && k < next.steps.size(); ++k) joins = axes.back().steps[k] == next.steps[k] * next.extent;
    if (!joins) {
      axes.push_back(std::move(next));
      continue;
    }
    axes.back().extent *= next.extent;
    axes.back().steps = std::move(next.steps);
  }
  if (axes.size() > 2) return std::nullopt;
  Merged merged;
  merged.outer_steps.assign(strides.size(), 0);
  merged.inner_steps.assign(strides.size(), 1);
  if (!axes.empty()) {
    merged.inner = axes.back().extent;
    merged.inner_steps = axes.back().steps;
  }
  if (axes.size() == 2) {
    merged.outer = axes.front().extent;
    merged.outer_steps = axes.front().steps;
  }
  return merged;
}

bool is_contiguous(const RowCompiler::View& view) {
  const DDim whole = view.dims.row_major();
  for (int axis = 0; axis < view.dims.rank(); ++axis)
    if (view.dims[axis] != 1 && view.strides[axis] != whole[axis]) return false;
  return true;
}

/// Integers that a register of floating-point numbers may hold.
bool is_counted(DType dtype) { return dtype == DType::i64 || dtype == DType::i32; }

bool is_number(DType dtype) { return dtype == DType::f32 || dtype == DType::f64; }

/// Ops that move bf16 elements: a register holds them widened. An op that computes would have to narrow each result.
bool moves(const std::string& type) {
  static const std::set<std::string> all{"cast",      "identity", "reshape", "squeeze", "unsqueeze", "flatten", "reshape_to",
                                         "transpose", "split",    "slice",   "concat",  "expand",    "gather"};
  return all.contains(type);
}

}  // namespace

RowCompiler::RowCompiler(const Program& program, RowKernel& made, RowKernel::Truth truth, bool coupled, std::optional<DType> numbers,
                         bool plain)
    : program_(program), made_(made), truth_(truth), coupled_(coupled), plain_(plain) {
  if (!numbers) numbers = RowKernel::numbers_of(program);
  if (numbers) desc_.dtype = *numbers;
}

void RowCompiler::compile() {
  bind_inputs();
  eval_ops();
  bind_outputs();
  drop_copies();
  made_.plan_.emplace(std::move(desc_));
}

void RowCompiler::refuse(const Op& op, const std::string& why) { throw UnsupportedError(millrace::internal::op_name(op) + ": " + why); }

void RowCompiler::eval_ops() {
  const std::vector<Op>& ops = program_.block(0).ops;
  const MatrixStates matrices(program_, desc_.dtype);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const MatrixStates::Place place = plain_ ? MatrixStates::Place::op : matrices.place(i);
    if (place == MatrixStates::Place::member) matrix_state(matrices.member(i));
    if (place == MatrixStates::Place::op) eval(ops[i]);
  }
}

void RowCompiler::matrix_state(const MatrixStates::Member& member) {
  const bool updates = member.added != no_var;
  std::vector<View> from{contiguous(at(member.state))};
  const DDim& form = from[0].dims;
  const std::int64_t keys = form[-2], values = form[-1], matrices = form.slice(0, form.rank() - 2).elements();
  bool by_key = false;
  if (member.decay != no_var) {
    from.push_back(contiguous(at(member.decay)));
    by_key = from.back().elements() != matrices;
  }
  const bool decays = member.decay != no_var;
  for (const VarId var : {member.key, member.added, member.query, member.rate})
    if (var != no_var) from.push_back(contiguous(at(var)));
  const bool corrects = member.corrected, rated = member.rate != no_var;
  std::vector<View> to{make(member.read)};
  if (updates) to.push_back(make(member.next));
  const std::int64_t queries = to[0].elements() / std::max<std::int64_t>(1, matrices * values);
  const auto function = [=]<class T>(std::type_identity<T>) -> RowFunction {
    return
        [=, functions = cpu::matrix_functions<T>()](std::span<const RowView> inputs, std::span<const RowView> outputs, std::int64_t rows) {
          for (std::int64_t matrix = 0; matrix < rows; ++matrix) {
            const auto in = [&](std::size_t k) { return inputs[k].template row<T>(matrix); };
            const std::size_t vectors = decays ? 2 : 1;
            cpu::MatrixStep<T> step;
            step.keys = keys;
            step.values = values;
            step.state = in(0);
            step.decay = decays ? in(1) : nullptr;
            step.decay_step = by_key ? 1 : 0;
            step.key = in(vectors);
            step.read = outputs[0].row<T>(matrix);
            std::int64_t others = queries;
            if (updates) {
              step.added = in(vectors + 1);
              step.query = in(vectors + 2);
              step.next = outputs[1].row<T>(matrix);
              step.rate = rated ? in(vectors + 3) : nullptr;
              (corrects ? functions.correct : functions.update)(step);
              step.state = step.next;
              step.decay = nullptr;
              step.key = step.query + keys;
              step.read += values;
              --others;
            }
            for (; others > 0; --others, step.key += keys, step.read += values) functions.read(step);
          }
        };
  };
  apply(desc_.dtype == DType::f64 ? function(std::type_identity<double>{}) : function(std::type_identity<float>{}), from, to);
  RowOp& made = desc_.ops.back();
  made.outer = matrices;
  made.inner = keys * values * (corrects ? 2 : 1);  // how much work it is
  made.in_place = updates;
  for (std::size_t k = 0; k < from.size(); ++k)  // one number may be that of all matrices
    made.in[k].outer_step = from[k].elements() < matrices ? 0 : from[k].elements() / std::max<std::int64_t>(1, matrices);
  made.out.outer_step = queries * values;
  made.out2.outer_step = updates ? keys * values : 0;
}

void RowCompiler::eval(const Op& op) {
  if (op.type == "constant") return;
  const RowRule rule = find_row_rule(op.type);
  const OpDef& def = program_.registry().at(op.type);
  if (rule == nullptr && !def.prepare_rows) refuse(op, "has no rule for rows in a fused loop");
  for (const VarId output : op.outputs) {
    const VarType& type = program_.var(output).type;
    const bool widened = type.dtype == DType::bf16 && desc_.dtype == DType::f32 && moves(op.type);
    const bool quantized = type.dtype == DType::i8 && desc_.dtype == DType::f32 && op.type == "quantize_rows";
    const bool counted = truth_ == RowKernel::Truth::integers && is_counted(type.dtype);
    if (counted) check_integers(op, output);
    if (type.dtype != desc_.dtype && type.dtype != DType::boolean && !widened && !quantized && !counted)
      refuse(op, fmt::format("gives {}, and the loop computes in {}", type.to_string(), name_of(desc_.dtype)));
    if (!type.shape || type.rank() == 0 || (*type.shape)[0] != DDim::unknown) refuse(op, "gives no rows: " + type.to_string());
    for (int axis = 1; axis < type.rank(); ++axis)
      if ((*type.shape)[axis] == DDim::unknown) refuse(op, "gives rows whose extents nobody knows yet: " + type.to_string());
  }
  if (rule != nullptr) return rule(*this, op);
  for (const VarId input : op.inputs)
    if (input != no_var && program_.constant(input) == nullptr && is_counted(program_.var(input).type.dtype))
      refuse(op, "reads integers that are not constant");
  function(op, def);
}

// ---- Integers ----

double RowCompiler::most_of(VarId var) const {
  if (const auto made = most_.find(var); made != most_.end()) return made->second;
  const Tensor* const value = program_.constant(var);
  if (value == nullptr) return static_cast<double>(RowKernel::most_given);
  ops::PackingStream stream;
  double most = 0;
  for (const double element : cast(*value, DType::f64, stream).to_vector<double>()) most = std::max(most, std::abs(element));
  return most;
}

/// A bound of the integers that an op gives; nothing for an op whose integers are other ones in registers of floating-point numbers.
std::optional<double> RowCompiler::most_given_by(const Op& op) const {
  const auto most = [&](std::size_t first, std::size_t last) {
    double found = 0;
    for (std::size_t i = first; i < std::min(last, op.inputs.size()); ++i)
      if (op.inputs[i] != no_var) found = std::max(found, most_of(op.inputs[i]));
    return found;
  };
  if (op.type == "add" || op.type == "sub") return most(0, 1) + most(1, 2);
  if (op.type == "mul") return most(0, 1) * most(1, 2);
  if (op.type == "minimum" || op.type == "maximum" || op.type == "clip" || op.type == "concat") return most(0, op.inputs.size());
  if (op.type == "where") return most(1, 3);
  if (op.type == "neg" || op.type == "abs") return most(0, 1);
  if (op.type == "one_hot") return most(2, 3);
  if (op.type == "argmax" || op.type == "argmin") {
    const DDim& x = *program_.var(op.inputs[0]).type.shape;
    return static_cast<double>(x[static_cast<int>(op.attributes.get_or("axis", std::int64_t{0}))] - 1);
  }
  if (op.type == "cast") {
    const DType from = program_.var(op.inputs[0]).type.dtype;
    if (from == DType::boolean) return 1;
    return is_counted(from) ? std::optional(most(0, 1)) : std::nullopt;
  }
  if (op.type == "mod") {
    // A divisor of 0 is an error that a kernel of rows cannot raise.
    const Tensor* const divisor = program_.constant(op.inputs[1]);
    if (divisor == nullptr) return std::nullopt;
    ops::PackingStream stream;
    for (const double element : cast(*divisor, DType::f64, stream).to_vector<double>())
      if (element == 0) return std::nullopt;
    return most(1, 2);
  }
  return moves(op.type) ? std::optional(most(0, 1)) : std::nullopt;
}

void RowCompiler::check_integers(const Op& op, VarId output) {
  const double exact = desc_.dtype == DType::f64 ? 0x1p52 : 0x1p23;
  const std::optional<double> most = most_given_by(op);
  if (!most) refuse(op, "gives integers, and has no rule for them in a fused loop");
  if (*most > exact) refuse(op, fmt::format("may give integers that {} does not hold", name_of(desc_.dtype)));
  most_[output] = *most;
}

void RowCompiler::function(const Op& op, const OpDef& def) {
  if (def.couples_rows && def.couples_rows(op)) {
    if (!coupled_) refuse(op, "looks along the rows");
    made_.couples_rows_ = true;
  }
  RowOp made;
  made.kind = RowOp::Kind::function;
  made.weights = made_.known_.functions.size();
  RowForm form;
  form.dtype = desc_.dtype;
  for (const VarId input : op.inputs) {
    if (input == no_var || program_.constant(input) != nullptr) continue;
    if (form.inputs.size() == std::size(made.in))
      refuse(op, fmt::format("has more than {} inputs that are not constant", RowOp::most_inputs));
    const View view = contiguous(at(input));
    made.in[form.inputs.size()] = operand(view);
    form.inputs.push_back(view.dims);
  }
  if (op.outputs.size() > 2) refuse(op, "has more than two outputs");
  for (std::size_t i = 0; i < op.outputs.size(); ++i) {
    const View out = make(op.outputs[i]);
    (i == 0 ? made.out : made.out2) = operand(out);
    form.outputs.push_back(out.dims);
  }
  try {
    made_.known_.functions.push_back(def.prepare_rows(PrepareContext(program_, op), form));
  } catch (const UnsupportedError& error) {
    refuse(op, error.what());
  }
  emit(made);
}

void RowCompiler::apply(RowFunction function, const std::vector<View>& from, const std::vector<View>& to) {
  RowOp made;
  made.kind = RowOp::Kind::function;
  made.weights = made_.known_.functions.size();
  std::transform(from.begin(), from.end(), made.in, [this](const View& view) { return operand(view); });
  made.out = operand(to[0]);
  if (to.size() > 1) made.out2 = operand(to[1]);
  made_.known_.functions.push_back(std::move(function));
  emit(made);
}

// ---- Inputs and outputs ----

/// Whether inputs and outputs of that dtype are registers.
bool RowCompiler::is_held(DType dtype) const {
  if (dtype == desc_.dtype) return true;
  if (truth_ == RowKernel::Truth::refused) return false;
  if (truth_ == RowKernel::Truth::integers && is_counted(dtype)) return true;
  return dtype == DType::boolean || (dtype == DType::bf16 && desc_.dtype == DType::f32);
}

void RowCompiler::bind_inputs() {
  for (std::size_t i = 0; i < program_.inputs().size(); ++i) {
    const Program::Port& port = program_.inputs()[i];
    const VarType& type = program_.var(port.var).type;
    if (!type.shape) throw UnsupportedError("input '" + port.name + "': nobody knows its rank");
    RowKernel::Port made;
    made.shared = type.rank() == 0 || (*type.shape)[0] != DDim::unknown;
    made.dims = made.shared ? *type.shape : type.shape->erased(0);
    for (const std::int64_t extent : made.dims)
      if (extent == DDim::unknown) throw UnsupportedError("input '" + port.name + "': expected known extents, found " + type.to_string());
    made.width = made.dims.elements();
    if (made.shared) shared_.emplace(port.var, shared_.size());
    if (type.dtype == desc_.dtype || (!made.shared && is_held(type.dtype))) {
      desc_.registers.push_back({RowRegister::Kind::input, made.width, i});
      const int reg = static_cast<int>(desc_.registers.size()) - 1;
      bind(port.var, {!made.shared, reg, 0, made.dims, made.dims.row_major()});
    } else if (!made.shared) {
      throw UnsupportedError(fmt::format("input '{}': expected {}, found {}", port.name, name_of(desc_.dtype), type.to_string()));
    }
    made_.inputs_.push_back(std::move(made));
  }
}

/// An output is the register that was made for it, or a copy where that is something else's, or a part.
void RowCompiler::bind_outputs() {
  for (std::size_t i = 0; i < program_.outputs().size(); ++i) {
    const Program::Port& port = program_.outputs()[i];
    const View view = at(port.var);
    if (!view.rows) throw UnsupportedError("output '" + port.name + "': does not depend on the rows");
    if (!is_held(program_.var(port.var).type.dtype))
      throw UnsupportedError("output '" + port.name + "': gives " + program_.var(port.var).type.to_string());
    RowRegister& reg = desc_.registers[static_cast<std::size_t>(view.reg)];
    if (reg.kind == RowRegister::Kind::scratch && reg.width == view.elements() && view.begin == 0 && is_contiguous(view)) {
      reg.kind = RowRegister::Kind::output;
      reg.place = i;
    } else {
      desc_.registers.push_back({RowRegister::Kind::output, view.elements(), i});
      copy(view, {true, static_cast<int>(desc_.registers.size()) - 1, 0, view.dims, view.dims.row_major()});
    }
    const bool counted = is_counted(program_.var(port.var).type.dtype);
    made_.outputs_.push_back({false, view.dims, view.elements(), counted ? most_of(port.var) : 0});
  }
}

/// An elementwise op whose result is read by one copy alone writes where the copy would: the parts of a `concat`.
void RowCompiler::drop_copies() {
  struct Use {
    int writes = 0;
    int reads = 0;
    std::size_t writer = 0;
  };
  std::vector<Use> uses(desc_.registers.size());
  for (std::size_t i = 0; i < desc_.ops.size(); ++i) {
    const RowOp& op = desc_.ops[i];
    for (const RowOperand& in : op.in)
      if (in.reg >= 0) ++uses[static_cast<std::size_t>(in.reg)].reads;
    for (const RowOperand& out : {op.out, op.out2}) {
      if (out.reg < 0) continue;
      Use& use = uses[static_cast<std::size_t>(out.reg)];
      ++use.writes;
      use.writer = i;
    }
  }
  // Whether an op has elements [begin, end) of a register among its operands. The operands of copies and of elementwise ops are known element by element;
  // other ops count as having all.
  const auto meets = [&](const RowOp& op, int reg, std::int64_t begin, std::int64_t end) {
    const bool known = op.kind == RowOp::Kind::copy || is_elementwise(op);
    std::vector<RowOperand> all(std::begin(op.in), std::end(op.in));
    all.insert(all.end(), {op.out, op.out2});
    for (const RowOperand& x : all) {
      if (x.reg != reg) continue;
      const std::int64_t ends[2] = {(op.outer - 1) * x.outer_step, (op.inner - 1) * x.inner_step};
      const std::int64_t first = x.begin + std::min<std::int64_t>(ends[0], 0) + std::min<std::int64_t>(ends[1], 0);
      const std::int64_t last = x.begin + std::max<std::int64_t>(ends[0], 0) + std::max<std::int64_t>(ends[1], 0);
      if (!known || (first < end && last >= begin)) return true;
    }
    return false;
  };
  const auto flat = [](const RowOp& op, const RowOperand& x) { return x.inner_step == 1 && (op.outer == 1 || x.outer_step == op.inner); };
  std::set<std::size_t> dropped;
  for (std::size_t i = 0; i < desc_.ops.size(); ++i) {
    const RowOp& copy = desc_.ops[i];
    if (copy.kind != RowOp::Kind::copy || !flat(copy, copy.in[0]) || !flat(copy, copy.out) || copy.in[0].begin != 0) continue;
    const RowRegister& reg = desc_.registers[static_cast<std::size_t>(copy.in[0].reg)];
    const Use& use = uses[static_cast<std::size_t>(copy.in[0].reg)];
    if (reg.kind != RowRegister::Kind::scratch || use.writes != 1 || use.reads != 1 || copy.outer * copy.inner != reg.width) continue;
    RowOp& writer = desc_.ops[use.writer];
    if (!is_elementwise(writer) || !flat(writer, writer.out) || writer.out.begin != 0 || writer.outer * writer.inner != reg.width) continue;
    // An op between them may fill the whole row, as a pad does, before its inside is copied.
    if (std::any_of(desc_.ops.begin() + static_cast<std::ptrdiff_t>(use.writer), desc_.ops.begin() + static_cast<std::ptrdiff_t>(i),
                    [&](const RowOp& between) { return meets(between, copy.out.reg, copy.out.begin, copy.out.begin + reg.width); }))
      continue;
    writer.out = {copy.out.reg, copy.out.begin, writer.inner, 1};
    dropped.insert(i);
  }
  std::size_t at = 0;
  std::erase_if(desc_.ops, [&](const RowOp&) { return dropped.contains(at++); });
}

const RowCompiler::View& RowCompiler::at(VarId var) const {
  const auto found = views_.find(var);
  if (found != views_.end()) return found->second;
  const Tensor* value = program_.constant(var);
  if (value == nullptr) throw UnsupportedError("'" + program_.var(var).name + "': of a dtype that rows do not have");
  return const_cast<RowCompiler*>(this)->views_.emplace(var, const_cast<RowCompiler*>(this)->literal(*value)).first->second;
}

RowCompiler::View RowCompiler::literal(const Tensor& value) {
  ops::PackingStream stream;
  Tensor held = value.dtype() == desc_.dtype ? value : cast(value, desc_.dtype, stream);
  if (!held.is_contiguous()) held = clone(held, stream);
  made_.known_.constants.push_back(held);
  desc_.registers.push_back({RowRegister::Kind::constant, held.elements(), made_.known_.constants.size() - 1});
  return {false, static_cast<int>(desc_.registers.size()) - 1, 0, value.dims(), value.dims().row_major()};
}

std::optional<std::size_t> RowCompiler::shared_input(VarId var) const {
  const auto found = shared_.find(var);
  return found == shared_.end() ? std::nullopt : std::optional(found->second);
}

// ---- Views ----

RowCompiler::View RowCompiler::make(const DDim& dims) {
  desc_.registers.push_back({RowRegister::Kind::scratch, dims.elements(), 0});
  return {true, static_cast<int>(desc_.registers.size()) - 1, 0, dims, dims.row_major()};
}

RowCompiler::View RowCompiler::make(VarId var) {
  View view = make(program_.var(var).type.shape->erased(0));
  bind(var, view);
  return view;
}

int RowCompiler::axis_of(const Op& op, VarId var, std::int64_t axis) const {
  const int rank = program_.var(var).type.rank();
  const auto at = static_cast<int>(axis < 0 ? axis + rank : axis);
  if (at == 0) refuse(op, "works along the rows");
  return at - 1;
}

void RowCompiler::copy(const View& from, const View& to) {
  if (from.elements() == 0) return;
  if (const auto merged = merge(from.dims, {from.strides, to.strides})) {
    RowOp op;
    op.kind = RowOp::Kind::copy;
    op.outer = merged->outer;
    op.inner = merged->inner;
    op.in[0] = {from.reg, from.begin, merged->outer_steps[0], merged->inner_steps[0]};
    op.out = {to.reg, to.begin, merged->outer_steps[1], merged->inner_steps[1]};
    return emit(op);
  }
  if (from.dims[0] > most_copies) throw UnsupportedError("a view of " + from.dims.to_string() + " that takes too many copies");
  for (std::int64_t i = 0; i < from.dims[0]; ++i)
    copy({from.rows, from.reg, from.begin + i * from.strides[0], from.dims.erased(0), from.strides.erased(0)},
         {to.rows, to.reg, to.begin + i * to.strides[0], to.dims.erased(0), to.strides.erased(0)});
}

RowCompiler::View RowCompiler::contiguous(const View& view) {
  if (is_contiguous(view)) return view;
  const View made = make(view.dims);
  copy(view, made);
  return {view.rows, made.reg, 0, made.dims, made.strides};
}

RowOperand RowCompiler::rows_of(const View& view) const {
  const auto width = view.dims.rank() == 0 ? 1 : view.dims[-1];
  return {view.reg, view.begin, width, 1};
}

// ---- Elementwise ----

namespace {

/// `view` stretched to `dims`, as numpy would; nothing when rows would meet something else.
std::optional<RowCompiler::View> stretched(const RowCompiler::View& view, const DDim& dims) {
  RowCompiler::View made = view;
  if (view.rows && view.dims.rank() != dims.rank()) return std::nullopt;
  while (made.dims.rank() > dims.rank()) {
    if (made.dims[0] != 1) return std::nullopt;
    made.dims = made.dims.erased(0);
    made.strides = made.strides.erased(0);
  }
  while (made.dims.rank() < dims.rank()) {
    made.dims = made.dims.inserted(0, 1);
    made.strides = made.strides.inserted(0, 0);
  }
  for (int axis = 0; axis < dims.rank(); ++axis) {
    if (made.dims[axis] == dims[axis]) continue;
    if (made.dims[axis] != 1) return std::nullopt;
    made.dims[axis] = dims[axis];
    made.strides[axis] = 0;
  }
  return made;
}

/// The axes in the order in which a view's elements lie, when they lie side by side in some order; else as they come.
std::vector<int> lying_order(const RowCompiler::View& view) {
  std::vector<int> axes(static_cast<std::size_t>(view.dims.rank()));
  std::iota(axes.begin(), axes.end(), 0);
  std::vector<int> sorted = axes;
  std::sort(sorted.begin(), sorted.end(),
            [&](int a, int b) { return view.strides[a] != view.strides[b] ? view.strides[a] > view.strides[b] : a < b; });
  std::int64_t step = 1;
  for (std::size_t i = sorted.size(); i-- > 0;) {
    if (view.dims[sorted[i]] != 1 && view.strides[sorted[i]] != step) return axes;
    step *= view.dims[sorted[i]];
  }
  return sorted;
}

DDim in_order(const DDim& dims, const std::vector<int>& order) {
  DDim made = dims;
  for (std::size_t i = 0; i < order.size(); ++i) made[static_cast<int>(i)] = dims[order[i]];
  return made;
}

}  // namespace

/// The result lies as the first operand does that has all its elements, so that what was turned stays turned.
RowCompiler::View RowCompiler::elementwise(RowOp op, const std::vector<View>& operands, const DDim& out_dims) {
  std::vector<int> order(static_cast<std::size_t>(out_dims.rank()));
  std::iota(order.begin(), order.end(), 0);
  for (const View& operand : operands) {
    if (!operand.rows || operand.dims != out_dims) continue;
    order = lying_order(operand);
    break;
  }
  std::vector<View> turned;
  for (const View& operand : operands) {
    const auto view = stretched(operand, out_dims);
    if (!view)
      throw UnsupportedError("rows of " + out_dims.to_string() + " meet " + operand.dims.to_string() + ", which does not keep them apart");
    turned.push_back(*view);
    turned.back().dims = in_order(view->dims, order);
    turned.back().strides = in_order(view->strides, order);
  }
  View out = elementwise_of(op, std::move(turned), in_order(out_dims, order));
  const DDim strides = out.strides;
  for (std::size_t i = 0; i < order.size(); ++i) out.strides[order[i]] = strides[static_cast<int>(i)];
  out.dims = out_dims;
  return out;
}

RowCompiler::View RowCompiler::elementwise_of(RowOp op, std::vector<View> views, const DDim& dims) {
  const View out = make(dims);
  if (dims.elements() == 0) return out;
  const auto fits = [&](const std::vector<DDim>& strides) {
    const auto merged = merge(dims, strides);
    return merged &&
           std::all_of(merged->inner_steps.begin(), merged->inner_steps.end(), [](std::int64_t step) { return step == 0 || step == 1; });
  };
  for (View& view : views)
    if (!fits({out.strides, view.strides})) view = contiguous(view);
  std::vector<DDim> strides{out.strides};
  for (const View& view : views) strides.push_back(view.strides);
  if (!fits(strides)) {
    for (std::size_t i = 0; i < views.size(); ++i) {
      views[i] = contiguous(views[i]);
      strides[i + 1] = views[i].strides;
    }
  }
  const Merged merged = merge(dims, strides).value();
  op.outer = merged.outer;
  op.inner = merged.inner;
  op.out = {out.reg, 0, merged.outer_steps[0], 1};
  for (std::size_t i = 0; i < views.size(); ++i)
    op.in[i] = {views[i].reg, views[i].begin, merged.outer_steps[i + 1], merged.inner == 1 ? 1 : merged.inner_steps[i + 1]};
  emit(op);
  return out;
}

void RowCompiler::elementwise(RowOp op, const std::vector<View>& operands, VarId var) {
  bind(var, elementwise(op, operands, program_.var(var).type.shape->erased(0)));
}

// ---- Products and cells ----

bool RowCompiler::is_one_matrix(VarId x, VarId weights) const {
  const VarType& type = program_.var(weights).type;
  // Axes of extent 1 in front of the matrix meet axes of a row: the memory that a decoder of one sequence looks at.
  const int leading = type.rank() - 2;
  if (leading < 0 || leading >= std::max(1, at(x).dims.rank())) return false;
  if (!shared_input(weights) && program_.constant(weights) == nullptr) return false;
  for (int axis = 0; axis < leading; ++axis)
    if ((*type.shape)[axis] != 1) return false;
  return true;
}

/// The matrix product of rows by rows, or by matrices of several heads that all rows share.
RowCompiler::View RowCompiler::matmul_rows(const Op& op, const DDim& out_dims) {
  const auto no_matrices = [&] { refuse(op, "multiplies rows by what is no matrix"); };
  const int axes = out_dims.rank();
  if (axes < 2) no_matrices();
  DDim dims[2] = {out_dims, out_dims};
  View views[2] = {at(op.inputs[0]), at(op.inputs[1])};
  if (!views[0].rows && !views[1].rows) refuse(op, "multiplies something that has no rows");
  for (int i = 0; i < 2; ++i) {
    const VarType& type = program_.var(op.inputs[static_cast<std::size_t>(i)]).type;
    if (type.dtype != desc_.dtype)
      refuse(op, fmt::format("multiplies {}, and the loop computes in {}", type.to_string(), name_of(desc_.dtype)));
    if (views[i].dims.rank() < 2) no_matrices();
    dims[i][axes - (i == 0 ? 1 : 2)] = views[i].dims[i == 0 ? -1 : -2];
    const std::optional<View> each = stretched(views[i], dims[i]);
    if (!each) no_matrices();
    views[i] = *each;
  }
  MatmulRows product{desc_.dtype, 1, out_dims[-2], dims[0][-1], out_dims[-1]};
  for (int axis = 0; axis < axes - 2; ++axis) product.batch *= out_dims[axis];
  View out = make(out_dims);
  if (out.elements() == 0) return out;
  // Both may be turned, and change places, where they lie so: a factor's bits do not depend on its side.
  const auto turned = [axes](View view) {
    std::swap(view.dims[axes - 2], view.dims[axes - 1]);
    std::swap(view.strides[axes - 2], view.strides[axes - 1]);
    return view;
  };
  const View other[2] = {turned(views[1]), turned(views[0])};
  if (!(is_contiguous(views[0]) && is_contiguous(views[1])) && is_contiguous(other[0]) && is_contiguous(other[1])) {
    std::copy(std::begin(other), std::end(other), std::begin(views));
    std::swap(product.m, product.n);
    out.dims = turned(out).dims;
    out.strides = out.dims.row_major();
    out = turned(out);
  }
  RowOp made;
  made.kind = RowOp::Kind::function;
  made.weights = made_.known_.functions.size();
  for (int i = 0; i < 2; ++i) made.in[i] = operand(contiguous(views[i]));
  made.out = operand(out);
  made_.known_.functions.push_back(millrace::matmul_rows(product));
  emit(made);
  return out;
}

void RowCompiler::matmul(const Op& op, VarId x, VarId weights, bool transposed, const View& out) {
  const View from = at(x);
  if (!from.rows || from.dims.rank() == 0) refuse(op, "multiplies something that has no rows");
  if (!is_one_matrix(x, weights)) refuse(op, "multiplies rows by what is no matrix of weights");
  const VarType& type = program_.var(weights).type;
  const std::optional<std::size_t> late = shared_input(weights);
  const Tensor* value = program_.constant(weights);
  const std::int64_t k = (*type.shape)[transposed ? -1 : -2];
  const std::int64_t n = (*type.shape)[transposed ? -2 : -1];
  if (type.dtype != desc_.dtype && (type.dtype != DType::bf16 || desc_.dtype != DType::f32))
    refuse(op, fmt::format("has weights of {}, and the loop computes in {}", name_of(type.dtype), name_of(desc_.dtype)));
  made_.known_.matrices.push_back({make_gemm_plan({k, n, desc_.dtype, desc_.dtype, type.dtype}), {}});
  made_.matrices_.push_back({value != nullptr ? std::optional(*value) : std::nullopt, late, transposed, program_.var(x).type.dtype});
  if (late)
    made_.late_matrices_.push_back({made_.known_.matrices.size() - 1, *late, transposed});
  else
    pack_last(RowKernel::matrix_of(*value, transposed));
  emit_product(from, k, n, out);
}

void RowCompiler::product(const View& from, const Tensor& weights, const View& out) {
  made_.known_.matrices.push_back({make_gemm_plan({weights.dim(0), weights.dim(1), desc_.dtype, desc_.dtype}), {}});
  made_.matrices_.push_back({weights, std::nullopt, false, desc_.dtype});
  pack_last(weights);
  emit_product(from, weights.dim(0), weights.dim(1), out);
}

void RowCompiler::pack_last(const Tensor& weights) {
  ops::PackingStream stream;
  RowWeights::Matrix& matrix = made_.known_.matrices.back();
  matrix.packed = pack(matrix.plan, weights, stream);
}

/// Appends the product of `from` with the matrix that was added last. Rows of a row may be any step apart, as long as it is one step.
void RowCompiler::emit_product(const View& from, std::int64_t k, std::int64_t n, const View& out) {
  RowOp made;
  made.kind = RowOp::Kind::matmul;
  made.weights = made_.known_.matrices.size() - 1;
  const int last = from.dims.rank() - 1;
  const auto merged = merge(from.dims.slice(0, last), {from.strides.slice(0, last)});
  const bool direct = (from.strides[-1] == 1 || from.dims[-1] == 1) && merged && merged->outer == 1;
  const View rows = direct ? from : contiguous(from);
  made.outer = rows.elements() / std::max<std::int64_t>(k, 1);
  made.in[0] = rows_of(rows);
  if (direct) made.in[0].outer_step = merged->inner == 1 ? k : merged->inner_steps[0];
  if (k == 0) made.outer = out.elements() / std::max<std::int64_t>(n, 1);
  made.out = {out.reg, out.begin, n, 1};
  made.inner = n;
  emit(made);
}

void RowCompiler::quantize(const Op& op) {
  const View from = contiguous(at(op.inputs[0]));
  const std::int64_t k = from.dims[-1];
  if (!from.rows || k == 0) refuse(op, "quantizes something that has no rows");
  const std::int64_t outer = from.elements() / k;
  const std::int64_t elements = (k + 3) / 4;
  const View values = make(DDim{outer, elements});
  quantized_[op.outputs[0]] = values;
  const View scales = make(op.outputs[1]);
  RowOp made;
  made.kind = RowOp::Kind::quantize;
  made.outer = outer;
  made.inner = k;
  made.in[0] = {from.reg, from.begin, k, 1};
  made.out = {values.reg, 0, elements, 1};
  made.out2 = {scales.reg, 0, 1, 1};
  emit(made);
}

void RowCompiler::matmul_int8(const Op& op) {
  const auto values = quantized_.find(op.inputs[0]);
  const Tensor* weights = program_.constant(op.inputs[2]);
  const Tensor* scales = program_.constant(op.inputs[3]);
  if (values == quantized_.end()) refuse(op, "multiplies what quantize_rows did not make in the same iteration");
  if (weights == nullptr || scales == nullptr) refuse(op, "is in fused loops with weights that are known");
  const View row_scales = contiguous(at(op.inputs[1]));
  ops::PackingStream stream;
  const Int8Plan plan = make_int8_plan({weights->dim(0), weights->dim(1)});
  made_.known_.int8.push_back({plan, pack(plan, *weights, *scales, stream)});
  const View out = make(op.outputs[0]);
  RowOp made;
  made.kind = RowOp::Kind::matmul_int8;
  made.weights = made_.known_.int8.size() - 1;
  made.outer = values->second.dims[0];
  made.inner = plan.desc().n;
  made.in[0] = {values->second.reg, 0, values->second.dims[1], 1};
  made.in[1] = {row_scales.reg, row_scales.begin, 1, 1};
  made.out = {out.reg, 0, plan.desc().n, 1};
  emit(made);
}

RowCompiler::View RowCompiler::number(double value) {
  ops::PackingStream stream;
  return literal(full(DDim{1}, value, desc_.dtype, stream));
}

void RowCompiler::lstm_cell(const Op& op, LstmDesc desc, const std::vector<VarId>& weights) {
  RowOp made;
  made.kind = RowOp::Kind::lstm_cell;
  made.weights = made_.known_.cells.size();
  made.projected = weights[0] == no_var;
  made.summed = weights[1] == no_var;
  RowKernel::LateCell late{made.weights, desc, {}, {}};
  bool known = true;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    if (weights[i] == no_var) continue;
    late.input[i] = shared_input(weights[i]);
    const Tensor* value = program_.constant(weights[i]);
    if (value == nullptr && !late.input[i]) refuse(op, "has weights that change from row to row");
    known = known && value != nullptr;
    if (value != nullptr) late.constant[i] = *value;
  }
  made_.known_.cells.push_back({make_lstm_cell(desc), {}});
  if (known) {
    ops::PackingStream stream;
    made_.known_.cells.back().packed = RowKernel::packed_cell(late, {}, stream);
  } else {
    made_.late_cells_.push_back(std::move(late));
  }
  for (std::size_t i = 0; i < 3; ++i) made.in[i] = operand(contiguous(at(op.inputs[i])));
  made.inner = desc.hidden;
  made.out = operand(make(op.outputs[0]));
  made.out2 = operand(make(op.outputs[1]));
  emit(made);
}

PackedLstm RowKernel::packed_cell(const LateCell& late, std::span<const Tensor> shared, StreamRef stream) {
  const auto part = [&](std::size_t i) -> const Tensor* {
    if (late.input[i]) return &shared[*late.input[i]];
    return late.constant[i] ? &*late.constant[i] : nullptr;
  };
  const LstmPlan plan = make_lstm_cell(late.desc);
  if (part(1) == nullptr) return pack_gates(plan, part(2), part(3), stream);
  // A cell whose input was projected before has no W of its own.
  const Tensor w = part(0) != nullptr ? *part(0) : zeros(DDim{late.desc.input, 4 * late.desc.hidden}, late.desc.weights_dtype(), stream);
  return pack(plan, w, *part(1), part(2), part(3), stream);
}

RowKernel::RowKernel(const Program& program, Truth truth, bool coupled, std::optional<DType> numbers, bool plain) {
  RowCompiler(program, *this, truth, coupled, numbers, plain).compile();
}

std::optional<DType> RowKernel::numbers_of(const Program& program) {
  std::optional<DType> found;
  for (const auto* ports : {&program.inputs(), &program.outputs()})
    for (const Program::Port& port : *ports)
      if (is_number(program.var(port.var).type.dtype)) found = program.var(port.var).type.dtype;
  return found;
}

Tensor RowKernel::matrix_of(const Tensor& value, bool transposed) {
  Tensor matrix = value;
  while (matrix.rank() > 2) matrix = matrix.select(0, 0);
  return transposed ? matrix.permute({1, 0}) : matrix;
}

RowWeights RowKernel::weights(std::span<const Tensor> shared, StreamRef stream) const {
  RowWeights made = known_;
  for (const LateMatrix& late : late_matrices_) {
    made.matrices[late.place].packed = pack(made.matrices[late.place].plan, matrix_of(shared[late.input], late.transposed), stream);
  }
  for (const LateCell& late : late_cells_) made.cells[late.place].packed = packed_cell(late, shared, stream);
  return made;
}

}  // namespace millrace
