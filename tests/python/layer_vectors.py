# SPDX-License-Identifier: Apache-2.0
"""Cases of recurrent layers with what an oracle gives for them, handed to the case "layers give what an oracle's vectors say" of test_runtime."""
import json
import os
import subprocess
import struct

from oracle import TEST_RUNTIME, vectors_folder

TYPES = {"float32": "F32", "int64": "I64"}


class Vectors:
    """Case k: a line of words in the metadata, and its tensors, named k.NAME."""

    def __init__(self):
        self.cases, self.tensors = [], {}

    def add(self, line, **tensors):
        for name, value in tensors.items():
            if value is not None:
                self.tensors[f"{len(self.cases)}.{name}"] = value
        self.cases.append(line)

    def save(self, path):
        header, data = {"__metadata__": {str(k): line for k, line in enumerate(self.cases)}}, b""
        for name, value in self.tensors.items():
            raw = value.tobytes()
            header[name] = {"dtype": TYPES[str(value.dtype)], "shape": list(value.shape), "data_offsets": [len(data), len(data) + len(raw)]}
            data += raw
        text = json.dumps(header).encode()
        with open(path, "wb") as file:
            file.write(struct.pack("<Q", len(text)) + text + data)

    def check(self, source):
        """`source`: the oracle's name."""
        with vectors_folder(f"layers/{source}") as folder:
            path = os.path.join(folder, "vectors.safetensors")
            self.save(path)
            run = subprocess.run([TEST_RUNTIME, "--test-case=layers give what an oracle*"], env={**os.environ, "MILLRACE_LAYER_VECTORS": folder}, capture_output=True, text=True, timeout=250)
        print(run.stdout, run.stderr)
        assert run.returncode == 0 and "1 passed" in run.stdout, "the layers differ from the oracle"
