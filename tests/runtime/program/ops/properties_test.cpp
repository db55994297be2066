// SPDX-License-Identifier: Apache-2.0
// Properties of every op: one step of many sequences is one step of each, and a row's result depends on that row
// alone.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstring>
#include <optional>
#include <set>

#include <millrace/runtime/program/op_registry.h>
#include <millrace/runtime/program/vectorize.h>

#include "support/op_cases.h"
#include "support/straight_line.h"

using namespace millrace;
using namespace millrace::testing;

namespace {

using Role = OpCase::Input::Role;

/// The program of a case: fed inputs are inputs, with their extents or with all of them unknown, fixed ones weights.
Program program_of(const OpCase& of, bool known) {
  Program program;
  Op op{of.type, {}, {}, of.attributes, {}};
  for (const auto& input : of.inputs) {
    DDim declared = input.dims;
    for (int axis = 0; axis < declared.rank() && !known; ++axis) declared[axis] = DDim::unknown;
    if (input.role == Role::absent)
      op.inputs.push_back(no_var);
    else if (input.role == Role::fixed)
      op.inputs.push_back(program.add_parameter("w", input.value));
    else
      op.inputs.push_back(program.add_input("in" + std::to_string(op.inputs.size()), VarType(input.dtype, declared)));
  }
  std::size_t count = 0;
  for (const VarId output : program.append(0, std::move(op))) program.add_output("out" + std::to_string(count++), output);
  return program;
}

/// Many tensors as one with a leading axis.
Tensor stacked(const std::vector<Tensor>& parts, DType dtype, const DDim& dims) {
  Tensor made(dtype, dims.inserted(0, static_cast<std::int64_t>(parts.size())));
  made.storage()->mark_written();
  auto* to = static_cast<std::byte*>(made.raw_mutable());
  for (const Tensor& part : parts) {
    std::memcpy(to, part.raw(), part.bytes());
    to += part.bytes();
  }
  return made;
}

/// A case, for many: which fed inputs differ from sequence to sequence.
struct Many {
  Many(const OpCase& of, Random& random, bool known) : from(program_of(of, known)), vectorizer(from, to) {
    std::vector<bool> differs;
    for (std::size_t i = 0; i < from.inputs().size(); ++i) differs.push_back(i == 0 || random.coin());
    if (differs.size() > 1 && random.between(0, 3) == 0) differs[0] = !differs[1];
    for (std::size_t i = 0; i < from.inputs().size(); ++i) {
      VarType type = from.var(from.inputs()[i].var).type;
      if (differs[i]) type.shape = type.shape->inserted(0, DDim::unknown);
      vectorizer.bind(from.inputs()[i].var, to.add_input(from.inputs()[i].name, type), differs[i]);
    }
    for (const auto& [var, value] : from.parameters()) vectorizer.bind(var, to.add_parameter("w", value), false);
    for (const Op& op : from.block(0).ops) vectorizer.rewrite(op);
    for (const Program::Port& port : from.outputs()) to.add_output(port.name, vectorizer.get(port.var));
    batched = differs;
  }
  Program from;
  Program to;
  Vectorizer vectorizer;
  std::vector<bool> batched;
};

void check_many(const OpCase& of, Random& random, bool known, std::size_t count) {
  Many many(of, random, known);
  std::vector<std::vector<Tensor>> each(count);
  std::vector<Tensor> all;
  std::size_t place = 0;
  for (const auto& input : of.inputs) {
    if (input.role != Role::fed) continue;
    const Tensor same = input.make(random);
    std::vector<Tensor> parts;
    for (auto& inputs : each) {
      parts.push_back(many.batched[place] ? input.make(random) : same);
      inputs.push_back(parts.back());
    }
    all.push_back(many.batched[place] ? stacked(parts, input.dtype, input.dims) : same);
    ++place;
  }
  StraightLine alone(many.from);
  const std::vector<Tensor> together = StraightLine(many.to)(all);
  for (std::size_t n = 0; n < count; ++n) {
    const std::vector<Tensor> wanted = alone(each[n]);
    for (std::size_t out = 0; out < wanted.size(); ++out) {
      const bool split = many.vectorizer.batched(many.from.outputs()[out].var);
      const Tensor found = split ? together[out].select(0, static_cast<std::int64_t>(n)) : together[out];
      INFO("sequence ", n, " of ", count, ", output ", out, ": expected ", wanted[out].to_string(), ", found ", found.to_string());
      CHECK(same_bits(wanted[out], found));
    }
  }
}

/// Along which axis of each fed input rows lie; −1: it holds for all rows.
using Laid = std::vector<int>;

/// Rows in one of the inputs, along each of its axes; and rows in all inputs at once.
std::vector<Laid> ways(const std::vector<Tensor>& inputs) {
  std::vector<Laid> all;
  for (std::size_t input = 0; input < inputs.size(); ++input) {
    for (int axis = 0; axis < inputs[input].rank(); ++axis) {
      all.emplace_back(inputs.size(), -1);
      all.back()[input] = axis;
    }
  }
  const bool together =
      std::all_of(inputs.begin(), inputs.end(), [&](const Tensor& x) { return x.rank() > 0 && x.dim(0) == inputs[0].dim(0); });
  if (inputs.size() > 1 && together) all.emplace_back(inputs.size(), 0);
  return all;
}

/// The axes of the outputs along which an op says the rows lie; nothing when it refuses.
std::vector<int> followed(OpCase of, const Laid& laid) {
  std::vector<int> axes;
  for (std::size_t i = 0, fed = 0; i < of.inputs.size(); ++i) {
    axes.push_back(of.inputs[i].role == Role::fed ? laid[fed++] : -1);
    if (axes.back() >= 0) of.inputs[i].dims[axes.back()] = DDim::unknown;
  }
  const Program program = program_of(of, true);
  const Op& op = program.block(0).ops.at(0);
  try {
    return program.registry().at(op.type).follow_rows(InferContext(program, op, 0), axes);
  } catch (const UnsupportedError&) {
    return {};
  }
}

/// The program of the case for inputs that were cut; nothing when its attributes name an extent that was cut.
std::optional<Program> program_for(OpCase of, const std::vector<Tensor>& inputs) {
  for (std::size_t i = 0, fed = 0; i < of.inputs.size(); ++i)
    if (of.inputs[i].role == Role::fed) of.inputs[i].dims = inputs[fed++].dims();
  try {
    return program_of(of, true);
  } catch (const ProgramError&) {
    if (!of.type.starts_with("reshape")) throw;
    return std::nullopt;
  }
}

/// Each row alone gives the row of the whole. Returns whether the op takes any way of laying the rows.
bool check_rows(const OpCase& of, Random& random) {
  bool taken = false;
  std::vector<Tensor> inputs;
  for (const auto& input : of.inputs)
    if (input.role == Role::fed) inputs.push_back(input.make(random));
  const std::vector<Tensor> whole = StraightLine(program_of(of, true))(inputs);
  for (const Laid& laid : ways(inputs)) {
    const std::vector<int> out = followed(of, laid);
    if (out.empty()) continue;
    taken = true;
    const std::size_t first =
        static_cast<std::size_t>(std::find_if(laid.begin(), laid.end(), [](int axis) { return axis >= 0; }) - laid.begin());
    for (std::int64_t row = 0; row < inputs[first].dim(laid[first]); ++row) {
      std::vector<Tensor> cut = inputs;
      for (std::size_t i = 0; i < cut.size(); ++i)
        if (laid[i] >= 0) cut[i] = cut[i].slice(laid[i], row, row + 1).copy_to(CpuPlace{});
      std::optional<Program> one = program_for(of, cut);
      if (!one) continue;
      const std::vector<Tensor> alone = StraightLine(std::move(*one))(cut);
      for (std::size_t k = 0; k < out.size(); ++k) {
        INFO("rows on axis ", laid[first], " of fed input ", first, ", row ", row, ", output ", k);
        CHECK(same_bits(alone[k], out[k] < 0 ? whole[k] : whole[k].slice(out[k], row, row + 1)));
      }
    }
  }
  return taken;
}

}  // namespace

