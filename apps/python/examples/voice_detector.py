# SPDX-License-Identifier: Apache-2.0
"""A live detector of voice: one model listens to several microphones, whose samples arrive 32 ms at a time.

The program works on whole sequences of frames of 512 samples; mr.LiveModel keeps it live, with a state for each microphone. The "microphones" are made
here: noise, and a voice of three harmonics at another time for each. The weights are set by hand: loudness in two bands against a threshold, smoothed.
"""

from __future__ import annotations

import asyncio
import sys
from typing import AsyncIterator

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
        samples = mr.input("samples", mr.f32, [None, FRAME], lod=1)
        s, c = samples @ mr.parameter("sine", sine), samples @ mr.parameter("cosine", cosine)
        energy = mr.log(s * s + c * c + 1e-3)  # [frames, BANDS]
        now = energy @ mr.parameter("voice", voice)
        with mr.DynamicRNN() as smooth:
            loudness, level = smooth.step_input(now), smooth.memory(shape=[1])
            following = 0.7 * level + 0.3 * loudness
            smooth.update_memory(level, following)
            smooth.output(following)
        mr.output("probability", mr.sigmoid(smooth() - 6.0))
    return program


async def microphone(seed: int, begin: float, end: float) -> AsyncIterator[npt.NDArray[np.float32]]:
    """Three seconds of sound, a frame at a time, as fast as the detector takes them."""
    random = np.random.default_rng(seed)
    time = np.arange(3 * RATE) / RATE
    voice = sum(np.sin(2 * np.pi * f * time) / k for k, f in enumerate((100, 200, 300), 1)) * ((time > begin) & (time < end))
    sound = (0.02 * random.standard_normal(time.shape) + 0.3 * voice).astype(np.float32)
    for at in range(0, len(sound) - FRAME + 1, FRAME):
        yield sound[at : at + FRAME][None, :]
        await asyncio.sleep(0)


async def listen(model: mr.LiveModel, name: str, source: AsyncIterator[npt.NDArray[np.float32]]) -> list[tuple[float, float]]:
    """Where there was a voice, told as it is heard."""
    heard: list[tuple[float, float]] = []
    begin: float | None = None
    frame = 0
    async with model.session(name) as session:
        feeding = asyncio.create_task(session.feed(source))
        async for made in session:
            for probability in made["probability"].numpy()[:, 0]:
                if probability > 0.5 and begin is None:
                    begin = frame * FRAME / RATE
                if probability <= 0.5 and begin is not None:
                    heard.append((begin, frame * FRAME / RATE))
                    print(f"{name}: voice from {begin:.2f} s to {heard[-1][1]:.2f} s")
                    begin = None
                frame += 1
        await feeding
    return heard


async def main() -> int:
    model = mr.LiveModel(detector())
    spoken = {"kitchen": (1.0, 2.2), "hall": (0.4, 1.1), "garden": (1.5, 2.0)}
    sources = [microphone(seed, *times) for seed, times in enumerate(spoken.values())]
    all_heard = await asyncio.gather(*(listen(model, name, source) for name, source in zip(spoken, sources)))
    right = [len(heard) == 1 and abs(heard[0][0] - begin) < 0.2 and abs(heard[0][1] - end) < 0.3 for heard, (begin, end) in zip(all_heard, spoken.values())]
    return 0 if all(right) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
