# SPDX-License-Identifier: Apache-2.0
"""The recurrent layers give what torch.nn gives on the same weights: f32 within 1e-5. Prints the seed; MILLRACE_SEED runs one."""
import sys

try:
    import torch
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from layer_vectors import Vectors
from oracle import TEST_RUNTIME, need, seeds

need(TEST_RUNTIME)


def run(vectors, kind, bidirectional, projection=0):
    c, hidden, layers = 4, 3, 2
    lengths = [4, 1, 3]
    more = {"proj_size": projection} if projection else {}
    net = getattr(torch.nn, kind)(c, hidden, num_layers=layers, bidirectional=bidirectional, **more)
    x = torch.randn(max(lengths), len(lengths), c)
    packed = torch.nn.utils.rnn.pack_padded_sequence(x, lengths, enforce_sorted=False)
    with torch.no_grad():
        y, last = net(packed)
        y, _ = torch.nn.utils.rnn.pad_packed_sequence(y, total_length=max(lengths))
    h, cell = last if kind == "LSTM" else (last, None)
    d = 2 if bidirectional else 1
    tensors = {"x": x, "lens": torch.tensor(lengths), "want_y": y, "want_h": h, "want_c": cell}
    for k in range(layers * d):
        suffix = f"l{k // d}" + ("_reverse" if k % d else "")
        for name in ["weight_ih", "weight_hh", "bias_ih", "bias_hh"] + (["weight_hr"] if projection else []):
            tensors[f"{name}.{k}"] = getattr(net, f"{name}_{suffix}").detach()
    line = f"torch {kind.lower()} {'bidirectional' if bidirectional else 'forward'} count={layers * d}"
    vectors.add(line, **{name: value.numpy() for name, value in tensors.items() if value is not None})


for seed in seeds(range(1, 4)):
    print(f"seed {seed}", flush=True)
    torch.manual_seed(seed)
    all_of_them = Vectors()
    for kind in ("RNN", "LSTM", "GRU"):
        for bidirectional in (False, True):
            run(all_of_them, kind, bidirectional)
    run(all_of_them, "LSTM", True, projection=2)
    all_of_them.check("torch")
