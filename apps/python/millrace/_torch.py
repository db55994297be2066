# SPDX-License-Identifier: Apache-2.0
"""Modules of PyTorch as programs. PyTorch is imported when a module needs it, by the module itself."""

from __future__ import annotations

from typing import Any, Callable, Sequence

from . import _core
from ._core import ArgumentError, Program, UnsupportedError, Var
from ._core import layers


def _array(parameter: Any) -> Any:
    """The values of a parameter, without its gradient."""
    return parameter.detach().cpu().contiguous()


def _is(module: Any, name: str) -> bool:
    """Whether `module` is one of PyTorch's of that name, or of a class derived from it; told without an import. UnsupportedError of one that does not
    compute what PyTorch's class does."""
    for kind in type(module).__mro__:
        if kind.__name__ == name and kind.__module__.startswith("torch.nn.modules"):
            _expect_forward_of(kind, module)
            return True
    return False


def _expect_forward_of(kind: Any, module: Any) -> None:
    """UnsupportedError where `module` has a forward of its own, or hooks that may change its inputs, weights or outputs."""
    name = type(module).__name__
    own = next((each for each in ("forward", "__call__") if each in vars(module) or getattr(type(module), each) is not getattr(kind, each)), None)
    if own is not None:
        raise UnsupportedError(
            f"from_torch: expected the {own} of torch.nn.{kind.__name__}, found one of {name}'s own: give example inputs, which exports the module through ONNX"
        )
    if module._forward_hooks or module._forward_pre_hooks:
        raise UnsupportedError(
            f"from_torch: expected a module without forward hooks, found hooks of {name} (torch.nn.utils.weight_norm and spectral_norm add one): "
            "remove them, or give example inputs, which exports the module through ONNX"
        )


def _directions(module: Any, names: Sequence[str]) -> list[list[Any]]:
    """For each k = layer * directions + direction the parameters `names`, None for those that the module lacks."""
    made = []
    for layer in range(module.num_layers):
        for suffix in ("", "_reverse") if module.bidirectional else ("",):
            found = [getattr(module, f"{name}_l{layer}{suffix}", None) for name in names]
            made.append([None if one is None else _array(one) for one in found])
    return made


def _recurrent(module: Any, x: Var, name: str) -> tuple[Var, dict[str, list[Var]]]:
    """Appends nn.LSTM, nn.GRU or nn.RNN: y, and the last states of each layer and direction by name. Dense rows of a module with batch_first are
    [N, T, C]."""
    if module.batch_first and x.lod == 0:
        y, states = _time_first(module, _core.transpose(x, [1, 0, 2]), name)
        return _core.transpose(y, [1, 0, 2]), states
    return _time_first(module, x, name)


def _time_first(module: Any, x: Var, name: str) -> tuple[Var, dict[str, list[Var]]]:
    direction = "bidirectional" if module.bidirectional else "forward"
    if module.dropout and module.training and module.num_layers > 1:
        raise UnsupportedError(f"from_torch: expected a module in evaluation mode, found {type(module).__name__} with dropout {module.dropout}: call module.eval()")
    names = ["weight_ih", "weight_hh", "bias_ih", "bias_hh"]
    if _is(module, "LSTM"):
        lstm = layers.lstm(x, [layers.lstm_from_pytorch(*one) for one in _directions(module, [*names, "weight_hr"])], direction=direction, name=name)
        return lstm.y, {"h": lstm.h, "c": lstm.c}
    if _is(module, "GRU"):
        gru = layers.gru(x, [layers.gru_from_pytorch(*one) for one in _directions(module, names)], direction=direction, name=name)
        return gru.y, {"h": gru.h}
    rnn = layers.rnn(x, [layers.rnn_from_pytorch(*one) for one in _directions(module, names)], direction=direction, activation=module.nonlinearity, name=name)
    return rnn.y, {"h": rnn.h}


