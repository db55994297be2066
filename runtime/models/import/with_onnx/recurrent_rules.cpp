// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <cctype>
#include <functional>
#include <utility>

#include <millrace/runtime/builder/ops.h>
#include <millrace/runtime/files/internal/printable.h>
#include <millrace/runtime/layers/gates.h>
#include <millrace/runtime/layers/internal/cells.h>
#include <millrace/runtime/models/import/with_onnx/rules.h>

namespace millrace::importing {
namespace {

/// The differences between RNN, GRU and LSTM.
struct Kind {
  std::size_t gates;
  std::size_t states;
  std::vector<const char*> activations;  ///< of one direction, where the node names none
};

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

using Functions = std::vector<layers::Activation>;

/// The node's attributes, for both directions.
struct Form {
  std::int64_t hidden = 0;
  std::size_t directions = 1;
  bool reverse = false;  ///< the first direction
  bool batch_first = false;
  double clip = 0;                   ///< 0: none
  std::vector<Functions> functions;  ///< f g h of each direction
};

/// Numbers are taken in order by the functions that have them.
std::vector<Functions> read_functions(const Node& node, const Kind& kind, std::size_t directions) {
  std::vector<std::string> names = node.texts("activations");
  const std::size_t count = kind.activations.size();
  if (names.empty())
    for (std::size_t d = 0; d < directions; ++d) names.insert(names.end(), kind.activations.begin(), kind.activations.end());
  // The schema's default of RNN has two functions, one for each direction that there might be.
  if (count == 1 && directions == 1 && names.size() == 2) names.pop_back();
  if (names.size() != count * directions)
    throw ProgramError("attribute activations: expected " + std::to_string(count * directions) + ", found " + std::to_string(names.size()));
  const std::vector<float> given_alpha = node.reals("activation_alpha");
  const std::vector<float> given_beta = node.reals("activation_beta");
  std::size_t next_alpha = 0;
  std::size_t next_beta = 0;
  const auto number = [](std::optional<double> otherwise, const std::vector<float>& given, std::size_t& next) -> std::optional<double> {
    if (!otherwise) return std::nullopt;
    return next < given.size() ? static_cast<double>(given[next++]) : *otherwise;
  };
  std::vector<Functions> functions(directions);
  for (std::size_t i = 0; i < names.size(); ++i) {
    const Activation& activation = activation_named(names[i]);
    functions[i / count].push_back(
        {activation.op, number(activation.alpha, given_alpha, next_alpha), number(activation.beta, given_beta, next_beta)});
  }
  return functions;
}

/// ProgramError unless the input, where it is there and its type is known, has `dims`.
void expect_dims(Importer& to, const Node& node, std::size_t input, const char* name, const DDim& dims) {
  if (!node.has(input)) return;
  const VarId var = to.in(node, input);
  if (!fits(to.type(var), VarType(to.type(to.in(node, 0)).dtype, dims)))
    throw ProgramError(std::string("input ") + name + ": expected " + VarType(to.type(to.in(node, 0)).dtype, dims).to_string() +
                       ", found '" + to.program().var(var).name + "' of " + to.type(var).to_string());
}

/// Checks the shapes of the inputs.
void check_inputs(Importer& to, const Node& node, const Kind& kind, const Form& form, VarId x) {
  const auto d = static_cast<std::int64_t>(form.directions);
  const std::int64_t gates = static_cast<std::int64_t>(kind.gates) * form.hidden;
  const DDim shape = *to.type(x).shape;  // a copy: looking at inputs may add vars
  expect_dims(to, node, 1, "W", {d, gates, shape[2]});
  expect_dims(to, node, 2, "R", {d, gates, form.hidden});
  expect_dims(to, node, 3, "B", {d, 2 * gates});
  const DDim state = form.batch_first ? DDim{shape[1], d, form.hidden} : DDim{d, shape[1], form.hidden};
  expect_dims(to, node, 5, "initial_h", state);
  if (kind.states < 2) return;
  expect_dims(to, node, 6, "initial_c", state);
  expect_dims(to, node, 7, "P", {d, 3 * form.hidden});
}

Form read_form(Importer& to, const Node& node, const Kind& kind) {
  Form form;
  const std::string direction = node.text("direction", "forward");
  if (direction != "forward" && direction != "reverse" && direction != "bidirectional")
    throw ParseError("attribute direction: expected forward, reverse or bidirectional, found " + internal::printable(direction));
  form.directions = direction == "bidirectional" ? 2 : 1;
  form.reverse = direction == "reverse";
  form.batch_first = node.flag("layout", false);
  const VarType recurrent = to.type(to.in(node, 2));
  const std::int64_t found = recurrent.rank() == 3 ? (*recurrent.shape)[2] : DDim::unknown;
  form.hidden = node.integer("hidden_size", found);
  if (form.hidden < 1 || form.hidden > largest_hidden)
    throw UnsupportedError("attribute hidden_size: expected 1 to " + std::to_string(largest_hidden) + ", found " +
                           std::to_string(form.hidden));
  if (node.has_attribute("clip")) form.clip = node.real("clip", 0);
  if (!(form.clip >= 0)) throw ProgramError("attribute clip: expected 0 or more, found " + std::to_string(form.clip));
  form.functions = read_functions(node, kind, form.directions);
  return form;
}

bool is_narrow(DType dtype) { return dtype == DType::f16 || dtype == DType::bf16; }

/// f16 and bf16 in f32: a node computes in it, and narrows its outputs, as ONNX Runtime does.
VarId widened(Importer& to, VarId x) { return is_narrow(to.type(x).dtype) ? to.emit1("cast", {x}, {{"to", DType::f32}}) : x; }

/// X as [T, B, C], of known rank and, where W knows it, known C.
VarId sequences(Importer& to, const Node& node, const Form& form) {
  VarId x = to.in(node, 0);
  const VarType w = to.type(to.in(node, 1));
  const std::int64_t features = w.rank() == 3 ? (*w.shape)[2] : DDim::unknown;
  const std::optional<DDim> shape = to.type(x).shape;
  if (shape && shape->rank() != 3) throw ProgramError("input X: expected rank 3, found " + to.type(x).to_string());
  to.needs_extent(x, 2, features > 0 ? features : DDim::unknown);
  if (!shape || ((*shape)[2] < 0 && features > 0))
    x = to.emit1("reshape", {x}, {{"shape", Ints{0, 0, std::max<std::int64_t>(features, 0)}}});
  x = widened(to, x);
  return form.batch_first ? to.emit1("transpose", {x}, {{"perm", Ints{1, 0, 2}}}) : x;
}

/// The lengths of the sequences, [B], where they are not all as long as X.
VarId lengths(Importer& to, const Node& node, VarId x) {
  if (!node.has(4)) return no_var;
  const std::optional<Ints> known = to.known_integers(node, 4);
  const std::int64_t steps = (*to.type(x).shape)[0];
  const bool all = known && std::all_of(known->begin(), known->end(), [&](std::int64_t length) { return length == steps; });
  return all ? no_var : to.in(node, 4);
}

VarId slice(Importer& to, VarId x, std::int64_t axis, std::int64_t begin, std::int64_t end) {
  return to.emit1("slice", {x}, {{"starts", Ints{begin}}, {"ends", Ints{end}}, {"axes", Ints{axis}}});
}

/// Part `index` along `axis`, which goes away; `parts` is its extent.
VarId select(Importer& to, VarId x, std::int64_t axis, std::size_t index, std::size_t parts) {
  const auto at = static_cast<std::int64_t>(index);
  const VarId part = parts == 1 ? x : slice(to, x, axis, at, at + 1);
  return to.squeezed(part, Ints{axis});
}

// ---- weights: from ONNX's order of gates to ours, by ops on them

/// The parts of axis 0, one of `size` for each letter of `from`, in the order of the letters of `order`.
VarId reorder(Importer& to, VarId x, std::int64_t size, const std::string& from, const std::string& order) {
  if (from == order) return x;
  const std::vector<VarId> pieces = to.emit("split", {x}, {{"axis", std::int64_t{0}}, {"sizes", Ints(from.size(), size)}});
  std::vector<VarId> moved;
  for (const char gate : order) moved.push_back(pieces.at(from.find(gate)));
  return to.emit1("concat", moved, {{"axis", std::int64_t{0}}});
}

VarId turned(Importer& to, VarId x) { return to.emit1("transpose", {x}, {{"perm", Ints{1, 0}}}); }
std::vector<VarId> cut(Importer& to, VarId x, const Ints& sizes) {
  return to.emit("split", {x}, {{"axis", std::int64_t{0}}, {"sizes", sizes}});
}

/// Reads the weights of one direction, gates in our order.
struct Weights {
  Importer& to;
  const Node& node;
  const Form& form;
  std::size_t direction;
  std::string from;   ///< ONNX's order of gates
  std::string order;  ///< ours

