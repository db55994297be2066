# SPDX-License-Identifier: Apache-2.0
"""A classifier of sentences of different lengths that is trained, without padding: embedding, bidirectional GRU, maximum over time, linear.

The sentences are made here: words are numbers, and the class of a sentence is the one whose words it holds most of; of no words at all it is class 0.
"""

from __future__ import annotations

import sys

import numpy as np
import numpy.typing as npt

import millrace as mr

WORDS, WIDTH, HIDDEN, CLASSES = 60, 16, 16, 3
Sentences = list[npt.NDArray[np.int64]]


def weights(random: np.random.Generator, *shape: int) -> npt.NDArray[np.float32]:
    made: npt.NDArray[np.float32] = (random.standard_normal(shape) / np.sqrt(shape[0])).astype(np.float32)
    return made


def classifier(random: np.random.Generator) -> mr.Program:
    program = mr.Program("ragged classifier")
    with program:
        ids = mr.input("ids", mr.i64, [None], lod=1)  # the words of all sentences, one behind the other
        target = mr.input("target", mr.i64, [None])  # a class for each sentence
        embedded = mr.layers.embedding(ids, weights(random, WORDS, WIDTH))
        both = [
            mr.layers.GruWeights(weights(random, WIDTH, 3 * HIDDEN), weights(random, HIDDEN, 3 * HIDDEN), np.zeros(3 * HIDDEN, np.float32), np.zeros(3 * HIDDEN, np.float32))
            for _ in range(2)
        ]
        read = mr.layers.gru(embedded, both, direction="bidirectional").y  # [words, 2 HIDDEN]
        sentence = mr.sequence_pool(read, "max")  # [sentences, 2 HIDDEN]
        scores = mr.layers.linear(sentence, weights(random, 2 * HIDDEN, CLASSES), np.zeros(CLASSES, np.float32))
        mr.output("probabilities", mr.softmax(scores))
        mr.output("class", mr.argmax(scores))
        mr.output("loss", mr.softmax_cross_entropy_loss(scores, target))
    return program


def examples(random: np.random.Generator, count: int) -> tuple[Sentences, npt.NDArray[np.int64]]:
    """A word w speaks for class w % CLASSES; a sentence leans to one of them."""
    sentences: Sentences = []
    for _ in range(count):
        words = random.integers(0, WORDS, random.integers(0, 20))
        lean = random.integers(0, CLASSES)
        words[random.random(len(words)) < 0.5] = lean + CLASSES * random.integers(0, WORDS // CLASSES)
        sentences.append(words)
    return sentences, np.array([np.bincount(words % CLASSES, minlength=CLASSES).argmax() for words in sentences])


def accuracy(found: npt.NDArray[np.int64], wanted: npt.NDArray[np.int64]) -> float:
    return float((found == wanted).mean())


def main() -> int:
    random = np.random.default_rng(2017)
    sentences, classes = examples(random, 600)
    unseen, unseen_classes = examples(random, 200)
    trainer = mr.Trainer(classifier(random), mr.AdamW(), mr.Schedule("cosine", 0.02, warmup=10, decay_steps=140), clip_norm=1.0)
    for epoch in range(8):
        order = random.permutation(len(sentences))
        losses: list[float] = []
        for at in range(0, len(order), 32):
            chosen = order[at : at + 32]
            losses.append(trainer.step(ids=mr.ragged([sentences[i] for i in chosen], dtype=mr.i64), target=classes[chosen]).loss)
        result = trainer.evaluate(ids=mr.ragged(unseen, dtype=mr.i64), target=unseen_classes)
        print(f"epoch {epoch + 1}: loss {np.mean(losses):.3f}, unseen sentences right {accuracy(result['class'].numpy(), unseen_classes):.0%}")
    compiled = trainer.trained(["probabilities", "class"]).compile()
    crowd = compiled(ids=mr.ragged(unseen, dtype=mr.i64))
    probabilities = crowd["probabilities"].numpy()
    # A sentence has the same bits alone and in a crowd.
    for index in range(0, len(unseen), 17):
        alone = compiled(ids=mr.ragged([unseen[index]], dtype=mr.i64))["probabilities"].numpy()
        if alone[0].tobytes() != probabilities[index].tobytes():
            print(f"sentence {index} differs alone", file=sys.stderr)
            return 1
    return 0 if accuracy(crowd["class"].numpy(), unseen_classes) > 0.8 else 1


if __name__ == "__main__":
    sys.exit(main())
