// SPDX-License-Identifier: Apache-2.0
// Layers: the submodule that `millrace.layers` re-exports.
#include <fmt/format.h>

#include <millrace/runtime/layers/conv1d.h>
#include <millrace/runtime/layers/embedding.h>
#include <millrace/runtime/layers/gru.h>
#include <millrace/runtime/layers/layer_norm.h>
#include <millrace/runtime/layers/linear.h>
#include <millrace/runtime/layers/lstm.h>
#include <millrace/runtime/layers/rnn.h>

#include "build.h"
#include "gil.h"
#include "scopes.h"

namespace millrace::python {
namespace {

using layers::Activation;
using layers::CellState;
using layers::CellStep;
using layers::Direction;
using layers::Sequences;
using OptionalTensor = std::optional<Tensor>;

/// Weights never change under a program, whatever becomes of the array that they were taken from.
Tensor own(const Tensor& x) { return copy_of(x); }
OptionalTensor own(const OptionalTensor& x) { return x ? OptionalTensor(copy_of(*x)) : std::nullopt; }

Direction direction_from(const std::string& name) {
  if (name == "forward") return Direction::forward;
  if (name == "reverse") return Direction::reverse;
  if (name == "bidirectional") return Direction::bidirectional;
  throw ArgumentError(fmt::format("layer: expected the direction forward, reverse or bidirectional, found '{}'", name));
}

/// A name, or (name, alpha) or (name, alpha, beta).
Activation activation_from(nb::handle x) {
  if (nb::isinstance<nb::str>(x)) return Activation{nb::cast<std::string>(x)};
  constexpr const char* expected = "a name, (name, alpha) or (name, alpha, beta)";
  if (!is_list(x) || nb::len(x) < 1 || nb::len(x) > 3) refuse_argument(x, "layer: activation", expected);
  Activation made{argument<std::string>(x[0], "layer: activation", expected)};
  if (nb::len(x) > 1) made.alpha = argument<double>(x[1], "layer: activation", "a number as alpha");
  if (nb::len(x) > 2) made.beta = argument<double>(x[2], "layer: activation", "a number as beta");
  return made;
}

std::optional<DType> narrow_from(nb::handle x) { return x.is_none() ? std::nullopt : std::optional<DType>(dtype_from(x)); }
Sequences sequences(const Var& x, const std::optional<Var>& lengths) { return Sequences(x, lengths ? *lengths : Var()); }
std::vector<Var> states_from(nb::handle x) { return x.is_none() ? std::vector<Var>() : vars_from(x); }

template <class Weights>
std::vector<Weights> weights_from(nb::handle x) {
  if (nb::isinstance<Weights>(x)) return {nb::cast<Weights>(x)};
  constexpr const char* expected = "the weights of a layer, or a list of those of several layers";
  if (PySequence_Check(x.ptr()) == 0) refuse_argument(x, "layer: weights", expected);
  std::vector<Weights> made;
  for (const nb::handle one : x) {
    if (!nb::isinstance<Weights>(one)) refuse_argument(one, "layer: weights", expected);
    made.push_back(nb::cast<Weights>(one));
  }
  return made;
}

#define MILLRACE_PYTHON_RECURRENT_SIG(weights)                           \
  "x: VarLike, weights: " weights " | collections.abc.Sequence[" weights \
  "], *, lengths: VarLike | None = None, direction: str = 'forward', "   \
  "h: VarLike | collections.abc.Sequence[VarLike] | None = None, "

void bind_lstm(nb::module_& m) {
  nb::class_<layers::LstmWeights>(
      m, "LstmWeights", "Weights of one direction of one LSTM layer of H units: gates i f g o. P is H, or the width of the projection.")
      .def(
          "__init__",
          [](layers::LstmWeights* self, const Tensor& input, const Tensor& recurrent, const OptionalTensor& bias,
             const OptionalTensor& peepholes, const OptionalTensor& projection) {
            new (self) layers::LstmWeights{own(input), own(recurrent), own(bias), own(peepholes), own(projection)};
          },
          "input"_a, "recurrent"_a, "bias"_a = nb::none(), "peepholes"_a = nb::none(), "projection"_a = nb::none(),
          "input [C, 4H], recurrent [P, 4H], bias [4H], peepholes [3H] (i f o), projection [H, P].")
      .def_ro("input", &layers::LstmWeights::input)
      .def_ro("recurrent", &layers::LstmWeights::recurrent)
      .def_ro("bias", &layers::LstmWeights::bias)
      .def_ro("peepholes", &layers::LstmWeights::peepholes)
      .def_ro("projection", &layers::LstmWeights::projection);
  nb::class_<layers::LstmResult>(
      m, "LstmResult", "`y` rows [.., P], or both directions side by side; `h` [N, P] and `c` [N, H] of each layer and direction.")
      .def_ro("y", &layers::LstmResult::y)
      .def_ro("h", &layers::LstmResult::h)
      .def_ro("c", &layers::LstmResult::c);
  m.def("lstm_from_pytorch", &layers::lstm_from_pytorch, "weight_ih"_a, "weight_hh"_a, "bias_ih"_a = nb::none(), "bias_hh"_a = nb::none(),
        "weight_hr"_a = nb::none(), "torch.nn.LSTM: weight_ih [4H, C], weight_hh [4H, P], bias_ih and bias_hh [4H], weight_hr [P, H].");
  m.def("lstm_from_keras", &layers::lstm_from_keras, "kernel"_a, "recurrent_kernel"_a, "bias"_a = nb::none(),
        "Keras: kernel [C, 4H], recurrent_kernel [H, 4H], bias [4H].");
  m.def(
      "lstm",
      [](const Var& x, nb::handle weights, const std::optional<Var>& lengths, const std::string& direction, nb::handle h, nb::handle c,
         nb::handle gate, nb::handle candidate, nb::handle output, double gate_clip, double cell_clip, double forget_bias,
         nb::handle narrow, const std::string& name) {
        layers::LstmOptions options;
        options.direction = direction_from(direction);
        options.gate = activation_from(gate);
        options.candidate = activation_from(candidate);
        options.output = activation_from(output);
        options.gate_clip = gate_clip;
        options.cell_clip = cell_clip;
        options.forget_bias = forget_bias;
        options.weights = narrow_from(narrow);
        options.name = name;
        return layers::lstm(sequences(x, lengths), weights_from<layers::LstmWeights>(weights), options, states_from(h), states_from(c));
      },
      "x"_a, "weights"_a, nb::kw_only(), "lengths"_a = nb::none(), "direction"_a = "forward", "h"_a = nb::none(), "c"_a = nb::none(),
      "gate"_a = "sigmoid", "candidate"_a = "tanh", "output"_a = "tanh", "gate_clip"_a = 0.0, "cell_clip"_a = 0.0, "forget_bias"_a = 0.0,
      "narrow"_a = nb::none(), "name"_a = "lstm",
      nb::sig("def lstm(" MILLRACE_PYTHON_RECURRENT_SIG(
          "LstmWeights") "c: VarLike | collections.abc.Sequence[VarLike] | None = None, gate: typing.Any = 'sigmoid', "
                         "candidate: typing.Any = 'tanh', output: typing.Any = 'tanh', gate_clip: float = 0.0, cell_clip: float = 0.0, "
                         "forget_bias: float = 0.0, "
                         "narrow: DTypeLike | None = None, name: str = 'lstm') -> LstmResult"),
      "Layers of LSTMs over sequences: x [rows, C] with levels, or dense [T, N, C] (with `lengths` i64 [N]). One LstmWeights for each\n"
      "k = layer * directions + direction, and so `h` [N, P] and `c` [N, H], the initial states. `direction`: forward, reverse, "
      "bidirectional.\n"
      "Activations are names of operations, or (name, alpha, beta). `narrow`: weights as bf16 or i8.");
}

layers::GruReset reset_from(const std::string& name) {
  if (name == "after") return layers::GruReset::after;
  if (name == "before") return layers::GruReset::before;
  throw ArgumentError(fmt::format("gru: expected the reset after or before, found '{}'", name));
}
layers::GruKeeps keeps_from(const std::string& name) {
  if (name == "z") return layers::GruKeeps::z;
  if (name == "complement") return layers::GruKeeps::complement;
  throw ArgumentError(fmt::format("gru: expected keeps z or complement, found '{}'", name));
}

void bind_gru(nb::module_& m) {
  nb::class_<layers::GruWeights>(m, "GruWeights", "Weights of one direction of one GRU layer of H units: gates r z n.")
      .def(
          "__init__",
          [](layers::GruWeights* self, const Tensor& input, const Tensor& recurrent, const OptionalTensor& bias,
             const OptionalTensor& recurrent_bias) {
            new (self) layers::GruWeights{own(input), own(recurrent), own(bias), own(recurrent_bias)};
          },
          "input"_a, "recurrent"_a, "bias"_a = nb::none(), "recurrent_bias"_a = nb::none(),
          "input [C, 3H], recurrent [H, 3H], bias and recurrent_bias [3H].")
      .def_ro("input", &layers::GruWeights::input)
      .def_ro("recurrent", &layers::GruWeights::recurrent)
      .def_ro("bias", &layers::GruWeights::bias)
      .def_ro("recurrent_bias", &layers::GruWeights::recurrent_bias);
  nb::class_<layers::GruResult>(m, "GruResult",
                                "`y` rows [.., H], or both directions side by side; `h` [N, H] of each layer and direction.")
      .def_ro("y", &layers::GruResult::y)
      .def_ro("h", &layers::GruResult::h);
  m.def("gru_from_pytorch", &layers::gru_from_pytorch, "weight_ih"_a, "weight_hh"_a, "bias_ih"_a = nb::none(), "bias_hh"_a = nb::none(),
        "torch.nn.GRU: weight_ih [3H, C], weight_hh [3H, H], bias_ih and bias_hh [3H].");
  m.def("gru_from_keras", &layers::gru_from_keras, "kernel"_a, "recurrent_kernel"_a, "bias"_a = nb::none(),
        "Keras: kernel [C, 3H], recurrent_kernel [H, 3H], bias [2, 3H] (reset_after) or [3H].");
  m.def(
      "gru",
      [](const Var& x, nb::handle weights, const std::optional<Var>& lengths, const std::string& direction, nb::handle h,
         const std::string& reset, const std::string& keeps, nb::handle gate, nb::handle candidate, double clip, nb::handle narrow,
         const std::string& name) {
        layers::GruOptions options;
        options.direction = direction_from(direction);
        options.reset = reset_from(reset);
        options.keeps = keeps_from(keeps);
        options.gate = activation_from(gate);
        options.candidate = activation_from(candidate);
        options.clip = clip;
        options.weights = narrow_from(narrow);
        options.name = name;
        return layers::gru(sequences(x, lengths), weights_from<layers::GruWeights>(weights), options, states_from(h));
      },
      "x"_a, "weights"_a, nb::kw_only(), "lengths"_a = nb::none(), "direction"_a = "forward", "h"_a = nb::none(), "reset"_a = "after",
      "keeps"_a = "z", "gate"_a = "sigmoid", "candidate"_a = "tanh", "clip"_a = 0.0, "narrow"_a = nb::none(), "name"_a = "gru",
      nb::sig("def gru(" MILLRACE_PYTHON_RECURRENT_SIG(
          "GruWeights") "reset: str = 'after', keeps: str = 'z', gate: typing.Any = 'sigmoid', candidate: typing.Any = 'tanh', "
                        "clip: float = 0.0, narrow: DTypeLike | None = None, name: str = 'gru') -> GruResult"),
      "Layers of GRUs over sequences; arguments as for `lstm`. `reset` after (PyTorch) or before (ONNX, Fluid) the recurrent product; "
      "`keeps` z (PyTorch):\n"
      "h' = z * h + (1 - z) * n, or its complement (Fluid).");
}

void bind_rnn(nb::module_& m) {
  nb::class_<layers::RnnWeights>(m, "RnnWeights", "Weights of one direction of one Elman layer of H units.")
      .def(
          "__init__",
          [](layers::RnnWeights* self, const Tensor& input, const Tensor& recurrent, const OptionalTensor& bias) {
            new (self) layers::RnnWeights{own(input), own(recurrent), own(bias)};
          },
          "input"_a, "recurrent"_a, "bias"_a = nb::none(), "input [C, H], recurrent [H, H], bias [H].")
      .def_ro("input", &layers::RnnWeights::input)
      .def_ro("recurrent", &layers::RnnWeights::recurrent)
      .def_ro("bias", &layers::RnnWeights::bias);
  nb::class_<layers::RnnResult>(m, "RnnResult",
                                "`y` rows [.., H], or both directions side by side; `h` [N, H] of each layer and direction.")
      .def_ro("y", &layers::RnnResult::y)
      .def_ro("h", &layers::RnnResult::h);
  m.def("rnn_from_pytorch", &layers::rnn_from_pytorch, "weight_ih"_a, "weight_hh"_a, "bias_ih"_a = nb::none(), "bias_hh"_a = nb::none(),
        "torch.nn.RNN: weight_ih [H, C], weight_hh [H, H], bias_ih and bias_hh [H].");
  m.def(
      "rnn",
      [](const Var& x, nb::handle weights, const std::optional<Var>& lengths, const std::string& direction, nb::handle h,
         nb::handle activation, double clip, nb::handle narrow, const std::string& name) {
        layers::RnnOptions options;
        options.direction = direction_from(direction);
        options.activation = activation_from(activation);
        options.clip = clip;
        options.weights = narrow_from(narrow);
        options.name = name;
        return layers::rnn(sequences(x, lengths), weights_from<layers::RnnWeights>(weights), options, states_from(h));
      },
      "x"_a, "weights"_a, nb::kw_only(), "lengths"_a = nb::none(), "direction"_a = "forward", "h"_a = nb::none(), "activation"_a = "tanh",
      "clip"_a = 0.0, "narrow"_a = nb::none(), "name"_a = "rnn",
      nb::sig("def rnn(" MILLRACE_PYTHON_RECURRENT_SIG("RnnWeights") "activation: typing.Any = 'tanh', clip: float = 0.0, narrow: "
                                                                     "DTypeLike | None = None, name: str = 'rnn') -> RnnResult"),
      "Layers of Elman networks, h' = f((h R + bias) + x W), over sequences; arguments as for `lstm`.");
}

// ---- Cells of one's own ----

/// A width (the states begin as zeros), or an initial state [N, width].
CellState state_from(nb::handle x) {
  if (PyLong_Check(x.ptr()) != 0) return CellState{argument<std::int64_t>(x, "unroll: states", "a width that fits i64")};
  const Var initial = var_from(x);
  const std::optional<DDim>& shape = initial.type().shape;
  if (!shape || shape->rank() == 0 || (*shape)[-1] < 0)
    throw ShapeError(fmt::format("unroll: expected an initial state [N, width] of known width, found {}", initial.type().to_string()));
  return CellState{(*shape)[-1], initial};
}

/// One step of a built-in layer.
struct BuiltInCell {
  layers::Cell cell;
  std::size_t states;

