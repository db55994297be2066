# SPDX-License-Identifier: Apache-2.0
"""Gradients of the recurrent layers and of CTC are those of torch on the same weights: packed sequences, both directions, two layers,
projection, last states, a GRU with its reset before the product, sequences without rows, targets without labels. Torch computes in f64, ours
in f32, within 1e-5 of the greatest element. Prints the seed; MILLRACE_SEED runs one."""
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

SMALL = {"features": 4, "hidden": 5, "lengths": [4, 1, 7, 3]}
EMPTY = {"features": 3, "hidden": 6, "lengths": [0, 4, 0, 2, 9, 1, 0]}
LARGE = {"features": 17, "hidden": 40, "lengths": [0, 50, 3, 31, 50, 0, 8, 1, 22, 13]}


class GruBefore(torch.nn.GRU):
    """One direction of a GRU whose reset gate multiplies the state before the product: ONNX with linear_before_reset = 0."""

    def forward(self, x, h):
        def gates(w, b, v, names):
            return [v @ w[k * self.hidden_size:(k + 1) * self.hidden_size].T + b[k * self.hidden_size:(k + 1) * self.hidden_size] for k in names]
        ys = []
        for row in x:
            r, z, n = gates(self.weight_ih_l0, self.bias_ih_l0, row, range(3))
            hr, hz = gates(self.weight_hh_l0, self.bias_hh_l0, h, range(2))
            r, z = torch.sigmoid(r + hr), torch.sigmoid(z + hz)
            n = torch.tanh(n + gates(self.weight_hh_l0, self.bias_hh_l0, r * h, [2])[0])
            h = z * h + (1 - z) * n
            ys.append(h)
        return torch.stack(ys), h


def forward(net, rows):
    """The outputs of all rows, and the last states of each layer and direction, over sequences of at least one row."""
    if isinstance(net, GruBefore):
        made = [net(row, torch.zeros(net.hidden_size, dtype=torch.float64)) for row in rows]
        return torch.cat([y for y, _ in made]), {"h": torch.stack([h for _, h in made])[None]}
    y, last = net(torch.nn.utils.rnn.pack_sequence(rows, enforce_sorted=False))
    y, lengths = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first=True)
    last = last if isinstance(last, tuple) else (last,)
    return torch.cat([y[i, :length] for i, length in enumerate(lengths)]), dict(zip("hc", last))


def write(folder, title, net, tensors):
    """Rounds to the f32 that they are."""
    for k, suffix in enumerate([name[len("weight_ih_"):] for name, _ in net.named_parameters() if name.startswith("weight_ih_")]):
        for name in ["weight_ih", "weight_hh", "bias_ih", "bias_hh", "weight_hr"]:
            weight = getattr(net, f"{name}_{suffix}", None)
            if weight is not None:
                tensors[f"{name}.{k}"] = weight
                tensors[f"want_{name}.{k}"] = weight.grad
    arrays = {name: value.detach().numpy() for name, value in tensors.items()}
    np.savez(os.path.join(folder, title), **{name: a.astype(np.float32) if a.dtype == np.float64 else a for name, a in arrays.items()})


def rows_of(lengths, features):
    return [torch.randn(length, features).double().requires_grad_(True) for length in lengths]


def grads(rows):
    return torch.cat([torch.zeros_like(row) if row.grad is None else row.grad for row in rows])


