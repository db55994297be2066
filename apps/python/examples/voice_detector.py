# SPDX-License-Identifier: Apache-2.0
"""A detector of voice that is fed step by step, as a microphone would: 32 ms of samples at a time, its state carried from call to call.

The program is one step: from a frame of 512 samples and the state [1, 1] to a probability and the next state. The "microphone" is made here: noise,
and a voice of three harmonics between 1.0 and 2.2 seconds. The weights are set by hand: loudness in two bands against a threshold, smoothed over time.
"""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt

import millrace as mr

RATE, FRAME, BANDS = 16000, 512, 8


def filters() -> tuple[npt.NDArray[np.float32], npt.NDArray[np.float32]]:
    """Sine and cosine of a frequency for each band, windowed: [FRAME, BANDS]."""
    window = np.hanning(FRAME)[:, None]
    time = np.arange(FRAME)[:, None] / RATE
    frequencies = np.array([100, 200, 300, 400, 1000, 2000, 3500, 6000])[None, :]
    phase = 2 * np.pi * time * frequencies
    return (window * np.sin(phase)).astype(np.float32), (window * np.cos(phase)).astype(np.float32)


def detector() -> mr.Program:
    sine, cosine = filters()
    voice = np.array([[1, 1, 1, 1, 0, -1, -1, -1]], np.float32).T  # low bands for a voice, high ones against it
    program = mr.Program("voice detector")
    with program:
        samples = mr.input("samples", mr.f32, [1, FRAME])
        level = mr.input("level", mr.f32, [1, 1])
        s, c = samples @ mr.parameter("sine", sine), samples @ mr.parameter("cosine", cosine)
        energy = mr.log(s * s + c * c + 1e-3)  # [1, BANDS]
        now = energy @ mr.parameter("voice", voice)
        next_level = 0.7 * level + 0.3 * now
        mr.output("level", next_level)
        mr.output("probability", mr.sigmoid(next_level - 6.0))
    return program


def microphone() -> npt.NDArray[np.float32]:
    random = np.random.default_rng(0)
    time = np.arange(3 * RATE) / RATE
    voice = sum(np.sin(2 * np.pi * f * time) / k for k, f in enumerate((100, 200, 300), 1)) * ((time > 1.0) & (time < 2.2))
    made: npt.NDArray[np.float32] = (0.02 * random.standard_normal(time.shape) + 0.3 * voice).astype(np.float32)
    return made


def main() -> int:
    step = detector().compile()
    level: mr.Tensor | npt.NDArray[np.float32] = np.zeros((1, 1), np.float32)
    sound, heard, begin = microphone(), [], None
    for at in range(0, len(sound) - FRAME + 1, FRAME):
        result = step(samples=sound[at : at + FRAME][None, :], level=level)
        level = result["level"]  # goes back in as it came: no copy
        speaking = result["probability"].item() > 0.5
        if speaking and begin is None:
            begin = at / RATE
        if not speaking and begin is not None:
            heard.append((begin, at / RATE))
            begin = None
    for first, last in heard:
        print(f"voice from {first:.2f} s to {last:.2f} s")
    right = len(heard) == 1 and abs(heard[0][0] - 1.0) < 0.2 and abs(heard[0][1] - 2.2) < 0.3
    return 0 if right else 1


if __name__ == "__main__":
    sys.exit(main())