TEST_CASE("every op computes for N sequences, by its rule, the bits of each alone") {
  for (const std::uint64_t seed : seeds(12)) {
    INFO("seed ", seed);
    Random random(seed);
    for (const OpCase& of : op_cases(random)) {
      INFO(of.to_string());
      check_many(of, random, true, static_cast<std::size_t>(random.between(1, 4)));
    }
  }
}

TEST_CASE("every op is rewritten for N sequences where no extent of its inputs is known") {
  for (const std::uint64_t seed : seeds(6)) {
    INFO("seed ", seed);
    Random random(seed);
    for (const OpCase& of : op_cases(random)) {
      INFO(of.to_string());
      check_many(of, random, false, static_cast<std::size_t>(random.between(1, 3)));
    }
  }
}

TEST_CASE("a row that an op follows has the same result alone and among others") {
  std::set<std::string> row_wise;
  for (const std::uint64_t seed : seeds(6)) {
    INFO("seed ", seed);
    Random random(seed);
    for (const OpCase& of : op_cases(random)) {
      INFO(of.to_string());
      if (check_rows(of, random)) row_wise.insert(of.type);
    }
  }
  for (const char* name :
       {"add",   "sigmoid", "matmul", "gemm",   "softmax",   "layer_norm", "transpose", "squeeze",   "unsqueeze", "reshape", "concat",
        "split", "slice",   "pad",    "gather", "embedding", "one_hot",    "conv1d",    "lstm_cell", "reduce",    "argmax",  "flatten"})
    CHECK_MESSAGE(row_wise.contains(name), name);
}

