# SPDX-License-Identifier: Apache-2.0
"""Gradients of the recurrent layers are those of torch.nn on the same weights: packed sequences, both directions, two layers, projection,
f32 within 1e-5 of the greatest element. Prints the seed; MILLRACE_SEED runs one."""
import os
import subprocess
import sys
import tempfile

try:
    import numpy as np
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from oracle import TEST_RUNTIME, need, seeds

need(TEST_RUNTIME)


def run(folder, number, kind, layers, bidirectional, projection=0):
    """One case as an .npz file: weights, packed rows, the gradient of y, and the gradients that torch finds."""
    c, hidden = 4, 5
    lengths = [4, 1, 7, 3]
    more = {"proj_size": projection} if projection else {}
    net = getattr(torch.nn, kind)(c, hidden, num_layers=layers, bidirectional=bidirectional, **more)
    rows = [torch.randn(length, c, requires_grad=True) for length in lengths]
    packed = torch.nn.utils.rnn.pack_sequence(rows, enforce_sorted=False)
    y, _ = net(packed)
    y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first=True)
    outputs = torch.cat([y[i, :length] for i, length in enumerate(lengths)])
    dy = torch.randn_like(outputs)
    (outputs * dy).sum().backward()
    tensors = {"x": torch.cat(rows), "lens": torch.tensor(lengths), "dy": dy, "want_y": outputs,
               "want_x": torch.cat([row.grad for row in rows])}
    for k in range(layers * (2 if bidirectional else 1)):
        directions = 2 if bidirectional else 1
        suffix = f"l{k // directions}" + ("_reverse" if k % directions else "")
        for name in ["weight_ih", "weight_hh", "bias_ih", "bias_hh"] + (["weight_hr"] if projection else []):
            weight = getattr(net, f"{name}_{suffix}")
            tensors[f"{name}.{k}"] = weight
            tensors[f"want_{name}.{k}"] = weight.grad
    title = f"{number:03d}-{kind.lower()}-{'bidirectional' if bidirectional else 'forward'}-{layers}.npz"
    np.savez(os.path.join(folder, title), **{name: value.detach().numpy() for name, value in tensors.items()})


for seed in seeds(range(1, 4)):
    print(f"seed {seed}", flush=True)
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        count = 0
        for kind in ("RNN", "LSTM", "GRU"):
            for layers in (1, 2):
                for bidirectional in (False, True):
                    run(folder, count, kind, layers, bidirectional)
                    count += 1
        run(folder, count, "LSTM", 1, False, projection=3)
        run(folder, count + 1, "LSTM", 2, True, projection=3)
        command = [TEST_RUNTIME, "--test-case=gradients of layers are those that another library found"]
        done = subprocess.run(command, env={**os.environ, "MILLRACE_GRADIENT_CASES": folder}, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{count + 2} cases" in done.stdout, done.stdout
