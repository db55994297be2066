#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Weights of PyTorch or Keras as a .safetensors file with our names, gate orders and layouts.

    weights.py net.pt net.safetensors                          a state_dict of PyTorch (needs torch)
    weights.py model.safetensors net.safetensors               the same, saved by safetensors
    weights.py net.weights.h5 net.safetensors                  Keras: .h5 or .keras (needs h5py)

A recurrent layer NAME becomes NAME_k_input, NAME_k_recurrent, NAME_k_bias, …, k = layer * directions + direction; rows are the batch, gates
stand in the order i f g o (LSTM) or r z n (GRU). docs/import_weights.md tells the rest. Exit codes: 0, 1 (failed), 2 (bad usage)."""
import argparse
import json
import os
import re
import struct
import sys
import tempfile
import zipfile

import numpy as np

LSTM, GRU = "ifgo", "rzn"  # ours
TORCH = {"lstm": "ifgo", "gru": "rzn", "rnn": "h"}
KERAS = {"lstm": "ifgo", "gru": "zrn", "rnn": "h"}
OURS = {"lstm": LSTM, "gru": GRU, "rnn": "h"}
KIND_OF_GATES = {4: "lstm", 3: "gru", 1: "rnn"}


class Refused(Exception):
    """One line for whoever called."""


def reorder(w, axis, source, target):
    """The blocks of `axis`, one for each letter of `source`, in the order of the letters of `target`."""
    if sorted(source) != sorted(target):
        raise Refused(f"expected the gates of '{source}' in another order, found '{target}'")
    if w.shape[axis] % len(source):
        raise Refused(f"expected {len(source)} equal blocks along axis {axis}, found {list(w.shape)}")
    blocks = np.split(w, len(source), axis=axis)
    return np.concatenate([blocks[source.index(gate)] for gate in target], axis=axis)


def kind_of(name, recurrent, rows_axis, hidden):
    gates = recurrent.shape[rows_axis] // hidden if hidden and recurrent.shape[rows_axis] % hidden == 0 else 0
    if gates not in KIND_OF_GATES:
        raise Refused(f"{name}: expected recurrent weights of 1, 3 or 4 gates, found {list(recurrent.shape)}")
    return KIND_OF_GATES[gates]


# ---- PyTorch

PART = re.compile(r"^(?:(?P<layer>.*)\.)?(?P<part>weight_ih|weight_hh|bias_ih|bias_hh|weight_hr)(?:_l(?P<level>\d+)(?P<reverse>_reverse)?)?$")


def torch_cell(name, kind, parts):
    """One layer and direction of torch.nn.LSTM, GRU, RNN or a cell of theirs."""
    gates = (TORCH[kind], OURS[kind])
    made = {part: reorder(parts[source].T, 1, *gates) for part, source in (("input", "weight_ih"), ("recurrent", "weight_hh"))}
    biases = [reorder(parts[bias], 0, *gates) for bias in ("bias_ih", "bias_hh") if bias in parts]
    if kind == "gru" and biases:
        made.update(zip(("bias", "recurrent_bias"), biases))
    elif biases:
        made["bias"] = biases[0] + biases[1] if len(biases) == 2 else biases[0]
    if "weight_hr" in parts:
        made["projection"] = parts["weight_hr"].T
    return made


def torch_recurrent(state, made, notes):
    """Takes recurrent layers out of `state`."""
    layers = {}
    for key in list(state):
        found = PART.match(key)
        if found:
            place = (int(found["level"] or 0), 1 if found["reverse"] else 0)
            layers.setdefault(found["layer"] or "", {}).setdefault(place, {})[found["part"]] = state.pop(key)
    for layer, cells in layers.items():
        directions = 1 + max(direction for _, direction in cells)
        for (level, direction), parts in cells.items():
            where = f"{layer or 'the layer'}, level {level}"
            if "weight_ih" not in parts or "weight_hh" not in parts:
                raise Refused(f"{where}: expected weight_ih and weight_hh, found {', '.join(sorted(parts))}")
            kind = "lstm" if "weight_hr" in parts else kind_of(where, parts["weight_hh"], 0, parts["weight_hh"].shape[1])
            name = layer or kind
            for part, value in torch_cell(where, kind, parts).items():
                made[f"{name}_{level * directions + direction}_{part}"] = value
        extra = {"gru": ", reset after the product, z keeps"}.get(kind, "")
        notes[f"layer {name}"] = f"{kind}, gates {OURS[kind]}, {directions} direction{'s' * (directions > 1)}{extra}, from PyTorch"


def torch_plain(state, made, notes, linear, embedding):
    """Linear, embedding, convolution and norm layers; what is none of them keeps its name and layout."""
    unclear = []
    for key in [key for key in state if key == "weight" or key.endswith(".weight")]:
        weight, layer = state[key], key[: -len(".weight")]
        bias_key = f"{layer}.bias" if layer else "bias"
        bias, name = state.get(bias_key), layer or "layer"
        if f"{layer}.running_mean" in state:
            continue
        if layer in embedding:
            made[f"{name}_table"] = weight
        elif weight.ndim == 2 and (layer in linear or bias is not None):
            made[f"{name}_weight"] = weight.T
        elif weight.ndim == 2:
            unclear.append(layer)
            continue
        elif weight.ndim == 3:
            made[f"{name}_weight"] = weight.transpose(2, 1, 0)  # [M, C, K] -> [K, C, M]
        elif weight.ndim == 1:
            made[f"{name}_scale"] = weight
        else:
            continue
        del state[key]
        if bias is not None:
            made[f"{name}_bias"] = state.pop(bias_key)
    if unclear:
        raise Refused("a matrix without a bias may be a linear layer or an embedding: say --linear or --embedding for " + ", ".join(unclear))
    made.update(state)


def from_torch(state, linear=(), embedding=()):
    """(tensors, notes) of a state_dict: names to NumPy arrays."""
    state, made, notes = dict(state), {}, {}
    for layer in (*linear, *embedding):
        if (f"{layer}.weight" if layer else "weight") not in state:
            raise Refused(f"expected a layer '{layer}', found no '{layer}.weight'")
    torch_recurrent(state, made, notes)
    torch_plain(state, made, notes, linear, embedding)
    return made, notes


# ---- Keras

KERAS_PART = re.compile(r"^(?P<where>.*?)/?(?P<part>kernel|recurrent_kernel|bias|gamma|beta|embeddings)(?::0)?$")
KERAS_3 = re.compile(r"^(?P<where>.*?)/?vars/(?P<index>\d+)$")


def keras_layers(tree):
    """Layer and direction -> parts. Names: 'lstm/lstm_cell/kernel:0' (Keras 2), 'layers/lstm/cell/vars/0' (Keras 3)."""
    layers = {}
    for path, value in tree.items():
        if re.search(r"(^|/)(optimizer|optimizer_weights|seed_generator)(/|$)", path):
            continue
        third, second = KERAS_3.match(path), KERAS_PART.match(path)
        if not third and not second:
            raise Refused(f"expected weights of Keras, found '{path}'")
        where = [word for word in (third or second)["where"].split("/") if word not in ("", "layers", "model_weights", "_layer_checkpoint_dependencies")]
        direction = 1 if any("backward" in word for word in where) else 0
        cells = [word for word in where if not re.search(r"cell(_\d+)?$", word) and not re.match(r"(forward|backward)(_|$)", word)]
        # Keras 2 says the layer's name twice.
        name = ".".join(word for i, word in enumerate(cells) if i == 0 or word != cells[i - 1]) or "layer"
        layers.setdefault(name, {}).setdefault(direction, {})[third["index"] if third else second["part"]] = value
    return layers


def named_parts(name, parts):
    """Keras 3 numbers the weights of a layer; their shapes say which they are."""
    if not all(part.isdigit() for part in parts):
        return parts
    values = [parts[str(i)] for i in range(len(parts))]
    if len(values) >= 2 and values[0].ndim == 2 and values[1].ndim == 2 and values[0].shape[1] == values[1].shape[1]:
        names = ("kernel", "recurrent_kernel", "bias")
    elif values[0].ndim == 1:
        names = ("gamma", "beta")
    elif len(values) == 1 and values[0].ndim == 2:
        raise Refused(f"{name}: a matrix without a bias may be a Dense or an Embedding layer: say --linear or --embedding for {name}")
    else:
        names = ("kernel", "bias")
    if len(values) > len(names):
        raise Refused(f"{name}: expected a recurrent, dense, embedding, convolution or norm layer, found weights of {[list(value.shape) for value in values]}")
    return dict(zip(names, values))


def keras_cell(kind, parts):
    gates = (KERAS[kind], OURS[kind])
    made = {"input": reorder(parts["kernel"], 1, *gates), "recurrent": reorder(parts["recurrent_kernel"], 1, *gates)}
    bias = parts.get("bias")
    if bias is not None and bias.ndim == 2:
        made["bias"], made["recurrent_bias"] = reorder(bias[0], 0, *gates), reorder(bias[1], 0, *gates)
    elif bias is not None:
        made["bias"] = reorder(bias, 0, *gates)
    return made


def from_keras(tree, linear=(), embedding=()):
    """(tensors, notes) of a tree of weights: paths to NumPy arrays."""
    made, notes = {}, {}
    for name, cells in keras_layers(tree).items():
        for direction, parts in cells.items():
            if set(parts) == {"0"} and name in linear:
                parts = {"kernel": parts["0"]}
            elif set(parts) == {"0"} and name in embedding:
                parts = {"embeddings": parts["0"]}
            parts = named_parts(name, parts)
            if "recurrent_kernel" in parts:
                recurrent = parts["recurrent_kernel"]
                kind = kind_of(name, recurrent, 1, recurrent.shape[0])
                for part, value in keras_cell(kind, parts).items():
                    made[f"{name}_{direction}_{part}"] = value
                reset = f", reset {'after' if parts.get('bias', recurrent[0]).ndim == 2 else 'before'} the product, z keeps" if kind == "gru" else ""
                notes[f"layer {name}"] = f"{kind}, gates {OURS[kind]}, {len(cells)} direction{'s' * (len(cells) > 1)}{reset}, from Keras"
            else:
                names = {"kernel": "weight", "bias": "bias", "gamma": "scale", "beta": "bias", "embeddings": "table"}
                for part, value in parts.items():
                    made[f"{name}_{names[part]}"] = value  # Conv1D's [K, C, M] and Dense's [C, M] are ours
    return made, notes


# ---- Files

TYPES = {"float64": "F64", "float32": "F32", "float16": "F16", "int64": "I64", "int32": "I32", "int8": "I8", "uint8": "U8", "bool": "BOOL"}


def read_safetensors(path):
    with open(path, "rb") as file:
        data = file.read()
    if len(data) < 8 or struct.unpack("<Q", data[:8])[0] > len(data) - 8:
        raise Refused(f"{path}: expected a .safetensors file, found {len(data)} other bytes")
    size = struct.unpack("<Q", data[:8])[0]
    header, body = json.loads(data[8 : 8 + size]), data[8 + size :]
    made = {}
    for name, entry in header.items():
        if name == "__metadata__":
            continue
        begin, end = entry["data_offsets"]
        if entry["dtype"] == "BF16":  # NumPy has no bfloat16: the same numbers as f32
            value = (np.frombuffer(body[begin:end], "<u2").astype("<u4") << 16).view("<f4")
        else:
            kinds = [kind for kind, text in TYPES.items() if text == entry["dtype"]]
            if not kinds:
                raise Refused(f"{path}: {name}: expected one of {', '.join(TYPES.values())}, found {entry['dtype']}")
            value = np.frombuffer(body[begin:end], kinds[0])
        made[name] = value.reshape(entry["shape"])
    return made


def write_safetensors(path, tensors, notes):
    """The file appears whole or not at all."""
    header, offset, parts = {"__metadata__": notes} if notes else {}, 0, []
    for name, value in sorted(tensors.items()):
        value = np.ascontiguousarray(value)
        if str(value.dtype) not in TYPES:
            raise Refused(f"{name}: expected one of {', '.join(TYPES)}, found {value.dtype}")
        raw = value.tobytes()
        header[name] = {"dtype": TYPES[str(value.dtype)], "shape": list(value.shape), "data_offsets": [offset, offset + len(raw)]}
        offset += len(raw)
        parts.append(raw)
    text = json.dumps(header).encode()
    folder = os.path.dirname(os.path.abspath(path))
    descriptor, temporary = tempfile.mkstemp(dir=folder, prefix=".weights")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text)
            for raw in parts:
                file.write(raw)
        os.chmod(temporary, 0o666 & ~umask())
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def umask():
    mask = os.umask(0)
    os.umask(mask)
    return mask


def read_torch(path):
    try:
        import torch
    except ImportError:
        raise Refused(f"{path}: reading it needs the Python package torch; or save the state_dict as .safetensors") from None
    try:
        # Tensors alone: a pickle of anything else could run code.
        state = torch.load(path, map_location="cpu", weights_only=True)
    except OSError:
        raise
    except Exception as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise Refused(f"{path}: expected a state_dict (torch.save(net.state_dict(), path)): {reason}") from None
    for key in ("state_dict", "model_state_dict", "model"):
        if isinstance(state, dict) and isinstance(state.get(key), dict):
            state = state[key]
    if not isinstance(state, dict) or not all(torch.is_tensor(value) for value in state.values()):
        raise Refused(f"{path}: expected a state_dict of tensors, found {type(state).__name__}")
    plain = lambda value: value.detach().float() if value.dtype == torch.bfloat16 else value.detach()
    return {name: plain(value).contiguous().numpy() for name, value in state.items()}


def read_hdf5(source, path):
    try:
        import h5py
    except ImportError:
        raise Refused(f"{path}: reading it needs the Python package h5py") from None
    tree = {}
    with h5py.File(source, "r") as file:
        file.visititems(lambda name, node: tree.__setitem__(name, np.asarray(node)) if isinstance(node, h5py.Dataset) else None)
    return tree


def read_keras(path):
    if not zipfile.is_zipfile(path):
        return read_hdf5(path, path)
    with zipfile.ZipFile(path) as archive:
        if "model.weights.h5" not in archive.namelist():
            raise Refused(f"{path}: expected model.weights.h5 inside, found {', '.join(archive.namelist()[:8])}")
        with archive.open("model.weights.h5") as file:
            return read_hdf5(file, path)


def convert(source, linear=(), embedding=()):
    ending = os.path.splitext(source)[1].lower()
    if ending in (".pt", ".pth", ".bin", ".ckpt"):
        return from_torch(read_torch(source), linear, embedding)
    if ending == ".safetensors":
        return from_torch(read_safetensors(source), linear, embedding)
    if ending in (".h5", ".hdf5", ".keras"):
        return from_keras(read_keras(source), linear, embedding)
    raise Refused(f"{source}: expected .pt, .pth, .bin, .ckpt, .safetensors, .h5, .hdf5 or .keras")


def main(arguments=None):
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("source", help="weights of PyTorch (.pt .pth .bin .ckpt .safetensors) or Keras (.h5 .keras)")
    parser.add_argument("output", help="a .safetensors file")
    parser.add_argument("--linear", action="append", default=[], metavar="LAYER", help="a matrix without a bias is a linear layer's")
    parser.add_argument("--embedding", action="append", default=[], metavar="LAYER", help="a matrix is an embedding's table")
    flags = parser.parse_args(arguments)
    try:
        tensors, notes = convert(flags.source, flags.linear, flags.embedding)
        write_safetensors(flags.output, tensors, notes)
    except (Refused, OSError, ValueError, KeyError, struct.error) as error:
        print("weights.py: " + " ".join(str(error).split()), file=sys.stderr)
        return 1
    for name, value in sorted(tensors.items()):
        print(f"{name}: {value.dtype}{list(value.shape)}")
    for layer, note in sorted(notes.items()):
        print(f"{layer}: {note}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