def _apply(module: Any, x: Var, name: str) -> Var:
    """Appends one module of a Sequential; recurrent ones give their rows."""
    simple: dict[str, Callable[[Var], Var]] = {
        "ReLU": _core.relu,
        "ReLU6": lambda x: _core.clip(x, 0, 6),
        "LeakyReLU": lambda x: _core.leaky_relu(x, module.negative_slope),
        "ELU": lambda x: _core.elu(x, module.alpha),
        "CELU": lambda x: _core.call("celu", x, alpha=module.alpha),
        "SELU": lambda x: _core.call("selu", x, alpha=1.6732632423543772, gamma=1.0507009873554805),
        "GELU": lambda x: _core.gelu(x, module.approximate),
        "SiLU": lambda x: x * _core.sigmoid(x),
        "Mish": _core.mish,
        "Hardswish": lambda x: _core.call("hard_swish", x),
        "Hardsigmoid": lambda x: _core.call("hard_sigmoid", x, alpha=1 / 6, beta=0.5),
        "LogSigmoid": lambda x: -_core.softplus(-x),
        "Softsign": _core.softsign,
        "Hardtanh": lambda x: _core.clip(x, module.min_val, module.max_val),
        "Tanh": _core.tanh,
        "Sigmoid": _core.sigmoid,
        "Identity": _core.identity,
    }
    for kind, function in simple.items():
        if _is(module, kind):
            return function(x)
    if any(_is(module, kind) for kind in ("LSTM", "GRU", "RNN")):
        return _recurrent(module, x, name)[0]
    if _is(module, "Linear"):
        return layers.linear(x, _array(module.weight.t()), None if module.bias is None else _array(module.bias), name=name)
    if _is(module, "Embedding"):
        if module.max_norm is not None:
            raise UnsupportedError(f"from_torch: expected an Embedding without max_norm, found {module.max_norm}: scale the rows of its weight instead")
        return layers.embedding(x, _array(module.weight), name=name)
    if _is(module, "LayerNorm") and len(module.normalized_shape) == 1:
        if module.weight is None:
            ones, zeros = (_core.cast(_core.constant([value] * module.normalized_shape[0]), x.dtype) for value in (1.0, 0.0))
            return _core.layer_norm(x, ones, zeros, epsilon=module.eps)
        return layers.layer_norm(x, _array(module.weight), None if module.bias is None else _array(module.bias), epsilon=module.eps, name=name)
    if (_is(module, "Softmax") or _is(module, "LogSoftmax")) and module.dim == -1:
        return (_core.softmax if _is(module, "Softmax") else _core.log_softmax)(x)
    if _is(module, "Dropout"):
        if module.training and module.p > 0:
            raise UnsupportedError(f"from_torch: expected a module in evaluation mode, found {type(module).__name__} with p {module.p}: call module.eval()")
        return x
    if _is(module, "Sequential"):
        for index, part in enumerate(module):
            x = _apply(part, x, f"{name}_{index}" if name else f"layer_{index}")
        return x
    raise UnsupportedError(
        f"from_torch: expected LSTM, GRU, RNN, Linear, Embedding, LayerNorm of one axis, an activation, a softmax with dim -1, or a Sequential of them, "
        f"found {type(module).__name__}({module.extra_repr()}): "
        "give example inputs, which exports the module through ONNX"
    )


def _first(module: Any) -> Any:
    return _first(module[0]) if _is(module, "Sequential") and len(module) else module


def _exported(module: Any, example_inputs: Sequence[Any], options: dict[str, Any]) -> Program:
    import io

    import torch

    if isinstance(example_inputs, torch.Tensor):
        example_inputs = (example_inputs,)
    file: Any = io.BytesIO()  # PyTorch takes a file, whatever its annotation says
    torch.onnx.export(module, tuple(example_inputs), file, **options)
    return _core.parse_onnx(file.getvalue(), type(module).__name__)


def from_torch(module: Any, example_inputs: Sequence[Any] | None = None, *, ragged: bool = True, **export_options: Any) -> Program:
    """See millrace.from_torch."""
    if example_inputs is not None:
        return _exported(module, example_inputs, export_options)
    if export_options:
        raise ArgumentError(f"from_torch: expected example_inputs beside options of torch.onnx.export, found {', '.join(export_options)} alone")
    first = _first(module)
    program = Program(type(module).__name__)
    recurrent = any(_is(module, kind) for kind in ("LSTM", "GRU", "RNN"))
    width = getattr(first, "input_size", getattr(first, "in_features", None))
    ids = _is(first, "Embedding")
    if _is(first, "LayerNorm"):
        width = first.normalized_shape[-1]
    with program:
        row: list[int | None] = [] if ids else [width]
        shape: list[int | None] = [None, *row] if ragged else [None, None, *row]
        dtype = next((str(parameter.dtype) for parameter in module.parameters()), "f32")
        x = _core.input("x", "i64" if ids else dtype, shape, lod=1 if ragged else 0)
        if not recurrent:
            _core.output("y", _apply(module, x, ""))
            return program
        y, states = _recurrent(module, x, type(module).__name__.lower())
        _core.output("y", y)
        for name, parts in states.items():
            _core.output(name, _core.concat([_core.unsqueeze(part, [0]) for part in parts], 0))
    return program
