# SPDX-License-Identifier: Apache-2.0
"""Programs as differentiable modules of PyTorch."""

from __future__ import annotations

import importlib
import sys
from typing import Any, ClassVar, NamedTuple, Sequence

import torch
from torch.nn.utils.rnn import PackedSequence, pad_packed_sequence
from torch.utils.dlpack import from_dlpack

from ._core import ArgumentError, Compiled, LoDTensor, Program, Result, Tensor, UnsupportedError, _with_fed_weights, _with_gradients

__all__ = ["Function", "Ragged", "function"]


class Ragged(NamedTuple):
    """Sequences: the rows of all of them, one behind the other, and their lengths (a list for each level, where there are several)."""

    rows: torch.Tensor
    lengths: Any


def _as_torch(tensor: Tensor) -> torch.Tensor:
    """Without a copy, where others may write to the elements too."""
    return from_dlpack(tensor.copy() if tensor.read_only else tensor)


def _lengths(value: LoDTensor) -> Any:
    return value.lengths if value.levels == 1 else value.lod


class _Pair(NamedTuple):
    """A program in two halves, for the gradients of some of its inputs."""

    forward: Compiled
    """Gives the outputs, and the values that `backward` takes."""
    backward: Compiled
    found: set[str]
    """Inputs whose gradient `backward` gives; those of the others are zero."""
    handed: list[str]


class _Call:
    """The context of one call of a Function, beside its tensors."""

    def __init__(self, function: Function, names: list[str], fixed: dict[str, Any], lengths: dict[str, Any]) -> None:
        self.function, self.names, self.fixed, self.lengths = function, names, fixed, lengths
        self.made: dict[str, Any] = {}  # the lengths of outputs that have levels

    def outputs(self, result: Result) -> list[torch.Tensor]:
        made = []
        for name in self.function._outputs:
            value = result[name]
            if isinstance(value, LoDTensor):
                self.made[name] = _lengths(value)
                value = value.rows
            made.append(_as_torch(value))
        return made

    def run(self, compiled: Compiled, tensors: Sequence[torch.Tensor]) -> Result:
        """Feeds the inputs that `compiled` has: weights and inputs that only other outputs need are left out."""
        known = compiled.inputs
        return compiled._run_sharing({name: value for name, value in self.feeds(tensors).items() if name in known})

    def feeds(self, tensors: Sequence[torch.Tensor]) -> dict[str, Any]:
        fed = dict(self.fixed)
        for name, tensor in zip(self.names, tensors):
            whole = tensor.detach().contiguous()
            fed[name] = LoDTensor(whole, self.lengths[name]) if name in self.lengths else whole
        return fed


class _Run(torch.autograd.Function):
    """Forward runs once, and hands its values to backward. They are kept by a tensor that autograd saves, so that they go when autograd lets go of what
    it has saved: behind the last backward. Outputs that share memory with them are saved too, since autograd knows when they were changed."""

    @staticmethod
    def forward(ctx: Any, call: _Call, pair: _Pair, *tensors: torch.Tensor) -> Any:
        result = call.run(pair.forward, tensors)
        made = call.outputs(result)
        values, sharing = result._handed(pair.handed, call.function._outputs)
        keeper = torch.empty(0)
        setattr(keeper, "_millrace_values", values)
        ctx.call, ctx.pair, ctx.count = call, pair, len(tensors)
        shared = [one for name, one in zip(call.function._outputs, made) if name in sharing]
        ctx.save_for_backward(*tensors, *shared, keeper)
        ctx.mark_non_differentiable(*[one for one in made if not one.is_floating_point()])
        return tuple(made)

    @staticmethod
    def backward(ctx: Any, *seeds: torch.Tensor) -> Any:
        call: _Call = ctx.call
        pair: _Pair = ctx.pair
        *saved, keeper = ctx.saved_tensors
        tensors = saved[: ctx.count]
        feeds: dict[str, Any] = {**call.feeds(tensors), **keeper._millrace_values}
        for name, seed in zip(call.function._outputs, seeds):
            feeds["seed/" + name] = seed.detach().contiguous()
        known = pair.backward.inputs
        result = pair.backward._run_sharing({name: value for name, value in feeds.items() if name in known})
        gradients: list[torch.Tensor | None] = [None, None]
        for name, tensor in zip(call.names, tensors):
            if name not in pair.found:
                gradients.append(None)  # zero, or not wanted
                continue
            value = result["gradient/" + name]
            gradients.append(_as_torch(value.rows if isinstance(value, LoDTensor) else value).reshape(tensor.shape))
        if torch.is_grad_enabled():
            of = [one for one in (*tensors, *seeds) if one.requires_grad]
            gradients = [None if one is None else _Refused.apply(one, *of) for one in gradients]
        return tuple(gradients)


