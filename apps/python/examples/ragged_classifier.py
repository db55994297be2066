# SPDX-License-Identifier: Apache-2.0
"""A classifier of sentences of different lengths, without padding: embedding, bidirectional GRU, maximum over time, linear.

The weights are random. Sentences may be empty: theirs is the class of no words at all.
"""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt

import millrace as mr

WORDS, WIDTH, HIDDEN, CLASSES = 100, 16, 24, 4


def weights(random: np.random.Generator, *shape: int) -> npt.NDArray[np.float32]:
    made: npt.NDArray[np.float32] = (random.standard_normal(shape) / np.sqrt(shape[-1])).astype(np.float32)
    return made


def classifier(random: np.random.Generator) -> mr.Program:
    program = mr.Program("ragged classifier")
    with program:
        ids = mr.input("ids", mr.i64, [None], lod=1)  # the words of all sentences, one behind the other
        embedded = mr.layers.embedding(ids, weights(random, WORDS, WIDTH))
        both = [
            mr.layers.GruWeights(weights(random, WIDTH, 3 * HIDDEN), weights(random, HIDDEN, 3 * HIDDEN), weights(random, 3 * HIDDEN), weights(random, 3 * HIDDEN))
            for _ in range(2)
        ]
        read = mr.layers.gru(embedded, both, direction="bidirectional").y  # [words, 2 HIDDEN]
        sentence = mr.sequence_pool(read, "max")  # [sentences, 2 HIDDEN]
        scores = mr.layers.linear(sentence, weights(random, 2 * HIDDEN, CLASSES), weights(random, CLASSES))
        mr.output("probabilities", mr.softmax(scores))
        mr.output("class", mr.argmax(scores))
    return program


def main() -> int:
    random = np.random.default_rng(2017)
    compiled = classifier(random).compile()
    sentences = [random.integers(0, WORDS, length) for length in (7, 1, 0, 23, 4)]
    result = compiled(ids=mr.ragged(sentences))
    probabilities = result["probabilities"].numpy()
    for sentence, probability, best in zip(sentences, probabilities, result["class"].tolist()):
        print(f"{len(sentence):3} words: class {best}, {probability[best]:.3f}")
    # A sentence has the same bits alone and in a crowd.
    for index, sentence in enumerate(sentences):
        alone = compiled(ids=mr.ragged([sentence]))["probabilities"].numpy()
        if alone[0].tobytes() != probabilities[index].tobytes():
            print(f"sentence {index} differs alone", file=sys.stderr)
            return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
