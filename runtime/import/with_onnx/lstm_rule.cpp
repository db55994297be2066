// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cctype>

#include <millrace/runtime/import/internal/printable.h>
#include <millrace/runtime/import/with_onnx/rules.h>

namespace millrace::importing {
namespace {

/// ONNX names an activation as its op; the numbers are those that a cell takes when the node gives none.
struct Activation {
  std::string_view onnx;
  const char* op;
  std::optional<double> alpha = std::nullopt;
  std::optional<double> beta = std::nullopt;
};
constexpr Activation activations[] = {
    {"sigmoid", "sigmoid"},
    {"tanh", "tanh"},
    {"relu", "relu"},
    {"softsign", "softsign"},
    {"softplus", "softplus"},
    {"elu", "elu", 1.0},
    {"leakyrelu", "leaky_relu", 0.01f},
    {"thresholdedrelu", "thresholded_relu", 1.0},
    {"affine", "affine", 1.0, 0.0},
    {"scaledtanh", "scaled_tanh", 1.0, 1.0},
    {"hardsigmoid", "hard_sigmoid", 0.2f, 0.5},
};

const Activation& activation_named(const std::string& name) {
  std::string lower = name;
  std::transform(lower.begin(), lower.end(), lower.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  for (const Activation& activation : activations)
    if (activation.onnx == lower) return activation;
  throw UnsupportedError("attribute activations: expected an activation of ONNX, found " + internal::printable(name));
}

constexpr std::int64_t largest_hidden = 1 << 24;

/// The node's attributes, for both directions.
struct Form {
  std::int64_t hidden = 0;
  std::size_t directions = 1;
  bool reverse = false;  // the first direction
  bool batch_first = false;
  std::vector<Attributes> cells;  // one per direction
};

/// f g h of each direction; numbers are taken in order by the functions that have them.
std::vector<Attributes> read_cells(const Node& node, std::size_t directions) {
  std::vector<std::string> names = node.texts("activations");
  if (names.empty())
    for (std::size_t d = 0; d < directions; ++d) names.insert(names.end(), {"Sigmoid", "Tanh", "Tanh"});
  if (names.size() != 3 * directions)
    throw ProgramError("attribute activations: expected " + std::to_string(3 * directions) + ", found " + std::to_string(names.size()));
  const std::vector<float> given_alpha = node.reals("activation_alpha");
  const std::vector<float> given_beta = node.reals("activation_beta");
  std::size_t next_alpha = 0;
  std::size_t next_beta = 0;
  std::size_t numbers = 0;
  const auto number = [&numbers](std::optional<double> otherwise, const std::vector<float>& given, std::size_t& next) {
    if (!otherwise) return 0.0;
    ++numbers;
    return next < given.size() ? static_cast<double>(given[next++]) : *otherwise;
  };
  std::vector<Attributes> cells;
  for (std::size_t d = 0; d < directions; ++d) {
    std::vector<std::string> ops;
    std::vector<double> alphas;
    std::vector<double> betas;
    for (std::size_t i = 0; i < 3; ++i) {
      const Activation& activation = activation_named(names[3 * d + i]);
      ops.emplace_back(activation.op);
      alphas.push_back(number(activation.alpha, given_alpha, next_alpha));
      betas.push_back(number(activation.beta, given_beta, next_beta));
    }
    Attributes cell{{"activations", ops}};
    if (numbers > 0) {
      cell.set("alphas", alphas);
      cell.set("betas", betas);
    }
    if (node.has_attribute("clip")) cell.set("clip", node.real("clip", 0));
    if (node.integer("input_forget", 0) != 0) cell.set("input_forget", true);
    cells.push_back(cell);
  }
  return cells;
}

Form read_form(Importer& to, const Node& node) {
  Form form;
  const std::string direction = node.text("direction", "forward");
  if (direction != "forward" && direction != "reverse" && direction != "bidirectional")
    throw ParseError("attribute direction: expected forward, reverse or bidirectional, found " + internal::printable(direction));
  form.directions = direction == "bidirectional" ? 2 : 1;
  form.reverse = direction == "reverse";
  form.batch_first = node.integer("layout", 0) != 0;
  const VarType& recurrent = to.type(to.in(node, 2));
  const std::int64_t found = recurrent.rank() == 3 ? (*recurrent.shape)[2] : DDim::unknown;
  form.hidden = node.integer("hidden_size", found);
  if (form.hidden < 1 || form.hidden > largest_hidden)
    throw UnsupportedError("attribute hidden_size: expected 1 to " + std::to_string(largest_hidden) + ", found " +
                           std::to_string(form.hidden));
  form.cells = read_cells(node, form.directions);
  return form;
}

/// Every sequence is as long as X, or there is no such input.
void check_lengths(Importer& to, const Node& node, VarId x) {
  if (!node.has(4)) return;
  const std::optional<Ints> lengths = to.known_integers(node, 4);
  const std::int64_t steps = to.type(x).rank() == 3 ? (*to.type(x).shape)[0] : DDim::unknown;
  const bool all = lengths && std::all_of(lengths->begin(), lengths->end(), [&](std::int64_t length) { return length == steps; });
  if (!all)
    throw UnsupportedError("sequence_lens: expected lengths in the file that are all those of X, " + to.type(x).to_string() +
                           ", found others or lengths that a run computes: feed sequences of unequal length as a LoDTensor");
}

VarId slice(Importer& to, VarId x, std::int64_t axis, std::int64_t begin, std::int64_t end) {
  return to.emit1("slice", {x}, {{"starts", Ints{begin}}, {"ends", Ints{end}}, {"axes", Ints{axis}}});
}

/// Part `index` along `axis`, which goes away; `parts` is its extent.
VarId select(Importer& to, VarId x, std::int64_t axis, std::size_t index, std::size_t parts) {
  const auto at = static_cast<std::int64_t>(index);
  const VarId part = parts == 1 ? x : slice(to, x, axis, at, at + 1);
  return to.emit1("squeeze", {part}, {{"axes", Ints{axis}}});
}

/// Where our gates i f g o stand in ONNX's order i o f c.
constexpr std::size_t gates[] = {0, 2, 3, 1};
/// Where our peepholes i f o stand in ONNX's order i o f.
constexpr std::size_t peepholes[] = {0, 2, 1};

/// The parts of axis 0, each of `size`, in another order: how gates move from ONNX's order to ours.
VarId reorder(Importer& to, VarId x, std::int64_t size, std::span<const std::size_t> order) {
  const std::vector<VarId> pieces = to.emit("split", {x}, {{"axis", std::int64_t{0}}, {"sizes", Ints(order.size(), size)}});
  std::vector<VarId> moved;
  for (const std::size_t part : order) moved.push_back(pieces.at(part));
  return to.emit1("concat", moved, {{"axis", std::int64_t{0}}});
}

/// What the cell of one direction reads in every step: W [C, 4H], R [H, 4H], bias [4H] = Wb + Rb (one sum), peepholes
/// [3H].
std::vector<VarId> weights(Importer& to, const Node& node, const Form& form, std::size_t direction) {
  const std::int64_t h = form.hidden;
  const auto of_direction = [&](std::size_t input) { return select(to, to.in(node, input), 0, direction, form.directions); };
  const auto matrix = [&](std::size_t input) {
    return to.emit1("transpose", {reorder(to, of_direction(input), h, gates)}, {{"perm", Ints{1, 0}}});
  };
  std::vector<VarId> made = {matrix(1), matrix(2), no_var, no_var};
  if (node.has(3)) {
    const std::vector<VarId> both = to.emit("split", {of_direction(3)}, {{"axis", std::int64_t{0}}, {"sizes", Ints{4 * h, 4 * h}}});
    made[2] = reorder(to, to.emit1("add", {both.at(0), both.at(1)}), h, gates);
  }
  if (node.has(7)) made[3] = reorder(to, of_direction(7), h, peepholes);
  while (made.back() == no_var) made.pop_back();
  return made;
}

/// h or c before the first step, [B, H]: the part of the input that is given, or zeros. `x` is [T, B, C].
VarId initial(Importer& to, const Node& node, const Form& form, std::size_t input, std::size_t direction, VarId x) {
  if (node.has(input)) return select(to, to.in(node, input), form.batch_first ? 1 : 0, direction, form.directions);
  const std::int64_t known = to.type(x).rank() == 3 ? (*to.type(x).shape)[1] : DDim::unknown;
  const auto dims_of_x = [&] {
    const VarId batch = to.emit1("shape", {x}, {{"start", std::int64_t{1}}, {"end", std::int64_t{2}}});
    return to.emit1("concat", {batch, to.literal(Ints{form.hidden})}, {{"axis", std::int64_t{0}}});
  };
  const VarId dims = known < 0 ? dims_of_x() : to.literal(Ints{known, form.hidden});
  return to.emit1("constant_of_shape", {dims}, {{"value", scalar_of(to.type(x).dtype, 0).reshape(DDim{1}).read_only()}});
}

/// [B, H] with what x and the given state say of B.
VarType state_type(Importer& to, const Form& form, VarId x, VarId given) {
  std::int64_t batch = to.type(x).rank() == 3 ? (*to.type(x).shape)[1] : DDim::unknown;
  if (batch < 0 && to.type(given).rank() == 2) batch = (*to.type(given).shape)[0];
  return VarType(to.type(x).dtype, DDim{batch, form.hidden});
}

/// What one direction gives: Y [T, B, H] and the last h and c, [B, H].
using Results = std::array<VarId, 3>;

/// The loop over time of one direction, in the canonical form of a recurrence: `step` from 0, `break_if(step == n)`, a
/// read and a write at `step`.
Results loop(Importer& to, const Node& node, const Form& form, std::size_t direction, VarId x) {
  const std::vector<VarId> held = weights(to, node, form, direction);
  const VarId h0 = initial(to, node, form, 5, direction, x);
  const VarId c0 = initial(to, node, form, 6, direction, x);
  const VarType state = state_type(to, form, x, h0);
  const VarId steps = to.emit1("tensor_array_unstack", {x}, {{"axis", std::int64_t{0}}}, "steps");
  const VarId n = to.emit1("tensor_array_size", {steps}, {}, "n");
  const Ints slot(state.shape->begin(), state.shape->end());
  const VarId outputs =
      to.emit1("tensor_array", {n}, {{"dtype", state.dtype}, {"shape", slot}, {"name", std::string("outputs")}}, "outputs");
  const VarId zero = to.literal(Tensor::scalar(std::int64_t{0}), "zero");

  const std::vector<VarId> params = to.enter({{"step", VarType(DType::i64, DDim{})}, {"h", state}, {"c", state}});
  std::vector<VarId> leaving = {to.emit1("equal", {params[0], n}, {}, "done")};
  leaving.insert(leaving.end(), params.begin(), params.end());
  to.emit("break_if", leaving);
  std::vector<VarId> inputs = {to.emit1("tensor_array_read", {steps, params[0]}, {}, "x"), params[1], params[2]};
  inputs.insert(inputs.end(), held.begin(), held.end());
  const std::vector<VarId> next = to.emit("lstm_cell", inputs, form.cells.at(direction), {"h", "c"});
  to.emit("tensor_array_write", {outputs, params[0], next.at(0)}, {{"share", true}});
  const VarId one = to.literal(Tensor::scalar(std::int64_t{1}), "one");
  const VarId step = to.emit1("add", {params[0], one}, {}, "step");
  const int body = to.leave({step, next.at(0), next.at(1)});

  const std::vector<VarId> last = to.emit(
      "while", {zero, h0, c0}, {{"sub_block", BlockId{body}}, {"max_trips", std::int64_t{-1}}, {"parallel_iterations", std::int64_t{8}}},
      {"steps_done", "h_last", "c_last"});
  return {to.emit1("tensor_array_stack", {outputs}, {{"axis", std::int64_t{0}}}, "y"), last.at(1), last.at(2)};
}

Results direction(Importer& to, const Node& node, const Form& form, std::size_t index, VarId x) {
  const bool backwards = form.reverse || index == 1;
  if (!backwards) return loop(to, node, form, index, x);
  const Attributes time{{"axis", std::int64_t{0}}};
  Results results = loop(to, node, form, index, to.emit1("reverse", {x}, time));
  results[0] = to.emit1("reverse", {results[0]}, time);
  return results;
}

/// Puts the axis of directions in at `axis` and joins the directions along it; a perm puts the batch first.
void join(Importer& to, const Node& node, std::size_t output, const std::vector<Results>& all, std::int64_t axis, const Ints& batch_first) {
  if (!node.wants(output)) return;
  const std::string& name = node.output(output);
  const bool both = all.size() > 1;
  std::vector<VarId> parts;
  for (const Results& results : all)
    parts.push_back(to.emit1("unsqueeze", {results[output]}, {{"axes", Ints{axis}}}, both || !batch_first.empty() ? "" : name));
  if (both) parts = {to.emit1("concat", parts, {{"axis", axis}}, batch_first.empty() ? name : "")};
  if (!batch_first.empty()) parts = {to.emit1("transpose", parts, {{"perm", batch_first}}, name)};
  to.bind(node, output, parts[0]);
}

/// ONNX's LSTM. Layout 0: X [T, B, C], Y [T, D, B, H], Y_h and Y_c [D, B, H]; layout 1 has the batch first.
void lstm(Importer& to, const Node& node, const char*) {
  const Form form = read_form(to, node);
  VarId x = to.in(node, 0);
  if (form.batch_first) x = to.emit1("transpose", {x}, {{"perm", Ints{1, 0, 2}}});
  check_lengths(to, node, x);
  std::vector<Results> all;
  for (std::size_t index = 0; index < form.directions; ++index) all.push_back(direction(to, node, form, index, x));
  join(to, node, 0, all, 1, form.batch_first ? Ints{2, 0, 1, 3} : Ints{});
  join(to, node, 1, all, 0, form.batch_first ? Ints{1, 0, 2} : Ints{});
  join(to, node, 2, all, 0, form.batch_first ? Ints{1, 0, 2} : Ints{});
}

constexpr Rule rules[] = {{"LSTM", lstm}};

}  // namespace

std::span<const Rule> lstm_rules() { return rules; }

}  // namespace millrace::importing
