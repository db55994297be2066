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

import atexit as _atexit

from ._core import *  # noqa: F401,F403  (all of it is public but names that begin with _)
from ._core import DType as DType
from ._core import TensorArray as TensorArray
from ._core import _shut_down, while_loop
from . import layers as layers  # behind the extension module's own
from ._torch import from_torch as from_torch

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

_atexit.register(_shut_down)