class _Refused(torch.autograd.Function):
    """A gradient as it is, whose own gradient is an error. `of`: the tensors that it depends on. PyTorch's once_differentiable gives zeros instead, where
    the loss depends on the tensors by another path too."""

    @staticmethod
    def forward(ctx: Any, gradient: torch.Tensor, *of: torch.Tensor) -> Any:
        return gradient.view_as(gradient)

    @staticmethod
    def backward(ctx: Any, *seeds: torch.Tensor) -> Any:
        raise UnsupportedError("function: gradients of gradients are not given: build them into the program with mr.gradients")


class Function(torch.nn.Module):
    """A program as a module: its weights are Parameters, and gradients flow through its inputs, outputs and weights. Made by `function`."""

    _apart: ClassVar[Any] = None  # `_evaluate`, which torch.compile leaves alone

    def __init__(self, program: Program, outputs: Sequence[str] | None, threads: int, memory: str) -> None:
        super().__init__()
        fed, fed_names = _with_fed_weights(program)
        self._source, self._fed_names = program, fed_names
        self._fed, self._threads, self._memory = fed, threads, memory
        self._outputs = list(program.outputs) if outputs is None else list(outputs)
        for name in self._outputs:
            if name not in program.outputs:
                raise ArgumentError(f"function: expected outputs of program '{program.title}' ({', '.join(program.outputs)}), found '{name}'")
        self._floating = [name for name in self._outputs if self._fed.outputs[name].startswith(("f", "bf"))]
        self._inputs = {name: _Input.of(kind) for name, kind in program.inputs.items()}
        # Only what the outputs need: no input that serves other outputs is asked for.
        self._run: Compiled = _with_gradients(fed, [], self._outputs, self._floating, memory)[0].compile(threads=threads)
        self._pairs: dict[tuple[str, ...], _Pair] = {}
        self._weights: dict[str, str] = {}  # the attribute of each fed weight
        for name, value in program.parameters.items():
            attribute = name.replace(".", "_").replace("/", "_") or "weight"
            while hasattr(self, attribute):
                attribute += "_"
            self._weights[fed_names[name]] = attribute
            weight = _as_torch(value.copy())
            if weight.is_floating_point():
                self.register_parameter(attribute, torch.nn.Parameter(weight))
            else:
                self.register_buffer(attribute, weight)

    def _pair(self, wanted: tuple[str, ...]) -> _Pair:
        """The halves for these gradients, compiled when they are first wanted."""
        made = self._pairs.get(wanted)
        if made is None:
            forward, backward, found, handed = _with_gradients(self._fed, list(wanted), self._outputs, self._floating, self._memory)
            made = _Pair(forward.compile(threads=self._threads), backward.compile(threads=self._threads), set(found), handed)
            self._pairs[wanted] = made
        return made

    def forward(self, *args: Any, **named: Any) -> Any:
        # torch.compile would trace into the calls of the library. Its module takes seconds to load, so it serves here only where it is loaded already.
        if Function._apart is None and "torch._dynamo" in sys.modules:
            dynamo = importlib.import_module("torch._dynamo")  # waits for a thread that is loading it
            Function._apart = dynamo.disable(Function._evaluate)
        return (Function._apart or Function._evaluate)(self, *args, **named)

    def _evaluate(self, *args: Any, **named: Any) -> Any:
        if len(args) > len(self._inputs):
            raise ArgumentError(f"function: expected {len(self._inputs)} inputs ({', '.join(self._inputs)}), found {len(args)}")
        given = dict(zip(self._inputs, args))
        for name, value in named.items():
            if name not in self._inputs or name in given:
                raise ArgumentError(f"function: expected the inputs {', '.join(self._inputs)} once each, found '{name}'")
            given[name] = value
        names, tensors = [], []
        fixed: dict[str, Any] = {}
        lengths: dict[str, Any] = {}
        for name, attribute in self._weights.items():
            names.append(name)
            tensors.append(getattr(self, attribute))
        for name, value in given.items():
            if self._inputs[name].levels > 0:
                value, counts = _ragged(value, name)
                if counts is not None:
                    lengths[name] = counts
            if isinstance(value, torch.Tensor):
                names.append(name)
                tensors.append(value)
            else:
                fixed[name] = value
        call = _Call(self, names, fixed, lengths)
        differentiable = torch.is_grad_enabled() and self._floating
        wanted = tuple(name for name, tensor in zip(names, tensors) if tensor.requires_grad) if differentiable else ()
        made = _Run.apply(call, self._pair(wanted), *tensors) if wanted else call.outputs(call.run(self._run, tensors))
        outputs = {name: Ragged(one, call.made[name]) if name in call.made else one for name, one in zip(self._outputs, made)}
        return outputs[self._outputs[0]] if len(outputs) == 1 else outputs

    def extra_repr(self) -> str:
        return f"{self._fed.title}: {', '.join(self._inputs)} -> {', '.join(self._outputs)}"

    def program(self) -> Program:
        """The program with the Parameters as they are now, for `mr.run`, LiveModel and files."""
        return self._source.with_weights({name: getattr(self, self._weights[fed]).detach() for name, fed in self._fed_names.items()})


