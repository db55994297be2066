// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cstring>
#include <iterator>
#include <numeric>
#include <optional>
#include <span>
#include <sstream>

#include <millrace/kernels/arithmetic.h>
#include <millrace/kernels/byte_map.h>
#include <millrace/runtime/program/op_context.h>
#include <millrace/runtime/program/ops/internal/arithmetic_names.h>
#include <millrace/runtime/program/ops/internal/batching.h>
#include <millrace/runtime/program/ops/internal/define.h>
#include <millrace/runtime/program/ops/internal/families.h>
#include <millrace/runtime/program/ops/internal/inference.h>
#include <millrace/runtime/program/ops/internal/packing.h>
#include <millrace/runtime/program/ops/internal/rows.h>

/// Steps of arithmetic on one element, made when a program is compiled (lowering/join_arithmetic.h).
namespace millrace::ops {
namespace {

constexpr const char* names[] = {
    "add",   "sub",  "from",    "mul",  "div",  "into",      "minimum", "before_minimum", "maximum", "before_maximum",
    "prelu", "elu",  "square",  "relu", "sqrt", "neg",       "abs",     "reciprocal",     "round",   "hard_swish",
    "exp",   "tanh", "sigmoid", "erf",  "gelu", "gelu_tanh", "mish",    "softplus"};
static_assert(std::size(names) == static_cast<std::size_t>(ArithmeticStep::softplus) + 1);

void infer_arithmetic(InferContext& context) {
  const std::vector<ArithmeticStep> steps = steps_of(context.attributes().get<std::string>("steps"));
  const DType given = context.tensor(0).dtype;
  const bool whole = given == DType::u8 || given == DType::i8 || given == DType::i32;
  if (!whole) expect_float(context, 0);
  const auto taken = static_cast<std::size_t>(std::count_if(steps.begin(), steps.end(), has_operand));
  if (context.inputs() != taken + 1 || taken > most_operands)
    throw ProgramError("expected X and " + std::to_string(taken) + " operands, at most " + std::to_string(most_operands) + ", found " +
                       std::to_string(context.inputs()) + " inputs");
  std::vector<std::size_t> all{0};
  for (std::size_t input = 1; input < context.inputs(); ++input) {
    whole ? expect_dtype(context, input, DType::f32) : expect_same_dtype(context, 0, input);
    all.push_back(input);
  }
  context.result(tensor_type(context.attributes().get_or("to", whole ? DType::f32 : given), broadcast(context, all)));
}

/// The results of all 256 bytes, where x and the result are bytes and each operand is one known number.
std::optional<Tensor> table_of(const PrepareContext& context, std::optional<DType> to) {
  const VarType& x = context.type(0);
  if (!context.place().is_cpu() || !to || !x.shape || (x.dtype != DType::u8 && x.dtype != DType::i8)) return std::nullopt;
  std::vector<const Tensor*> operands;
  for (std::size_t input = 1; input < context.op().inputs.size(); ++input) {
    operands.push_back(context.constant(input));
    if (operands.back() == nullptr || operands.back()->elements() != 1 || operands.back()->rank() > std::max(1, x.rank()))
      return std::nullopt;
  }
  std::array<std::uint8_t, 256> bytes{};
  std::iota(bytes.begin(), bytes.end(), std::uint8_t{0});
  Tensor all(x.dtype, DDim{256});
  void* const to_all = x.dtype == DType::i8 ? static_cast<void*>(all.mutable_data<std::int8_t>()) : all.mutable_data<std::uint8_t>();
  std::memcpy(to_all, bytes.data(), bytes.size());
  std::vector<Tensor> numbers;
  for (const Tensor*& operand : operands) numbers.push_back(operand->reshape(DDim{}));
  for (std::size_t i = 0; i < numbers.size(); ++i) operands[i] = &numbers[i];
  PackingStream stream;
  return arithmetic(steps_of(context.attributes().get<std::string>("steps")), all, operands, stream, to).read_only();
}

OpKernel prepare_arithmetic(const PrepareContext& context) {
  std::optional<DType> to;
  if (context.attributes().find("to") != nullptr) to = context.attributes().get<DType>("to");
  if (const std::optional<Tensor> table = table_of(context, to))
    return [held = *table](OpContext& run) { run.set(0, map_bytes(held, run.tensor(0), run.stream())); };
  return [to, steps = steps_of(context.attributes().get<std::string>("steps"))](OpContext& run) {
    std::array<const Tensor*, most_operands> operands{};
    for (std::size_t input = 1; input < run.inputs(); ++input) operands[input - 1] = &run.tensor(input);
    run.set(0, arithmetic(steps, run.tensor(0), std::span(operands).first(run.inputs() - 1), run.stream(), to));
  };
}

// ---- byte_map: formulas of one byte, made when a program is compiled (lowering/join_bytes.h)

void infer_byte_map(InferContext& context) {
  for (std::size_t input = 0; input < 2; ++input)
    if (context.tensor(input).dtype != DType::i8) expect_dtype(context, input, DType::u8);
  const VarType& table = context.tensor(1);
  if (table.shape && *table.shape != DDim{256}) throw ProgramError("expected a table [256], found " + context.describe(1));
  context.result(tensor_type(table.dtype, context.tensor(0).shape));
}

OpDef byte_map_op() {
  OpDef def = define("byte_map", {"X", "Table"}, {"Out"}, {});
  def.infer = infer_byte_map;
  def.prepare = [](const PrepareContext&) -> OpKernel {
    return [](OpContext& run) { run.set(0, map_bytes(run.tensor(1), run.tensor(0), run.stream())); };
  };
  set_made_for_runs(def);
  return def;
}

}  // namespace

std::vector<ArithmeticStep> steps_of(const std::string& text) {
  std::vector<ArithmeticStep> steps;
  std::istringstream words(text);
  for (std::string word; words >> word;) {
    const auto* const found = std::find(std::begin(names), std::end(names), word);
    if (found == std::end(names)) throw ProgramError("attribute 'steps': expected names of steps, found '" + word + "'");
    steps.push_back(static_cast<ArithmeticStep>(found - std::begin(names)));
  }
  return steps;
}

std::string name_of(ArithmeticStep step) { return names[static_cast<std::size_t>(step)]; }

void add_arithmetic_ops(OpRegistry& registry) {
  OpDef def = define("arithmetic", {"X", "Operands..."}, {"Out"}, {"steps", "to"});
  def.infer = infer_arithmetic;
  def.prepare = prepare_arithmetic;
  def.follow_rows = follow_elementwise;
  def.vectorize = vectorize_elementwise;
  registry.add(std::move(def));
  registry.add(byte_map_op());
}

}  // namespace millrace::ops
