# SPDX-License-Identifier: Apache-2.0
"""Programs that several tests run."""

import numpy as np

import millrace as mr


def listing(u, w, sorted=True):
    """The canonical listing, as tests/runtime/builder/listing_test.cpp has it in C++."""
    program = mr.Program("listing")
    with program:
        x = mr.input("x", mr.f32, [None, w.shape[0]], lod=1)
        boot_state = mr.input("boot", mr.f32, [None, u.shape[0]])
        U = mr.parameter("U", u)
        W = mr.parameter("W", w)

        steps, order = mr.unpack(x, 0, sorted)
        n = steps.size()
        states, outputs = mr.TensorArray(n, order, name="states"), mr.TensorArray(n, order, name="outputs")
        step = mr.constant(0)
        wloop = mr.while_loop([step])
        with wloop.frame():
            wloop.break_if(mr.equal(step, n))
            step_input = steps.read(step)
            pre_state = mr.shrink(states.read(step - 1, boot_state), step_input)
            state = mr.sigmoid(pre_state @ U + step_input @ W)
            states.write(step, state)
            outputs.write(step, state, data_shared=True)
            step.update(step + 1)
        y = mr.pack(outputs, 0, order)
        mr.output("y", y)
    return program


def listing_by_numpy(sequences, boot, u, w):
    """The same, sequence by sequence."""
    made = []
    for rows, state in zip(sequences, boot):
        states = []
        for row in rows:
            state = 1 / (1 + np.exp(-(state @ u + row @ w)))
            states.append(state)
        made.append(np.array(states, dtype=np.float32).reshape(len(states), u.shape[0]))
    return made


def case_25(sorted=True):
    return listing(np.array([[0.7]], np.float32), np.array([[-0.3]], np.float32), sorted)


def counting(limit_is_input=True):
    """A loop that counts to `limit`, one iteration after the other."""
    program = mr.Program("counting")
    with program:
        limit = mr.input("limit", mr.i64, [])
        i = mr.Var(0)
        loop = mr.while_loop([i])
        with loop.frame():
            loop.break_if(i >= limit)
            i.update(i + 1)
        mr.output("i", i)
    return program


def random_sequences(random, width, most=12, count=None):
    count = random.integers(0, 9) if count is None else count
    return [random.standard_normal((random.integers(0, most), width)).astype(np.float32) for _ in range(count)]
