# SPDX-License-Identifier: Apache-2.0
"""Millrace: recurrent loops over sequences of any length, without padding.

    import millrace as mr

    program = mr.Program()
    with program:
        x = mr.input("x", mr.f32, [None, 2], lod=1)          # rows of two elements, in sequences
        U, W = mr.parameter("U", u), mr.parameter("W", w)
        with mr.DynamicRNN() as rnn:
            x_t, h = rnn.step_input(x), rnn.memory(shape=[2])
            state = mr.sigmoid(h @ U + x_t @ W)
            rnn.update_memory(h, state)
            rnn.output(state)
        mr.output("y", rnn())
    y = mr.run(program, x=mr.ragged([a, b, c]))["y"]          # a, b, c: arrays [n, 2]

docs/python.md is the guide. Arrays go in and out without a copy; NumPy and PyTorch are never imported unless they are asked for.
"""

from __future__ import annotations

import atexit as _atexit
import copyreg as _copyreg

from . import _interpreter  # before the extension module
from ._core import *  # noqa: F401,F403  (all of it is public but names that begin with _)
from ._core import DType as DType
from ._core import Program as Program
from ._core import TensorArray as TensorArray
from ._core import _shut_down, while_loop
from . import layers as layers  # behind the extension module's own

__version__ = "0.1.0"

f64 = DType.f64
f32 = DType.f32
f16 = DType.f16
bf16 = DType.bf16
i64 = DType.i64
i32 = DType.i32
i8 = DType.i8
u8 = DType.u8
bool_ = DType.bool

create_whileloop = while_loop
"""The designs' name for `while_loop`."""

TYPE_CHECKING = False  # as typing has it, whose import costs more than this module's
if TYPE_CHECKING:
    from typing import Any, Sequence

    from . import live as live
    from .live import LiveBatch as LiveBatch
    from .live import LiveModel as LiveModel
    from .live import LiveProgram as LiveProgram
    from .live import LiveSession as LiveSession
    from .live import RemoteSession as RemoteSession
    from .live import Served as Served
    from .live import Server as Server
    from .live import connect as connect
    from .live import serve as serve
    from .training import Epoch as Epoch
    from .training import Score as Score
    from .training import TrainCurve as TrainCurve
    from .training import TrainResult as TrainResult
    from .training import train as train
    from .training import train_curve as train_curve

_LAZY = {
    **dict.fromkeys(["LiveBatch", "LiveModel", "LiveProgram", "LiveSession", "RemoteSession", "Served", "Server", "connect", "serve"], "live"),
    **dict.fromkeys(["Epoch", "Score", "TrainCurve", "TrainResult", "train", "train_curve"], "training"),
}
_MODULES = ("live", "torch", "training")


def __getattr__(name: str) -> Any:
    """Imports what needs asyncio or PyTorch when it is first used, so that `import millrace` stays quick."""
    import importlib

    if name in _MODULES:
        return importlib.import_module(f"millrace.{name}")
    if name not in _LAZY:
        raise AttributeError(f"module 'millrace' has no attribute '{name}'")
    found = getattr(importlib.import_module(f"millrace.{_LAZY[name]}"), name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *_LAZY, *_MODULES})


def from_torch(module: Any, example_inputs: Sequence[Any] | None = None, *, ragged: bool = True, **export_options: Any) -> Program:
    """A module of PyTorch as a Program.

    Of nn.LSTM, nn.GRU, nn.RNN, nn.Linear, nn.Embedding, nn.LayerNorm, activations, and nn.Sequential of them: input `x`, with `ragged` the rows
    [rows, C] of sequences of any lengths (lod=1), else dense: rank 3, [T, N, C], or [N, T, C] of a module with batch_first; rank 2, [T, N], of
    an nn.Embedding. T and N are those of a run; an input of another rank, as PyTorch's [T, C] of one sequence, is a ShapeError. Output
    `y` [.., H]; of a single recurrent module also `h` (and `c`): the last state of each sequence, as PyTorch stacks them, [layers * directions, N, H].

    With `example_inputs` any module that `torch.onnx.export` takes; `export_options` go there (`input_names`, `dynamic_axes`, …). Weights are
    copied. UnsupportedError names what has no counterpart.
    """
    from . import _torch

    return _torch.from_torch(module, example_inputs, ragged=ragged, **export_options)


def _reduce_io_error(error: Any) -> tuple[Any, ...]:
    """For pickle: OSError's own leaves out the attributes that are no arguments."""
    state = {name: getattr(error, name) for name in ("errno", "strerror", "filename") if getattr(error, name) is not None}
    return type(error), error.args, {**vars(error), **state}


for _kind in ("IoError", "FileNotFoundError", "PermissionError", "ConnectionRefusedError"):
    _copyreg.pickle(globals()[_kind], _reduce_io_error)
_atexit.register(_shut_down)