def layers(folder, number, kind, count, bidirectional, sizes, projection=0):
    """One case as an .npz file: weights, packed rows, the gradients of y and of the last states, and the gradients that torch finds."""
    c, lengths = sizes["features"], sizes["lengths"]
    more = {"proj_size": projection} if projection else {}
    made = GruBefore if kind == "GRU-before" else getattr(torch.nn, kind)
    net = made(c, sizes["hidden"], num_layers=count, bidirectional=bidirectional, **more).double()
    for parameter in net.parameters():
        parameter.data = parameter.data.float().double()
    rows = rows_of(lengths, c)
    y, last = forward(net, [row for row in rows if len(row)])
    dy = torch.randn_like(y.float()).double()
    tensors = {"x": torch.cat(rows), "lens": torch.tensor(lengths), "dy": dy, "want_y": y}
    loss = (y * dy).sum()
    full = [i for i, length in enumerate(lengths) if length]
    for name, value in last.items():
        for k in range(len(value)):
            d = torch.randn(len(lengths), value.shape[-1]).double()  # those of empty sequences reach nothing
            tensors[f"d{name}.{k}"] = d
            loss = loss + (value[k] * d[full]).sum()
    loss.backward()
    tensors["want_x"] = grads(rows)
    direction = "bidirectional" if bidirectional else "forward"
    write(folder, f"{number:03d}-{kind.lower()}-{direction}-{count}.npz", net, tensors)


def ctc(folder, number, lengths, labels, zero_infinity):
    """A bidirectional GRU, a product, and the mean over sequences of CTC's loss; class 0 is the blank."""
    c, hidden, classes = 3, 5, 4
    net = torch.nn.GRU(c, hidden, bidirectional=True).double()
    weight = torch.randn(2 * hidden, classes)
    for parameter in net.parameters():
        parameter.data = parameter.data.float().double()
    rows, weight = rows_of(lengths, c), weight.double().requires_grad_(True)
    full = [i for i, length in enumerate(lengths) if length]
    y, _ = forward(net, [rows[i] for i in full])
    said = torch.log_softmax(y @ weight, -1)
    loss, at = 0, 0
    for i in full:
        loss = loss + torch.nn.functional.ctc_loss(said[at:at + lengths[i], None], torch.tensor([labels[i]], dtype=torch.long), [lengths[i]],
                                                   [len(labels[i])], reduction="none", zero_infinity=zero_infinity).sum()
        at += lengths[i]
    loss = loss / len(lengths)
    loss.backward()
    tensors = {"x": torch.cat(rows), "lens": torch.tensor(lengths), "labels": torch.tensor(sum(labels, []), dtype=torch.long),
               "label_lens": torch.tensor([len(each) for each in labels]), "want_loss": loss[None], "want_x": grads(rows),
               "weight": weight, "want_weight": weight.grad}
    write(folder, f"{number:03d}-gru-ctc-{'zero' if zero_infinity else 'infinite'}-bidirectional.npz", net, tensors)


for seed in seeds(range(1, 4)):
    print(f"seed {seed}", flush=True)
    torch.manual_seed(seed)
    with tempfile.TemporaryDirectory() as folder:
        count = 0
        for sizes in [SMALL, EMPTY] + ([LARGE] if seed % 2 else []):
            for kind in ("RNN", "LSTM", "GRU"):
                for deep in (1, 2):
                    for bidirectional in (False, True):
                        layers(folder, count, kind, deep, bidirectional, sizes)
                        count += 1
            for deep, bidirectional in [(1, False), (1, True), (2, False), (2, True)]:
                layers(folder, count, "LSTM", deep, bidirectional, sizes, projection=3)
                count += 1
            layers(folder, count, "GRU-before", 1, False, sizes)
            count += 1
        ctc(folder, count, [6, 3, 1, 9, 4], [[1, 2], [3, 3], [], [1, 1, 2, 3], []], False)
        ctc(folder, count + 1, [2, 7, 0, 3, 0, 1], [[1, 1], [2], [], [1, 2, 3], [1], [2, 2]], True)
        count += 2
        command = [TEST_RUNTIME, "--test-case=gradients of layers are those that another library found"]
        done = subprocess.run(command, env={**os.environ, "MILLRACE_GRADIENT_CASES": folder}, capture_output=True, text=True, timeout=250)
        assert done.returncode == 0, done.stdout + done.stderr
        assert f"{count} cases" in done.stdout, done.stdout
    print(f"{count} cases")