  VarId part(std::size_t input) const { return select(to, widened(to, to.in(node, input)), 0, direction, form.directions); }
  /// [gates·H, ..]
  VarId ordered(VarId x) const { return reorder(to, x, form.hidden, from, order); }
  /// [.., gates·H]
  VarId matrix(std::size_t input) const { return turned(to, ordered(part(input))); }
  /// W's and R's bias, [gates·H] each; none without B.
  std::vector<VarId> biases() const {
    if (!node.has(3)) return {no_var, no_var};
    const std::int64_t half = form.hidden * static_cast<std::int64_t>(from.size());
    return cut(to, part(3), {half, half});
  }
  /// Both as one sum.
  VarId bias() const {
    const std::vector<VarId> both = biases();
    return both[0] == no_var ? no_var : ordered(to.emit1("add", {both[0], both[1]}));
  }
};

// ---- weights of bytes (`quantized_lstm`)

/// W or R as the quantizer has it, [directions, inputs, gates·H], and its scales, [directions] or [directions, gates·H].
struct ByteWeights {
  VarId values;  ///< [inputs, gates·H], gates in our order
  VarId scales;  ///< [gates·H]
};
ByteWeights byte_weights(const Weights& read, std::size_t input) {
  Importer& to = read.to;
  const std::int64_t columns = read.form.hidden * static_cast<std::int64_t>(read.from.size());
  const VarId values = select(to, to.in(read.node, input), 0, read.direction, read.form.directions);
  VarId scales = to.in(read.node, input + 1);
  if (to.rank(scales) == 1) scales = to.emit1("unsqueeze", {scales}, {{"axes", Ints{1}}});
  scales = to.emit1("expand", {select(to, scales, 0, read.direction, read.form.directions), to.literal(Ints{columns})});
  return {turned(to, read.ordered(turned(to, values))), read.ordered(scales)};
}
bool has_byte_weights(const Node& node) { return node.op() == quantized_lstm && node.has(8); }

VarId times_bytes(Importer& to, VarId x, const ByteWeights& weights, std::int64_t axis) {
  return to.emit1("matmul_bytes", {x, weights.values, weights.scales}, {{"axis", axis}});
}

/// The axis from which on ONNX Runtime rounds h [B, H]: that of all sequences. Where there is one, it is a row that stands alone.
std::int64_t rounded_from(Importer& to, VarId h) { return (*to.type(h).shape)[0] == 1 ? 1 : 0; }

/// One step of a direction: appends its ops to the innermost block and returns the next states, h first.
using Cell = std::function<std::vector<VarId>(VarId x, const std::vector<VarId>& states)>;

/// The step of a layer (runtime/layers/), in the innermost block.
template <class F>
std::vector<VarId> layer_step(Importer& to, F&& step) {
  build::Guard guard(to.program());
  const build::BlockGuard at(guard, to.block());
  return {step().id()};
}
build::Var var(VarId id) { return id == no_var ? build::Var() : build::Var::of(id); }

Attributes lstm_attributes(const Node& node, const Form& form, const Functions& functions) {
  std::vector<std::string> names;
  std::vector<double> alphas;
  std::vector<double> betas;
  bool numbers = false;
  for (const layers::Activation& function : functions) {
    names.push_back(function.name);
    alphas.push_back(function.alpha.value_or(0));
    betas.push_back(function.beta.value_or(0));
    numbers = numbers || function.alpha || function.beta;
  }
  Attributes attributes{{"activations", names}};
  if (numbers) {
    attributes.set("alphas", alphas);
    attributes.set("betas", betas);
  }
  if (form.clip > 0) attributes.set("clip", form.clip);
  if (node.flag("input_forget", false)) attributes.set("input_forget", true);
  return attributes;
}

/// The last of `vars` that is one ends the inputs.
std::vector<VarId> without_last_absent(std::vector<VarId> vars) {
  while (vars.back() == no_var) vars.pop_back();
  return vars;
}

/// The step of a cell of bytes: x is X·W.
Cell byte_cell(const Weights& read, VarId bias, VarId peepholes) {
  return
      [&to = read.to, r = byte_weights(read, 10), bias, peepholes,
       attributes = lstm_attributes(read.node, read.form, read.form.functions[read.direction])](VarId x, const std::vector<VarId>& states) {
        const VarId product = times_bytes(to, states[0], r, rounded_from(to, states[0]));
        return to.emit("lstm_gates", without_last_absent({x, product, states[1], bias, peepholes}), attributes, {"h", "c"});
      };
}

Cell lstm_cell(const Weights& read) {
  Importer& to = read.to;
  std::vector<VarId> held = {read.matrix(1), read.matrix(2), read.bias(), no_var};
  if (read.node.has(7)) held[3] = reorder(to, read.part(7), read.form.hidden, layers::gate_order::onnx_peephole, "ifo");
  if (has_byte_weights(read.node)) return byte_cell(read, held[2], held[3]);
  held = without_last_absent(std::move(held));
  return
      [&to, held, bytes = read.node.op() == quantized_lstm,
       attributes = lstm_attributes(read.node, read.form, read.form.functions[read.direction])](VarId x, const std::vector<VarId>& states) {
        std::vector<VarId> inputs = {x, bytes ? rounded_to_bytes(to, states[0], rounded_from(to, states[0])) : states[0], states[1]};
        inputs.insert(inputs.end(), held.begin(), held.end());
        return to.emit("lstm_cell", inputs, attributes, {"h", "c"});
      };
}

Cell gru_cell(const Weights& read) {
  Importer& to = read.to;
  const std::int64_t h = read.form.hidden;
  const std::vector<VarId> recurrent = cut(to, read.ordered(read.part(2)), {2 * h, h});
  const std::vector<VarId> biases = read.biases();
  const VarId bias = biases[0] == no_var ? no_var : read.ordered(biases[0]);
  const std::vector<VarId> inner = biases[0] == no_var ? biases : cut(to, read.ordered(biases[1]), {2 * h, h});
  const std::array<VarId, 6> held = {read.matrix(1), bias, turned(to, recurrent[0]), inner[0], turned(to, recurrent[1]), inner[1]};
  layers::GruOptions options;
  options.reset = read.node.flag("linear_before_reset", false) ? layers::GruReset::after : layers::GruReset::before;
  options.gate = read.form.functions[read.direction][0];
  options.candidate = read.form.functions[read.direction][1];
  options.clip = read.form.clip;
  return [&to, held, options, h](VarId x, const std::vector<VarId>& states) {
    return layer_step(to, [&] {
      const layers::internal::GruParameters p{{var(held[0])}, var(held[1]), {var(held[2])}, var(held[3]), {var(held[4])}, var(held[5])};
      return layers::internal::gru_step(var(x), var(states[0]), p, h, options);
    });
  };
}

Cell rnn_cell(const Weights& read) {
  Importer& to = read.to;
  const std::array<VarId, 3> held = {read.matrix(1), read.matrix(2), read.bias()};
  const layers::Activation function = read.form.functions[read.direction][0];
  return [&to, held, function, clip = read.form.clip](VarId x, const std::vector<VarId>& states) {
    return layer_step(to, [&] {
      const build::Var sum = layers::internal::preactivation(var(x), var(held[0]), var(states[0]), var(held[1]), var(held[2]));
      return layers::apply(function, layers::internal::clipped(sum, clip));
    });
  };
}

// ---- the loop

/// B of x [T, B, C], as a list of one number.
VarId batch_of(Importer& to, VarId x) { return to.emit1("shape", {x}, {{"start", std::int64_t{1}}, {"end", std::int64_t{2}}}); }

/// Whether a node is one step inside a loop or branch of the graph.
bool is_one_step(const Importer& to, VarId x) { return to.block() != 0 && (*to.type(x).shape)[0] == 1; }

/// `given`, [B, H], as rows beside those of x, [1, B, C]: an error where their numbers differ, by ops on rows alone, so that a loop around them is one of rows.
VarId beside(Importer& to, VarId x, VarId given, std::int64_t hidden) {
  const VarId row = to.squeezed(x, Ints{0});
  const std::int64_t width = (*to.type(row).shape)[1];
  const VarId both = to.emit1("concat", {row, given}, {{"axis", std::int64_t{1}}});
  return to.emit1("slice", {both}, {{"starts", Ints{width}}, {"ends", Ints{width + hidden}}, {"axes", Ints{1}}});
}

/// h or c before the first step, [B, H]: the part of the input that is given, or zeros. `x` is [T, B, C].
VarId initial(Importer& to, const Node& node, const Kind& kind, const Form& form, std::size_t input, std::size_t direction, VarId x) {
  const std::int64_t known = (*to.type(x).shape)[1];
  const auto dims_of_x = [&] { return to.emit1("concat", {batch_of(to, x), to.literal(Ints{form.hidden})}, {{"axis", std::int64_t{0}}}); };
  if (node.has(input)) {
    const VarId given = select(to, widened(to, to.in(node, input)), form.batch_first ? 1 : 0, direction, form.directions);
    // One row would do for any number of sequences, and the other way round: broadcasting would not tell. The LSTM's cell is one op, which tells.
    const bool rows = to.type(given).rank() == 2;
    if (known >= 0 || (rows && to.same_extent(given, 0, x, 1))) return given;
    if (rows && is_one_step(to, x) && (*to.type(x).shape)[2] >= 0 && node.op() != quantized_lstm)
      return kind.states == 2 ? given : beside(to, x, given, form.hidden);
    return to.emit1("reshape_to", {given, dims_of_x()}, {{"allowzero", true}});
  }
  const VarId dims = known < 0 ? dims_of_x() : to.literal(Ints{known, form.hidden});
  return to.emit1("constant_of_shape", {dims}, {{"value", scalar_of(to.type(x).dtype, 0).reshape(DDim{1}).read_only()}});
}

/// [B, H] with what x and the given state say of B.
VarType state_type(Importer& to, const Form& form, VarId x, VarId given) {
  std::int64_t batch = (*to.type(x).shape)[1];
  if (batch < 0 && to.type(given).rank() == 2) batch = (*to.type(given).shape)[0];
  return VarType(to.type(x).dtype, DDim{batch, form.hidden});
}

/// The input of one direction: x [T, B, C]; where lengths differ `mask`, bool [T, B, 1], and else `no_var`.
struct Steps {
  VarId x;
  VarId mask = no_var;
  bool bytes = false;  ///< the cell rounds h for all rows together
};

/// The results of one direction: Y [T, B, H], then the last states, [B, H].
using Results = std::vector<VarId>;

VarId unstacked(Importer& to, VarId x, const char* name) {
  return to.emit1("tensor_array_unstack", {x}, {{"axis", std::int64_t{0}}}, name);
}

/// Behind the end of a sequence the output is zero, and the states stay.
VarId keep(Importer& to, VarId live, std::vector<VarId>& next, std::span<const VarId> before) {
  const VarId zero = to.literal(scalar_of(to.type(next[0]).dtype, 0), "zero");
  const VarId shown = to.emit1("where", {live, next[0], zero});
  for (std::size_t i = 0; i < next.size(); ++i) next[i] = to.emit1("where", {live, next[i], before[i]});
  return shown;
}

/// The states that a cell sees. Where it rounds h for all rows together, that of an ended sequence is zero: it must not widen the range of the others.
std::vector<VarId> seen(Importer& to, const Steps& over, VarId live, std::vector<VarId> states) {
  if (!over.bytes || live == no_var) return states;
  states[0] = to.emit1("where", {live, states[0], to.literal(scalar_of(to.type(states[0]).dtype, 0), "zero")});
  return states;
}

/// One step inside a loop or branch of the graph, as exporters write a cell: no loop of its own, so that the one around it stays one of plain iterations.
Results one_step(Importer& to, const Cell& cell, const Steps& over, const std::vector<VarId>& states) {
  const auto only = [&](VarId x) { return to.squeezed(x, Ints{0}); };
  const VarId live = over.mask == no_var ? no_var : only(over.mask);
  std::vector<VarId> next = cell(only(over.x), seen(to, over, live, states));
  const VarId shown = live == no_var ? next[0] : keep(to, live, next, states);
  next.insert(next.begin(), to.emit1("unsqueeze", {shown}, {{"axes", Ints{0}}}, "y"));
  return next;
}

/// The loop over time of one direction, in the canonical form of a recurrence: `step` from 0, `break_if(step == n)`, a
/// read and a write at `step`.
Results loop(Importer& to, const Cell& cell, const Steps& over, const std::vector<VarId>& states, const VarType& state) {
  const VarId steps = unstacked(to, over.x, "steps");
  const VarId alive = over.mask == no_var ? no_var : unstacked(to, over.mask, "live");
  const VarId n = to.emit1("tensor_array_size", {steps}, {}, "n");
  const Ints slot(state.shape->begin(), state.shape->end());
  std::vector<VarId> sizes = {n};
  if (slot[0] < 0) sizes.insert(sizes.end(), {no_var, batch_of(to, over.x)});
  const VarId outputs =
      to.emit1("tensor_array", sizes, {{"dtype", state.dtype}, {"shape", slot}, {"name", std::string("outputs")}}, "outputs");

  std::vector<VarId> carried = {to.literal(Tensor::scalar(std::int64_t{0}), "zero")};
  std::vector<Importer::Param> declared = {{"step", VarType(DType::i64, DDim{})}};
  for (std::size_t i = 0; i < states.size(); ++i) {
    carried.push_back(states[i]);
    declared.push_back({i == 0 ? "h" : "c", state});
  }
  const std::vector<VarId> params = to.enter(declared);
  std::vector<VarId> leaving = {to.emit1("equal", {params[0], n}, {}, "done")};
  leaving.insert(leaving.end(), params.begin(), params.end());
  to.emit("break_if", leaving);
  const std::vector<VarId> before(params.begin() + 1, params.end());
  const VarId x = to.emit1("tensor_array_read", {steps, params[0]}, {}, "x");
  const VarId live = alive == no_var || !over.bytes ? no_var : to.emit1("tensor_array_read", {alive, params[0]}, {}, "live");
  std::vector<VarId> next = cell(x, seen(to, over, live, before));
  const auto now = [&] { return live != no_var ? live : to.emit1("tensor_array_read", {alive, params[0]}, {}, "live"); };
  const VarId shown = alive == no_var ? next[0] : keep(to, now(), next, before);
  to.emit("tensor_array_write", {outputs, params[0], shown}, {{"share", true}});
  next.insert(next.begin(), to.emit1("add", {params[0], to.literal(Tensor::scalar(std::int64_t{1}), "one")}, {}, "step"));
  const int body = to.leave(next);

  Results last =
      to.emit("while", carried, {{"sub_block", BlockId{body}}, {"max_trips", std::int64_t{-1}}, {"parallel_iterations", std::int64_t{8}}},
              {"steps_done", "h_last", "c_last"});
  last[0] = to.emit1("tensor_array_stack", {outputs}, {{"axis", std::int64_t{0}}}, "y");
  return last;
}

/// One direction. Backwards, time is turned: what lies behind the end of a sequence comes first and changes nothing, so that each starts
/// at its own end.
Results run_direction(Importer& to, const Node& node, const Kind& kind, const Form& form, std::size_t index, Steps over, const Cell& cell) {
  const Attributes time{{"axis", std::int64_t{0}}};
  const bool backwards = form.reverse || index == 1;
  std::vector<VarId> states;
  for (std::size_t i = 0; i < kind.states; ++i) states.push_back(initial(to, node, kind, form, 5 + i, index, over.x));
  const VarType state = state_type(to, form, over.x, states[0]);
  if (backwards) {
    over.x = to.emit1("reverse", {over.x}, time);
    if (over.mask != no_var) over.mask = to.emit1("reverse", {over.mask}, time);
  }
  const bool step = is_one_step(to, over.x);
  Results results = step ? one_step(to, cell, over, states) : loop(to, cell, over, states, state);
  if (backwards) results[0] = to.emit1("reverse", {results[0]}, time);
  return results;
}

/// A sequence of no steps ends with zeros, as ONNX Runtime has it, whatever it would have begun with.
void clear_empty(Importer& to, VarId lengths, VarId x, std::vector<Results>& all) {
  const VarId zero = to.literal(scalar_of(to.type(lengths).dtype, 0));
  const VarId some = to.emit1("unsqueeze", {to.emit1("greater", {lengths, zero})}, {{"axes", Ints{1}}});
  const VarId nothing = to.literal(scalar_of(to.type(x).dtype, 0));
  for (Results& results : all)
    for (std::size_t i = 1; i < results.size(); ++i) results[i] = to.emit1("where", {some, results[i], nothing});
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
  const DType dtype = to.type(to.in(node, 0)).dtype;
  if (is_narrow(dtype)) parts = {to.emit1("cast", parts, {{"to", dtype}}, name)};
  to.bind(node, output, parts[0]);
}

/// Layout 0: X [T, B, C], Y [T, D, B, H], Y_h and Y_c [D, B, H]; layout 1 has the batch first.
template <class MakeCell>
void recurrent(Importer& to, const Node& node, const Kind& kind, const std::string& from, const std::string& order, MakeCell&& make) {
  const Form form = read_form(to, node, kind);
  Steps over{.x = sequences(to, node, form), .bytes = node.op() == quantized_lstm};
  check_inputs(to, node, kind, form, over.x);
  const VarId lens = lengths(to, node, over.x);
  if (lens != no_var) over.mask = to.emit1("step_mask", {over.x, lens});
  std::vector<Results> all;
  for (std::size_t index = 0; index < form.directions; ++index) {
    const Weights weights{to, node, form, index, from, order};
    Steps rows = over;
    if (has_byte_weights(node)) rows.x = times_bytes(to, over.x, byte_weights(weights, 8), 0);
    all.push_back(run_direction(to, node, kind, form, index, rows, make(weights)));
  }
  if (lens != no_var) clear_empty(to, lens, over.x, all);
  join(to, node, 0, all, 1, form.batch_first ? Ints{2, 0, 1, 3} : Ints{});
  for (std::size_t i = 1; i <= kind.states; ++i) join(to, node, i, all, 0, form.batch_first ? Ints{1, 0, 2} : Ints{});
}

void lstm(Importer& to, const Node& node, const char*) {
  recurrent(to, node, {4, 2, {"Sigmoid", "Tanh", "Tanh"}}, layers::gate_order::onnx_lstm, layers::gate_order::lstm, lstm_cell);
}

void gru(Importer& to, const Node& node, const char*) {
  recurrent(to, node, {3, 1, {"Sigmoid", "Tanh"}}, layers::gate_order::onnx_gru, layers::gate_order::gru, gru_cell);
}

void rnn(Importer& to, const Node& node, const char*) { recurrent(to, node, {1, 1, {"Tanh"}}, "h", "h", rnn_cell); }

constexpr Rule recurrent_table[] = {
    {"LSTM", lstm},
    {"GRU", gru},
    {"RNN", rnn},
};

}  // namespace

std::span<const Rule> recurrent_rules() { return recurrent_table; }

}  // namespace millrace::importing