  CellStep operator()(const Var& x, const std::vector<Var>& of) const {
    if (of.size() != states)
      throw ArgumentError(
          fmt::format("cell: expected {}, found {} states", states == 1 ? "one state, h" : "two states, (h, c)", of.size()));
    return cell(x, of);
  }
};

layers::Cell cell_from(nb::object f) {
  if (nb::isinstance<BuiltInCell>(f)) return nb::cast<const BuiltInCell&>(f);
  if (!nb::isinstance<nb::callable>(f)) throw ArgumentError("unroll: expected a function (x, states) as the cell");
  return [f = std::move(f)](const Var& x, const std::vector<Var>& states) {
    const CallDepth depth("unroll");
    const nb::object given = tuple_from(states);
    const nb::object made = calling_python([&] { return f(x, given); });
    depth.expect_closed();
    if (nb::isinstance<Var>(made)) return CellStep{nb::cast<Var>(made), {nb::cast<Var>(made)}};
    if (!nb::isinstance<nb::tuple>(made) || nb::len(made) != 2)
      throw ArgumentError("unroll: expected the cell to give (output, states), or one Var that is both");
    return CellStep{var_from(made[0]), vars_from(made[1])};
  };
}

void bind_built_in_cells(nb::module_& m) {
  nb::class_<BuiltInCell>(m, "Cell",
                          "One step of a built-in layer, for a loop of one's own: `h = cell(x, h)`, of an LSTM `h, c = cell(x, (h, c))`, "
                          "as cells of torch.nn.\n"
                          "x [B, C]. Its weights belong to the program in which it was made: make it before the loop, and call it in the "
                          "frame. `unroll` takes it too.")
      .def(
          "__call__",
          [](const BuiltInCell& self, const Var& x, nb::handle states) { return object_from(self(x, vars_from(states)).states); }, "x"_a,
          "states"_a, nb::sig("def __call__(self, x: VarLike, states: VarLike | collections.abc.Sequence[VarLike]) -> typing.Any"));
  m.def(
      "lstm_cell",
      [](const layers::LstmWeights& weights, double forget_bias, const std::string& name) {
        layers::LstmOptions options;
        options.forget_bias = forget_bias;
        options.name = name;
        return BuiltInCell{layers::lstm_cell(weights, options), 2};
      },
      "weights"_a, nb::kw_only(), "forget_bias"_a = 0.0, "name"_a = "lstm", "`h, c = cell(x, (h, c))`: h [B, P], c [B, H].");
  m.def(
      "gru_cell",
      [](const layers::GruWeights& weights, const std::string& reset, const std::string& keeps, const std::string& name) {
        layers::GruOptions options;
        options.reset = reset_from(reset);
        options.keeps = keeps_from(keeps);
        options.name = name;
        return BuiltInCell{layers::gru_cell(weights, options), 1};
      },
      "weights"_a, nb::kw_only(), "reset"_a = "after", "keeps"_a = "z", "name"_a = "gru",
      "`h = cell(x, h)`: h [B, H]; arguments as for `gru`.");
  m.def(
      "rnn_cell",
      [](const layers::RnnWeights& weights, nb::handle activation, const std::string& name) {
        layers::RnnOptions options;
        options.activation = activation_from(activation);
        options.name = name;
        return BuiltInCell{layers::rnn_cell(weights, options), 1};
      },
      "weights"_a, nb::kw_only(), "activation"_a = "tanh", "name"_a = "rnn",
      nb::sig("def rnn_cell(weights: RnnWeights, *, activation: typing.Any = 'tanh', name: str = 'rnn') -> Cell"),
      "`h = cell(x, h)`: h [B, H].");
}

void bind_cells(nb::module_& m) {
  bind_built_in_cells(m);
  m.def(
      "unroll",
      [](nb::object cell, const Var& x, nb::handle states, const std::optional<Var>& lengths, bool reverse) {
        std::vector<CellState> begin;
        if (nb::isinstance<nb::list>(states) || nb::isinstance<nb::tuple>(states))
          for (const nb::handle state : states) begin.push_back(state_from(state));
        else
          begin.push_back(state_from(states));
        const layers::Unrolled made = layers::unroll(cell_from(cell), sequences(x, lengths), begin, reverse);
        return std::pair(made.output, made.last);
      },
      "cell"_a, "x"_a, "states"_a, nb::kw_only(), "lengths"_a = nb::none(), "reverse"_a = false,
      nb::sig("def unroll(cell: collections.abc.Callable[[Var, tuple[Var, ...]], typing.Any], x: VarLike, states: int | Var | "
              "collections.abc.Sequence[int | Var], *, "
              "lengths: VarLike | None = None, reverse: bool = False) -> tuple[Var, list[Var]]"),
      "A cell of one's own over sequences: (output, [last state, …]). `cell(x, states)` describes one step and gives (output, states), or "
      "one Var that is\n"
      "both; it is called once, while the program is built, and the loop runs fused where its operations allow. x [rows, C] with levels, "
      "or dense [T, N, C].\n"
      "`states`: the width of each state, which begins as zeros, or its initial value [N, width].\n\n"
      "    def cell(x, states):                      # h' = z h + (1 - z) tanh(x W)\n"
      "        h, = states\n"
      "        z = mr.sigmoid(x @ Wz + h @ U)\n"
      "        return z * h + (1.0 - z) * mr.tanh(x @ W)\n"
      "    y, (last,) = mr.layers.unroll(cell, x, [64])");
}

void bind_row_layers(nb::module_& m) {
  m.def(
      "linear",
      [](const Var& x, const Tensor& weight, const OptionalTensor& bias, const std::string& name) {
        return layers::linear(x, {own(weight), own(bias)}, name);
      },
      "x"_a, "weight"_a, "bias"_a = nb::none(), nb::kw_only(), "name"_a = "linear",
      "x weight + bias: [.., C] gives [.., M]; weight [C, M] (PyTorch has it transposed), bias [M].");
  m.def(
      "embedding",
      [](const Var& ids, const Tensor& table, std::optional<std::int64_t> padding, const std::string& name) {
        return layers::embedding(ids, own(table), padding, name);
      },
      "ids"_a, "table"_a, "padding"_a = nb::none(), nb::kw_only(), "name"_a = "embedding",
      "Rows of `table` [V, C] by number; the number `padding` gives zeros.");
  m.def(
      "layer_norm",
      [](const Var& x, const Tensor& scale, const OptionalTensor& bias, double epsilon, const std::string& name) {
        return layers::layer_norm(x, {own(scale), own(bias)}, epsilon, name);
      },
      "x"_a, "scale"_a, "bias"_a = nb::none(), nb::kw_only(), "epsilon"_a = 1e-5, "name"_a = "layer_norm",
      "Over the last axis: scale and bias [C].");
  m.def(
      "conv1d",
      [](const Var& x, const Tensor& weight, const OptionalTensor& bias, const std::optional<Var>& lengths, bool causal,
         std::int64_t dilation, std::int64_t stride, const std::string& name) {
        layers::Conv1dOptions options;
        options.causal = causal;
        options.dilation = dilation;
        options.stride = stride;
        options.name = name;
        return layers::conv1d(sequences(x, lengths), {own(weight), own(bias)}, options);
      },
      "x"_a, "weight"_a, "bias"_a = nb::none(), nb::kw_only(), "lengths"_a = nb::none(), "causal"_a = true, "dilation"_a = 1,
      "stride"_a = 1, "name"_a = "conv1d",
      "Along the rows of each sequence: weight [K, C, M], bias [M]. Causal: a row needs those before it alone; else as PyTorch's "
      "padding='same'.");
}

}  // namespace

void bind_layers(nb::module_& module) {
  nb::module_ m = module.def_submodule(
      "layers", "Layers: functions that append to the program that is being built. Weights are arrays; they are copied.");
  bind_lstm(m);
  bind_gru(m);
  bind_rnn(m);
  bind_cells(m);
  bind_row_layers(m);
}

}  // namespace millrace::python
