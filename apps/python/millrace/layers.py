# SPDX-License-Identifier: Apache-2.0
"""Layers: functions that append to the program that is being built. Weights are arrays of NumPy or PyTorch; they are copied."""

from ._core.layers import *  # noqa: F401,F403
