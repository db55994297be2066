# SPDX-License-Identifier: Apache-2.0
"""A server for a test, the model that most tests serve, and a certificate for it."""
import json
import os
import shutil
import signal
import struct
import subprocess
import sys

import numpy as np

from oracle import MILLRACE

# The canonical listing, in the text form of programs.
LISTING = """millrace 1 "listing"
input "x" = x: f32[?, 40] lod=1
input "boot" = boot: f32[?, 3]
weight U: f32[3, 3]
weight W: f32[40, 3]
block { idx: 0 parent_idx: -1
  steps: array<f32[?, 40]> ordered, order: order = unpack(X=x) {level=0, sort_by_length=true}
  n: i64[] = tensor_array_size(Array=steps)
  states: array<f32[?, 3]> ordered = tensor_array(Size=n, Order=order) {name="states"}
  zero: i64[] = constant() {value=i64[](0)}
  last: i64[] = while(Carried=[zero]) {sub_block=@1, max_trips=-1, parallel_iterations=8}
  y: f32[?, 3] lod=1 = pack(Array=states, Order=order) {level=0}
}
block { idx: 1 parent_idx: 0
  params step: i64[]
  done: bool[] = equal(A=step, B=n)
  break_if(Condition=done, Carried=[step])
  step_input: f32[?, 40] ordered = tensor_array_read(Array=steps, Index=step)
  one: i64[] = constant() {value=i64[](1)}
  before: i64[] = sub(A=step, B=one)
  last_state: f32[?, 3] ordered = tensor_array_read(Array=states, Index=before, Boot=boot)
  pre_state: f32[?, 3] ordered = shrink(State=last_state, Step=step_input)
  from_state: f32[?, 3] = matmul(A=pre_state, B=U)
  from_input: f32[?, 3] = matmul(A=step_input, B=W)
  sum: f32[?, 3] = add(A=from_state, B=from_input)
  state: f32[?, 3] = sigmoid(X=sum)
  tensor_array_write(Array=states, Index=step, X=state) {share=true}
  next: i64[] = add(A=step, B=one)
  results next
}
output "y" = y
"""
FEATURES, HIDDEN = 40, 3


def save_safetensors(path, tensors):
    head, body = {}, b""
    for name, value in tensors.items():
        raw = value.astype("<f4").tobytes()
        head[name] = {"dtype": "F32", "shape": list(value.shape), "data_offsets": [len(body), len(body) + len(raw)]}
        body += raw
    text = json.dumps(head).encode()
    with open(path, "wb") as file:
        file.write(struct.pack("<Q", len(text)) + text + body)


def save_listing(folder, rng):
    """The listing in `folder`, with weights of `rng`: the path of its model file."""
    path = os.path.join(folder, "listing.mr")
    with open(path, "w") as file:
        file.write(LISTING)
    weights = {"U": rng.standard_normal((HIDDEN, HIDDEN)), "W": rng.standard_normal((FEATURES, HIDDEN)) / 6}
    save_safetensors(os.path.join(folder, "listing.safetensors"), weights)
    return path


def run_listing(model, rows, lengths):
    """Output y of one run of the listing over all sequences."""
    folder = os.path.dirname(model)
    np.save(f"{folder}/x.npy", rows)
    np.save(f"{folder}/boot.npy", np.zeros((len(lengths), HIDDEN), "f4"))
    subprocess.run([MILLRACE, "run", model, "--input", f"x={folder}/x.npy", "--input", f"boot={folder}/boot.npy", "--lod", f"x=[{lengths}]",
                    "--output-dir", folder], check=True)
    return np.load(f"{folder}/y.npy")


class Server:
    """`millrace serve` of a model, drained at the end of a with statement. `said` is the file of its stderr; none: stderr is dropped."""

    def __init__(self, model, *flags, port=0, said=None):
        log = open(said, "a") if said else subprocess.DEVNULL
        self.process = subprocess.Popen([MILLRACE, "serve", model, "--port", str(port), *flags], stdout=subprocess.PIPE, stderr=log, text=True)
        if said:
            log.close()
        self.ports = {}
        wanted = {"serving", "administration"} if "--admin" in flags else {"serving"}
        while set(self.ports) != wanted:
            line = self.process.stdout.readline()
            if not line:
                why = open(said).read() if said else ""
                if "this build has no" in why:
                    print("skipped:", why.strip().splitlines()[-1])
                    sys.exit(77)
                raise AssertionError(f"the server ended with {self.process.wait(20)}: {why}")
            if line.startswith(("millrace: serving ", "millrace: administration ")):
                self.ports[line.split()[1]] = int(line.rsplit(":", 1)[1])
        self.port, self.admin = self.ports["serving"], self.ports.get("administration")

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        if self.process.poll() is None:
            code = self.end(signal.SIGTERM)
            assert failure[0] or code == 0, f"the server did not drain: {code}"

    def url(self, scheme="ws", path="stream"):
        return f"{scheme}://localhost:{self.port}/{path}"

    def end(self, how):
        """Its exit code, after a signal."""
        self.process.send_signal(how)
        return self.process.wait(20)

    def resident_bytes(self):
        with open(f"/proc/{self.process.pid}/status") as file:
            return 1024 * int(next(line.split()[1] for line in file if line.startswith("VmRSS")))

    def processor_seconds(self):
        with open(f"/proc/{self.process.pid}/stat") as file:
            fields = file.read().rsplit(")", 1)[1].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def make_certificate(folder):
    """Flags of a server with a certificate for localhost and 127.0.0.1, which is folder/cert.pem; None where TLS cannot be tried."""
    built = subprocess.run([MILLRACE, "info"], capture_output=True, text=True, check=True).stdout
    if shutil.which("openssl") is None or "openssl" not in built:
        return None
    command = ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    command += ["-addext", "subjectAltName=DNS:localhost,IP:127.0.0.1", "-keyout", f"{folder}/key.pem", "-out", f"{folder}/cert.pem"]
    subprocess.run(command, capture_output=True, check=True)
    return ["--tls-cert", f"{folder}/cert.pem", "--tls-key", f"{folder}/key.pem"]
