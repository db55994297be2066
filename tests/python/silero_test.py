# SPDX-License-Identifier: Apache-2.0
"""Both files of Silero VAD on long speech: within 1e-5 of ONNX Runtime on every frame; and live, in random pieces beside others, the bits of the whole file. Prints the
seed; MILLRACE_SEED runs one."""
import glob
import json
import os
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import wave

try:
    import numpy as np
    import onnxruntime
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from oracle import MILLRACE, MODELS, need, seeds

SOUNDS = "/usr/share/asterisk/sounds/en*/**/*.wav"
FILES, WINDOW, CONTEXT = 3, 512, 64
CONFIG = """[audio]
input = "input"
rate = 16000
window = 512
context = 64
resampler = "fastest"
[state]
{states}
"""
KINDS = {
    "silero_vad_v6.onnx": {"states": {"h": "hn", "c": "cn"}, "output": "speech_probs", "constants": {}},
    "silero_vad_16k_op15.onnx": {"states": {"state": "stateN"}, "output": "output", "constants": {"sr": 16000}},
}


def samples_of(path):
    with wave.open(path) as file:
        assert file.getnchannels() == 1 and file.getsampwidth() == 2
        return file.getframerate(), np.frombuffer(file.readframes(file.getnframes()), "<i2")


def rows_of(samples):
    """Windows with their context, of samples taken as if they were of 16 kHz."""
    sound = samples.astype("f4") / 32768
    steps = -(-len(sound) // WINDOW)
    padded = np.concatenate([np.zeros(CONTEXT, "f4"), sound, np.zeros(steps * WINDOW - len(sound), "f4")])
    return np.stack([padded[k * WINDOW : k * WINDOW + CONTEXT + WINDOW] for k in range(steps)])


def oracle(path, kind, rows):
    session = onnxruntime.InferenceSession(path)
    shapes = {i.name: [n if isinstance(n, int) else 1 for n in i.shape] for i in session.get_inputs()}
    feeds = {state: np.zeros(shapes[state], "f4") for state in kind["states"]}
    feeds.update({name: np.array(value, "i8") for name, value in kind["constants"].items()})
    names, got = [o.name for o in session.get_outputs()], []
    for row in rows:
        made = dict(zip(names, session.run(None, {"input": row[None], **feeds})))
        got.append(made[kind["output"]].item())
        feeds.update({state: made[output] for state, output in kind["states"].items()})
    return np.array(got, "f4")


def arguments(path, kind, config):
    return [path, "--config", config] + [f"--const={name}={value}" for name, value in kind["constants"].items()]


def run(folder, path, kind, config, source):
    out = os.path.join(folder, "out")
    subprocess.run([MILLRACE, "run", *arguments(path, kind, config), "--input", f"input={source}", "--output-dir", out], check=True)
    return np.load(os.path.join(out, kind["output"] + ".npy")).reshape(-1)


def live(port, output, rate, samples, cuts):
    raw, values = samples.tobytes(), []
    with socket.create_connection(("127.0.0.1", port)) as s, s.makefile("rb") as replies:
        def send(kind, data):
            s.sendall(struct.pack("<IB", len(data), ord(kind)) + data)

        def talk():
            send("J", json.dumps({"type": "start", "version": 1, "inputs": {"input": {"rate": rate}}}).encode())
            for a, b in zip([0, *cuts], [*cuts, len(raw)]):
                for at in range(a, b, 1 << 19):
                    send("B", raw[at : min(b, at + (1 << 19))])
            send("J", b'{"type":"end"}')

        writer = threading.Thread(target=talk)
        writer.start()
        while head := replies.read(5):
            said = json.loads(replies.read(struct.unpack("<IB", head)[0]))
            assert said["type"] != "error", said
            if said["type"] == "result":
                values += said["outputs"][output]
        writer.join()
    return np.array(values, "f4").reshape(-1)


def check(name, kind, paths, rng):
    path = os.path.join(MODELS, name)
    with tempfile.TemporaryDirectory() as folder:
        config = os.path.join(folder, "silero.toml")
        with open(config, "w") as file:
            file.write(CONFIG.format(states="\n".join(f'{a} = "{b}"' for a, b in kind["states"].items())))
        for sound in paths:
            rows = rows_of(samples_of(sound)[1])
            np.save(os.path.join(folder, "rows.npy"), rows)
            ours, theirs = run(folder, path, kind, config, os.path.join(folder, "rows.npy")), oracle(path, kind, rows)
            worst = np.abs(ours - theirs).max()
            print(f"{name} {os.path.basename(sound)}: {len(rows)} frames, worst {worst:.2e}", flush=True)
            assert len(ours) == len(theirs) and worst <= 1e-5
        wanted = [run(folder, path, kind, config, sound) for sound in paths]
        server = subprocess.Popen([MILLRACE, "serve", *arguments(path, kind, config), "--port", "0"], stdout=subprocess.PIPE, text=True)
        try:
            port = int(server.stdout.readline().rsplit(":", 1)[1])
            got = [None] * len(paths)

            def talk(i, cuts):
                rate, samples = samples_of(paths[i])
                got[i] = live(port, kind["output"], rate, samples, cuts)

            threads = []
            for i, sound in enumerate(paths):
                size = samples_of(sound)[1].nbytes
                threads.append(threading.Thread(target=talk, args=(i, np.sort(rng.integers(0, size + 1, int(rng.integers(1, 400)))).tolist())))
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join()
            for mine, whole in zip(got, wanted):
                assert mine is not None and mine.tobytes() == whole.tobytes(), "live has other bits than the whole"
        finally:
            server.terminate()
            assert server.wait(timeout=20) == 0


if __name__ == "__main__":
    need(MILLRACE, *(os.path.join(MODELS, name) for name in KINDS))
    longest = sorted(glob.glob(SOUNDS, recursive=True), key=lambda p: (-os.path.getsize(p), p))[:FILES]
    if not longest:
        print("skipped: no", SOUNDS)
        sys.exit(77)
    for seed in seeds([1]):
        print("seed", seed, flush=True)
        for model, of in KINDS.items():
            check(model, of, longest, np.random.default_rng(seed))