class _Input(NamedTuple):
    levels: int

    @staticmethod
    def of(kind: str) -> _Input:
        return _Input(int(kind.rpartition("lod=")[2]) if "lod=" in kind else 0)


def _is_rows(value: Any) -> bool:
    """Whether `value` is a sequence of rows, and no lengths."""
    return isinstance(value, torch.Tensor) and (value.dim() != 1 or value.is_floating_point())


def _ragged(value: Any, name: str) -> tuple[Any, Any]:
    """Rows, and their lengths where they stand beside them."""
    if isinstance(value, PackedSequence):
        padded, lengths = pad_packed_sequence(value, batch_first=True)
        counts = lengths.tolist()
        return torch.cat([one[:count] for one, count in zip(padded, counts)]), counts
    if isinstance(value, tuple) and len(value) == 2 and isinstance(value[0], torch.Tensor) and not _is_rows(value[1]):
        counts = value[1].tolist() if isinstance(value[1], torch.Tensor) else value[1]
        return value[0], counts
    if isinstance(value, (list, tuple)) and value and all(isinstance(one, torch.Tensor) for one in value):
        return torch.cat(list(value)), [len(one) for one in value]
    if isinstance(value, torch.Tensor):
        raise ArgumentError(f"function: expected sequences for input '{name}': a list of tensors, (rows, lengths) or a PackedSequence; found one tensor")
    return value, None


def function(program: Program, *, outputs: Sequence[str] | None = None, threads: int = 1, memory: str = "keep") -> Function:
    """A program as a differentiable module of PyTorch: `module = millrace.torch.function(program)`, `y = module(x)`.

    The program's weights are the module's Parameters (those that are no floats are buffers); `module.program()` gives them back in a program. Inputs go
    by position or by name, as tensors on the CPU, which are not copied where they are contiguous. An input with levels takes a list of tensors,
    (rows, lengths), or a PackedSequence. One output comes alone, several in a dict; one with levels as Ragged(rows, lengths). Values that backward reads are kept from the
    forward run until autograd frees its graph; under `torch.no_grad()` nothing is kept. Gradients of gradients are an
    UnsupportedError: build them into the program with mr.gradients.

    outputs: those that the module gives; default: all. memory: how backward loops get what their forward loops computed (mr.append_backward).
    """
    return Function(program, outputs, threads, memory)
