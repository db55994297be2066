# SPDX-License-Identifier: Apache-2.0
"""`millrace train` takes the steps that PyTorch takes: the same weights, ragged rows as a packed sequence, each optimizer, clipping. In f64,
within 1e-9. Prints the seed; MILLRACE_SEED runs one."""
import json
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

from oracle import MILLRACE, need, seeds

need(MILLRACE)

CONFIG = """epochs = {epochs}
seed = {seed}
[data]
train = "train.npz"
{targets}
[[layer]]
kind = "{kind}"
units = 5
direction = "{direction}"
[training]
batch_sequences = 0
batch_rows = 100000
learning_rate = {rate}
{more}
"""


def safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    size = int.from_bytes(data[:8], "little")
    header = json.loads(data[8:8 + size])
    header.pop("__metadata__", None)
    types = {"F64": np.float64, "F32": np.float32}
    return {name: np.frombuffer(data[8 + size + entry["data_offsets"][0]:8 + size + entry["data_offsets"][1]],
                                types[entry["dtype"]]).reshape(entry["shape"]) for name, entry in header.items()}


def train(folder, **given):
    """The weights after the job."""
    path = os.path.join(folder, "c.toml")
    with open(path, "w") as file:
        file.write(CONFIG.format(**given))
    done = subprocess.run([MILLRACE, "train", path, "--output", os.path.join(folder, "out"), "--quiet"], capture_output=True, text=True, timeout=120)
    if "this build reads no TOML" in done.stderr:
        print("skipped: no TOML in this build")
        sys.exit(77)
    assert done.returncode == 0, done.stderr
    return joined(safetensors(os.path.join(folder, "out", "model.safetensors")))


def joined(weights):
    """With the recurrent weights of a GRU's gates and of its candidate as one."""
    made = {name: value for name, value in weights.items() if "_recurrent_gates" not in name and "_recurrent_candidate" not in name}
    for name, value in weights.items():
        if "_recurrent_gates" in name:
            other = weights[name.replace("_gates", "_candidate")]
            made[name.replace("_recurrent_gates", "_recurrent")] = np.concatenate([value, other], -1)
    return made


class Net(torch.nn.Module):
    def __init__(self, kind, direction, features, classes, per_row):
        super().__init__()
        both = direction == "bidirectional"
        self.rnn = getattr(torch.nn, kind.upper())(features, 5, bidirectional=both)
        self.linear = torch.nn.Linear(10 if both else 5, classes)
        self.kind, self.both, self.per_row = kind, both, per_row
        self.double()

    def load(self, weights):
        for k in range(2 if self.both else 1):
            suffix = "l0_reverse" if k else "l0"
            at = f"{self.kind}1_{k}_"
            values = {"weight_ih": weights[at + "input"].T, "weight_hh": weights[at + "recurrent"].T, "bias_ih": weights[at + "bias"]}
            values["bias_hh"] = weights.get(at + "recurrent_bias", np.zeros_like(weights[at + "bias"]))
            for name, value in values.items():
                getattr(self.rnn, f"{name}_{suffix}").data = torch.tensor(value.copy())
            # Where a layer has one bias, PyTorch's second one stays zero.
            getattr(self.rnn, f"bias_hh_{suffix}").requires_grad_(at + "recurrent_bias" in weights)
        self.linear.weight.data = torch.tensor(weights["scores_weight"].T.copy())
        self.linear.bias.data = torch.tensor(weights["scores_bias"].copy())

    def weights(self):
        found = {}
        for k in range(2 if self.both else 1):
            suffix, at = "l0_reverse" if k else "l0", f"{self.kind}1_{k}_"
            found[at + "input"] = getattr(self.rnn, f"weight_ih_{suffix}").T
            found[at + "recurrent"] = getattr(self.rnn, f"weight_hh_{suffix}").T
            found[at + "bias"] = getattr(self.rnn, f"bias_ih_{suffix}")
            if self.kind == "gru":
                found[at + "recurrent_bias"] = getattr(self.rnn, f"bias_hh_{suffix}")
        found["scores_weight"], found["scores_bias"] = self.linear.weight.T, self.linear.bias
        return {name: value.detach().numpy() for name, value in found.items()}

    def forward(self, sequences):
        packed = torch.nn.utils.rnn.pack_sequence(sequences, enforce_sorted=False)
        y, last = self.rnn(packed)
        if self.per_row:
            padded, lengths = torch.nn.utils.rnn.pad_packed_sequence(y, batch_first=True)
            return self.linear(torch.cat([padded[i, :n] for i, n in enumerate(lengths)]))
        h = last[0] if isinstance(last, tuple) else last
        return self.linear(torch.cat(list(h), 1))


OPTIMIZERS = {
    'optimizer = "sgd"': lambda p: torch.optim.SGD(p, lr=0.1),
    'optimizer = "sgd"\nmomentum = 0.9\nnesterov = true\nweight_decay = 0.01':
        lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01),
    'optimizer = "adam"\nweight_decay = 0.01': lambda p: torch.optim.Adam(p, lr=0.1, weight_decay=0.01),
    'optimizer = "adamw"\nbeta1 = 0.8\nweight_decay = 0.1': lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.8, 0.999), weight_decay=0.1),
}


def compare(seed, kind, direction, optimizer, per_row, clip):
    random = np.random.default_rng(seed)
    lengths = random.integers(1, 9, 12)
    rows = random.standard_normal((lengths.sum(), 3))
    labels = random.integers(0, 4, lengths.sum() if per_row else len(lengths))
    labels[:4] = range(4)
    job = {"seed": seed, "kind": kind, "direction": direction, "targets": 'targets = "row"' if per_row else "",
           "more": optimizer + (f"\nclip_norm = {clip}" if clip else "")}
    with tempfile.TemporaryDirectory() as folder:
        np.savez(os.path.join(folder, "train.npz"), rows=rows, lengths=lengths, labels=labels)
        net = Net(kind, direction, 3, 4, per_row)
        net.load(train(folder, epochs=1, rate=0.0, **job))
        found = train(folder, epochs=6, rate=0.1, **job)
    sequences = list(torch.split(torch.tensor(rows), lengths.tolist()))
    chosen = OPTIMIZERS[optimizer]([p for p in net.parameters() if p.requires_grad])
    # The job shuffles, which changes the order of sums alone.
    for _ in range(6):
        chosen.zero_grad()
        torch.nn.functional.cross_entropy(net(sequences), torch.tensor(labels)).backward()
        if clip:
            torch.nn.utils.clip_grad_norm_(net.parameters(), clip)
        chosen.step()
    wanted = net.weights()
    assert sorted(found) == sorted(wanted), (sorted(found), sorted(wanted))
    for name, value in wanted.items():
        np.testing.assert_allclose(found[name], value, rtol=1e-7, atol=1e-9, err_msg=f"{kind} {direction} {optimizer} {name}")


cases = 0
for seed in seeds(range(1, 3)):
    print(f"seed {seed}", flush=True)
    for kind in ["lstm", "gru", "rnn"]:
        for direction in ["forward", "bidirectional"]:
            for i, optimizer in enumerate(OPTIMIZERS):
                compare(seed, kind, direction, optimizer, per_row=i % 2 == 1, clip=0.05 if i >= 2 else 0)
                cases += 1
print(f"{cases} jobs: the weights of PyTorch")
