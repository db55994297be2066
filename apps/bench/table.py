# SPDX-License-Identifier: Apache-2.0
"""The speed table: ours and each peer by turns in one run, medians, one thread. Rows and JSON as docs/performance.md says."""
import argparse
import json
import platform
import statistics
import subprocess
import time

TURNS = 5
SECONDS = 0.4


def ours_frame(bin_dir, model, rows):
    done = subprocess.run([f"{bin_dir}/millrace-bench", "frame", model, str(rows), str(SECONDS), "h:hn", "c:cn"],
                          check=True, capture_output=True, text=True)
    return json.loads(done.stdout)["seconds"]


def make_peer(model):
    """Seconds that ONNX Runtime takes for one frame of one stream in a call of its own, or why that cannot be told."""
    try:
        import numpy
        import onnxruntime
    except ImportError as error:
        return None, f"not measured: {error}"
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    frame = numpy.random.default_rng(1).normal(0, 0.1, (1, 576)).astype("f4")
    state = numpy.zeros((1, 1, 128), "f4")

    def measure():
        feeds = {"input": frame, "h": state, "c": state}
        calls, start = 0, time.perf_counter()
        while time.perf_counter() - start < SECONDS:
            session.run(None, feeds)
            calls += 1
        return (time.perf_counter() - start) / calls

    measure()
    return measure, f"ONNX Runtime {onnxruntime.__version__}, one call a frame, 1 thread"


def by_turns(ours, peer):
    mine, theirs = [], []
    for _ in range(TURNS):
        mine.append(ours())
        if peer:
            theirs.append(peer())
    mine.append(ours())
    return statistics.median(mine), statistics.median(theirs) if theirs else None


def rows_of(arguments):
    model = f"{arguments.models}/silero_vad_v6.onnx"
    peer, name = make_peer(model)
    for rows, goal in ((1, 1.0), (64, 1 / 0.3)):
        ours, theirs = by_turns(lambda: ours_frame(arguments.bin, model, rows), peer)
        yield {"id": f"silero-{rows}", "shape": f"Silero VAD v6, {rows} ready, one frame", "ours": ours, "peer": theirs,
               "peer_name": name if peer else "ONNX Runtime", "goal": goal, "note": "" if peer else name}
    done = subprocess.run([f"{arguments.bin}/millrace-bench", "gemm", "64", "512", "2048"], check=True, capture_output=True, text=True)
    yield json.loads(done.stdout)


def microseconds(value):
    return "-" if value is None else f"{value * 1e6:.1f} us"


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--json", help="write the rows there as well")
    parser.add_argument("--bin", required=True)
    parser.add_argument("--venv")
    parser.add_argument("--models", required=True)
    arguments = parser.parse_args()
    table = []
    print(f"{'id':<10} {'shape':<38} {'ours':>11} {'peer':>11} {'ratio':>7} {'goal':>6}  peer")
    for row in rows_of(arguments):
        row["ratio"] = row["peer"] / row["ours"] if row["peer"] else None
        row["floor"] = None
        table.append(row)
        ratio = "-" if row["ratio"] is None else f"{row['ratio']:.2f}"
        print(f"{row['id']:<10} {row['shape']:<38} {microseconds(row['ours']):>11} {microseconds(row['peer']):>11} {ratio:>7} {row['goal']:>6.2f}  "
              f"{row['note'] or row['peer_name']}", flush=True)
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as out:
            json.dump({"device": platform.processor() or platform.machine(), "rows": table}, out, indent=1)


if __name__ == "__main__":
    main()
