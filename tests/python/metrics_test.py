# SPDX-License-Identifier: Apache-2.0
"""/metrics of a server that was used, read by the parser of prometheus_client: every family has a type and a help, histograms are whole, and the counts are those of
the sessions that the test made."""
import json
import os
import socket
import struct
import sys
import tempfile
import urllib.error
import urllib.request

try:
    import numpy as np
    from prometheus_client.parser import text_string_to_metric_families
except ImportError as error:
    print(f"skipped: {error}")
    sys.exit(77)

from live_client_test import FEATURES, model
from oracle import MILLRACE, need
from serving import Server

STEPS = 9


def talk(port):
    with socket.create_connection(("127.0.0.1", port)) as s, s.makefile("rb") as replies:
        send = lambda kind, b: s.sendall(struct.pack("<IB", len(b), ord(kind)) + b)
        send("J", json.dumps({"type": "start", "version": 1}).encode())
        send("B", np.zeros((STEPS, FEATURES), "<f4").tobytes())
        send("J", b'{"type":"end"}')
        while head := replies.read(5):
            last = json.loads(replies.read(struct.unpack("<IB", head)[0]))
    return last


def check_families(text):
    families = {family.name: family for family in text_string_to_metric_families(text)}
    for name, family in families.items():
        assert name.startswith("millrace_") and family.documentation, name
        assert family.type in ("counter", "gauge", "histogram"), name
        if family.type != "histogram":
            continue
        buckets = [(float(s.labels["le"]), s.value) for s in family.samples if s.name.endswith("_bucket")]
        counts = [value for _, value in buckets]
        assert buckets == sorted(buckets) and counts == sorted(counts), name
        assert buckets[-1][0] == float("inf") and counts[-1] == next(s.value for s in family.samples if s.name.endswith("_count")), name
    return {(s.name, *sorted(s.labels.values())): s.value for family in families.values() for s in family.samples}


def main():
    need(MILLRACE)
    with tempfile.TemporaryDirectory() as folder:
        path = os.path.join(folder, "lstm.onnx")
        with open(path, "wb") as file:
            file.write(model(np.random.default_rng(1)).SerializeToString())
        with Server(path, "--admin", "0", "--max-sessions", "4") as server:
            for _ in range(3):
                assert talk(server.port) == {"type": "ended", "steps": STEPS}
            try:
                answer = urllib.request.urlopen(f"http://127.0.0.1:{server.admin}/metrics", timeout=10)
            except urllib.error.HTTPError as error:
                assert error.code == 501, error
                print("skipped: this build has no prometheus-cpp")
                sys.exit(77)
            with answer:
                assert answer.headers["Content-Type"].startswith("text/plain; version=0.0.4")
                values = check_families(answer.read().decode())
    expected = {
        ("millrace_sessions_started_total", "default"): 3,
        ("millrace_sessions_ended_total", "default", "ended"): 3,
        ("millrace_steps_total", "cpu", "default"): 3 * STEPS,
        ("millrace_max_sessions",): 4,
        ("millrace_sessions", "default"): 0,
    }
    for key, value in expected.items():
        assert values[key] == value, (key, values.get(key))
    assert values[("millrace_tick_rows_sum", "default")] == 3 * STEPS
    print(f"{len(values)} samples")


if __name__ == "__main__":
    main()