TEST_CASE("every op says how it treats rows and has a rule for many sequences, but for arrays, orders and control") {
  const std::set<std::string> driven{
      "while", "break_if", "if", "unpack", "pack", "shrink", "split_lod_tensor_to_timesteps", "restore_lod_tensor_from_timesteps",
      "reorder", "constant_rows", "last_rows", "constant", "beam_search_decode",
      // Of backward loops (docs/decisions/autodiff.md), which are not fed live.
      "add_slot_gradient", "boot_gradient", "concat_gradient", "last_rows_gradient", "last_rows_of", "no_slot_gradients",
      "reorder_gradient", "reorder_rows", "reorder_steps", "run_rows", "shrink_gradient", "shrink_rows", "slot_gradient",
      "slot_gradients_of", "slot_gradients_to_array", "sum_slot_gradients", "unpack_as", "unstack_gradient", "sequence_order", "run_count",
      "sequence_run", "sequence_run_gradient", "join_runs", "join_runs_gradient", "whole_blocks", "add_row_products"};
  const std::set<std::string> decoding{"crf_decoding",     "linear_chain_crf",  "ctc_greedy",       "ctc_beam_search",
                                       "edit_distance",    "beam_search_start", "beam_search_step", "sample_tokens",
                                       "ctc_align",        "ctc_loss",          "gather_tree",      "linear_chain_crf_gradient",
                                       "ctc_loss_gradient"};
  // An op on whole sequences says so when rows are live, and never stands in a step.
  const auto over_sequences = [&decoding](const std::string& name) {
    return decoding.contains(name) || name.starts_with("sequence_") || name.starts_with("lod_") || name.ends_with("_by_mask") ||
           name == "row_conv" || name == "row_numbers" || name == "window_rows" || name.starts_with("list_") ||
           name.starts_with("optional_");
  };
  const auto registry = standard_ops();
  for (const std::string& name : registry->names()) {
    if (driven.contains(name) || name.starts_with("tensor_array")) continue;
    CAPTURE(name);
    CHECK(registry->at(name).follow_rows != nullptr);
    CHECK((registry->at(name).vectorize != nullptr) != over_sequences(name));
    CHECK(registry->at(name).prepare != nullptr);
  }
}
