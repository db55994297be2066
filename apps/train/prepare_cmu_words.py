#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Words and their phonemes out of Debian's festlex-cmu, for cmu_words.toml.

    apt-get install festlex-cmu python3-numpy
    apps/train/prepare_cmu_words.py cmu_words            # seconds, 10 MB

`rows` are numbers of letters, `labels` numbers of phonemes without stress; letters.txt and phonemes.txt name them. A word is in one part alone, with the
first of its pronunciations: by its CRC-32, one in a hundred is for the test, one in a hundred for the validation."""

import argparse
import pathlib
import re
import zlib

import numpy as np

LEXICON = "/usr/share/festival/dicts/cmu/cmudict-0.4.out"
ENTRY = re.compile(r'^\("([^"]+)"\s+\S+\s+\((.*)\)\)$')


def words_of(path):
    """(word, phonemes) of each line, such as ("aaron" nil (((eh) 1) ((r ax n) 0)))."""
    seen = {}
    for line in path.read_text().splitlines():
        entry = ENTRY.match(line.strip())
        if entry:
            phonemes = re.sub(r"[()0-9]", " ", entry[2]).split()
            if phonemes:
                seen.setdefault(entry[1], phonemes)
    return seen


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=pathlib.Path)
    parser.add_argument("--lexicon", type=pathlib.Path, default=pathlib.Path(LEXICON))
    flags = parser.parse_args()
    if not flags.lexicon.exists():
        raise SystemExit(f"{flags.lexicon}: not found: install the Debian package festlex-cmu")
    words = words_of(flags.lexicon)
    letters = sorted({letter for word in words for letter in word})
    phonemes = sorted({phoneme for all_phonemes in words.values() for phoneme in all_phonemes})
    parts = {"train": [], "validation": [], "test": []}
    for word in sorted(words):
        which = zlib.crc32(word.encode()) % 100
        parts["test" if which == 0 else "validation" if which == 1 else "train"].append(word)
    flags.output.mkdir(parents=True, exist_ok=True)
    for name, chosen in parts.items():
        spelled = [[letters.index(letter) for letter in word] for word in chosen]
        spoken = [[phonemes.index(phoneme) for phoneme in words[word]] for word in chosen]
        np.savez(flags.output / f"{name}.npz", rows=np.concatenate(spelled), lengths=np.array([len(word) for word in spelled]),
                 labels=np.concatenate(spoken), label_lengths=np.array([len(word) for word in spoken]))
        print(f"{flags.output}/{name}.npz: {len(chosen)} words, {sum(map(len, spoken))} phonemes")
    (flags.output / "letters.txt").write_text("\n".join(letters) + "\n")
    (flags.output / "phonemes.txt").write_text("\n".join(phonemes) + "\n")
    print(f"{len(letters)} letters, {len(phonemes)} phonemes")


if __name__ == "__main__":
    main()
