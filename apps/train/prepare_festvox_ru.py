#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Phones per frame out of Debian's festvox-ru, for festvox_ru_*.toml: 620 sentences read aloud, with a label for each phone.

    apt-get install festvox-ru python3-numpy
    apps/train/prepare_festvox_ru.py festvox_ru          # about a minute, 95 MB

A row is two frames of 10 ms, each 40 logarithms of mel energies (windows of 25 ms). Its label is the phone in the middle of the 20 ms. Every tenth
sentence is for the test. `phones.txt` names the labels."""

import argparse
import pathlib
import wave

import numpy as np

VOICE = "/usr/share/festival/voices/russian/msu_ru_nsh_clunits"
RATE, WINDOW, HOP, POINTS, BANDS, STACKED = 16000, 400, 160, 512, 40, 2


def mel_filters():
    """[POINTS / 2 + 1, BANDS]: triangles, evenly spaced on the mel scale from 0 Hz to half the rate."""
    edges = 700 * (10 ** (np.linspace(0, 2595 * np.log10(1 + RATE / 2 / 700), BANDS + 2) / 2595) - 1)
    hertz = np.arange(POINTS // 2 + 1) * RATE / POINTS
    rising = (hertz[:, None] - edges[:-2]) / (edges[1:-1] - edges[:-2])
    falling = (edges[2:] - hertz[:, None]) / (edges[2:] - edges[1:-1])
    return np.maximum(0, np.minimum(rising, falling))


def log_mels(samples, filters):
    """f32 [frames, BANDS]."""
    frames = 1 + (len(samples) - WINDOW) // HOP
    if frames < 1:
        return np.zeros((0, BANDS), np.float32)
    windows = np.lib.stride_tricks.sliding_window_view(samples, WINDOW)[::HOP] * np.hanning(WINDOW)
    power = np.abs(np.fft.rfft(windows, POINTS)) ** 2
    return np.log(power @ filters + 1e-6).astype(np.float32)


def read_wave(path):
    with wave.open(str(path)) as sound:
        if (sound.getframerate(), sound.getnchannels(), sound.getsampwidth()) != (RATE, 1, 2):
            raise SystemExit(f"{path}: expected one channel of 16 bits at {RATE} Hz")
        return np.frombuffer(sound.readframes(sound.getnframes()), "<i2") / 32768


def read_labels(path):
    """Ends in seconds, and the phone that ends there."""
    lines = path.read_text().split("#", 1)[1].split("\n")
    words = [line.split() for line in lines if line.strip()]
    return np.array([float(word[0]) for word in words]), [word[2] for word in words]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--voice", type=pathlib.Path, default=pathlib.Path(VOICE))
    flags = parser.parse_args()
    names = sorted(path.stem for path in (flags.voice / "lab").glob("*.lab"))
    if not names:
        raise SystemExit(f"{flags.voice}/lab: expected files *.lab, found none: install the Debian package festvox-ru")
    labelled = {name: read_labels(flags.voice / "lab" / f"{name}.lab") for name in names}
    phones = sorted({phone for _, all_phones in labelled.values() for phone in all_phones})
    number = {phone: i for i, phone in enumerate(phones)}
    filters = mel_filters()
    parts = {"train": ([], []), "test": ([], [])}
    for i, name in enumerate(names):
        mels = log_mels(read_wave(flags.voice / "wav" / f"{name}.wav"), filters)
        rows = mels[: len(mels) // STACKED * STACKED].reshape(-1, STACKED * BANDS)
        middles = (np.arange(len(rows)) * STACKED * HOP + (WINDOW + (STACKED - 1) * HOP) / 2) / RATE
        ends, spoken = labelled[name]
        at = np.minimum(np.searchsorted(ends, middles, side="right"), len(ends) - 1)
        part = parts["test" if i % 10 == 9 else "train"]
        part[0].append(rows)
        part[1].append(np.array([number[phone] for phone in spoken])[at])
    flags.output.mkdir(parents=True, exist_ok=True)
    for name, (rows, labels) in parts.items():
        np.savez(flags.output / f"{name}.npz", rows=np.concatenate(rows), lengths=np.array([len(each) for each in rows]),
                 labels=np.concatenate(labels))
        print(f"{flags.output}/{name}.npz: {len(rows)} sentences, {sum(map(len, rows))} rows")
    (flags.output / "phones.txt").write_text("\n".join(phones) + "\n")
    counts = np.bincount(np.concatenate(parts["test"][1]))
    print(f"{len(phones)} phones; the commonest is {counts.max() / counts.sum():.1%} of the rows of the test")


if __name__ == "__main__":
    main()
