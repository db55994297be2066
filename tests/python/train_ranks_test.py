# SPDX-License-Identifier: Apache-2.0
"""Training jobs of several ranks, as a person starts them: --ranks, mpirun, and RANK with WORLD_SIZE. The bits of a number of ranks do not depend on
how they were started, on whether a rank was killed and the job resumed, and different numbers of ranks agree to rounding."""

import json
import os
import pathlib
import random
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

BIN = pathlib.Path(os.environ["MILLRACE_BIN"])
MILLRACE = BIN / "millrace"

CONFIG = """
seed = 3
epochs = {epochs}
[data]
train = "train.ts"
test = "train.ts"
[[layer]]
kind = "lstm"
units = 24
[[layer]]
kind = "gru"
units = 16
direction = "bidirectional"
[training]
batch_sequences = 13
learning_rate = 0.01
clip_norm = 1.0
[checkpoint]
every_steps = 3
every_seconds = 0.0
[output]
folder = "unused"
"""


def write_data(path: pathlib.Path) -> None:
    """Sequences of 3 features, of very uneven lengths, in 3 classes."""
    rng = random.Random(7)
    lines = ["@problemName made", "@timeStamps false", "@missing false", "@univariate false", "@dimensions 3", "@equalLength false",
             "@classLabel true a b c", "@data"]
    for i in range(60):
        length = rng.choice([1, 2, 3, 5, 8, 40])
        series = [",".join(f"{rng.gauss((i % 3) - 1, 1):.4f}" for _ in range(length)) for _ in range(3)]
        lines.append(":".join(series) + ":" + "abc"[i % 3])
    path.write_text("\n".join(lines) + "\n")


def free_port() -> str:
    with socket.socket() as door:
        door.bind(("127.0.0.1", 0))
        return str(door.getsockname()[1])


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1", "OMPI_MCA_rmaps_base_oversubscribe": "1",
            **more}


class Job:
    def __init__(self, folder: pathlib.Path):
        self.folder = folder
        write_data(folder / "train.ts")
        (folder / "short.toml").write_text(CONFIG.format(epochs=4))
        (folder / "long.toml").write_text(CONFIG.format(epochs=100000))

    def words(self, output: str, *more: str, config: str = "short") -> list[str]:
        return [str(MILLRACE), "train", str(self.folder / f"{config}.toml"), "--output", str(self.folder / output), *more]

    def by_flag(self, ranks: int, output: str, *more: str) -> None:
        subprocess.run(self.words(output, "--ranks", str(ranks), "--quiet", *more), env=environment(), check=True, timeout=120)

    def by_mpirun(self, ranks: int, output: str) -> None:
        subprocess.run(["mpirun", "-x", "MASTER_PORT", "-n", str(ranks), *self.words(output, "--quiet")],
                       env=environment(MASTER_PORT=free_port()), check=True, timeout=120)

    def by_variables(self, ranks: int, output: str) -> None:
        port = free_port()
        processes = [subprocess.Popen(self.words(output, "--quiet"),
                                      env=environment(RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
                     for rank in range(ranks)]
        assert [process.wait(timeout=120) for process in processes] == [0] * ranks

    def weights(self, output: str) -> bytes:
        return (self.folder / output / "model.safetensors").read_bytes()

    def losses(self, output: str) -> list[float]:
        lines = (self.folder / output / "metrics.jsonl").read_text().splitlines()
        return [json.loads(line)["loss"] for line in lines[:-1]]


def check_starts(job: Job) -> None:
    job.by_flag(1, "one")
    for ranks in (2, 4):
        job.by_flag(ranks, f"flag{ranks}")
        job.by_mpirun(ranks, f"mpirun{ranks}")
        job.by_variables(ranks, f"variables{ranks}")
        for way in ("mpirun", "variables"):
            assert job.weights(f"{way}{ranks}") == job.weights(f"flag{ranks}"), f"{way}, {ranks} ranks: other bits"
        for found, wanted in zip(job.losses(f"flag{ranks}"), job.losses("one"), strict=True):
            assert abs(found - wanted) <= 1e-4 * abs(wanted), f"{ranks} ranks: a loss of {found}, of one rank {wanted}"
    print("1, 2 and 4 ranks by three ways: equal bits for a number of ranks, losses to rounding")


def ranks_of(output: pathlib.Path) -> list[int]:
    """The processes that train, without mpirun and the command that started it."""
    found = []
    for entry in pathlib.Path("/proc").iterdir():
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
        except (OSError, ValueError):
            continue
        if words[0] == os.fsencode(MILLRACE.resolve()) and os.fsencode(output) in words and b"--ranks" not in words:
            found.append(int(entry.name))
    return found


def check_lost_rank(job: Job, number: signal.Signals, wanted: list[str], most: float) -> None:
    output = job.folder / f"lost{number.name}"
    process = subprocess.Popen(job.words(output.name, "--ranks", "3", "--quiet", config="long"), env=environment(), stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 60
    while not list(output.glob("checkpoints/step-*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    time.sleep(0.3)
    os.kill(max(ranks_of(output)), number)
    begin = time.monotonic()
    text, _ = process.communicate(timeout=60)
    took = time.monotonic() - begin
    assert process.returncode != 0, "a job that lost a rank ended well"
    assert any(words in text for words in wanted), f"expected one of {wanted} in: {text}"
    assert took < most, f"{number.name}: noticed after {took:.1f} s"
    assert not ranks_of(output), "a rank is left behind"
    print(f"{number.name}: noticed after {took:.1f} s")


def check_refused(words: list[list[str]], wanted: str) -> None:
    port = free_port()
    processes = [subprocess.Popen(words[rank], stderr=subprocess.PIPE, text=True,
                                  env=environment(RANK=str(rank), WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=port))
                 for rank in range(2)]
    errors = [process.communicate(timeout=60)[1] for process in processes]
    assert all(process.returncode == 1 for process in processes), errors
    assert any(wanted in error for error in errors), errors


def check_same_job(job: Job) -> None:
    """Ranks that were told to train for other numbers of epochs, or that begin with other weights, do not begin."""
    check_refused([job.words("unlike", "--quiet", "--epochs", str(rank + 1)) for rank in range(2)],
                  "expected the same epochs of all ranks, found another than that of rank ")
    print("ranks of other numbers of epochs: refused")
    check_refused([job.words("unlike", "--quiet", "--seed", str(rank), *["--resume"][:rank]) for rank in range(2)],
                  "expected the same seed, --resume of all ranks, found another than that of rank ")
    print("ranks of other seeds, one of which resumes: refused")
    (job.folder / "start.toml").write_text(CONFIG.format(epochs=4) + '[model]\nstart = "start.safetensors"\n')
    for rank, trained in enumerate(("one", "flag2")):
        (job.folder / f"data{rank}").mkdir()
        shutil.copy(job.folder / "train.ts", job.folder / f"data{rank}")
        (job.folder / f"data{rank}" / "start.safetensors").write_bytes(job.weights(trained))
    check_refused([job.words("unlike", "--quiet", "--data", str(job.folder / f"data{rank}"), config="start") for rank in range(2)],
                  "expected the same weights of all ranks in start.safetensors")
    print("ranks that begin with other weights: refused")


def check_said_once(job: Job) -> None:
    """An error that all ranks meet is one line of one rank; one of the configuration is said before there are ranks."""
    (job.folder / "absent.toml").write_text(CONFIG.format(epochs=4).replace('train = "train.ts"', 'train = "absent.ts"'))
    (job.folder / "wrong.toml").write_text(CONFIG.format(epochs=4).replace("units = 24", "units = 0"))
    for config, wanted in (("absent", "absent.ts: cannot open"), ("wrong", "[[layer]]: units: expected an integer")):
        done = subprocess.run(job.words("unread", "--ranks", "4", config=config), env=environment(), capture_output=True, text=True, timeout=60)
        said = [line for line in done.stderr.splitlines() if line.startswith("millrace: ")]
        assert done.returncode == 1 and len(said) == 1 and wanted in said[0], done.stderr
        assert config == "absent" or done.stderr.count("\n") == 1, done.stderr
    print("a missing file and a wrong key: one line")


def check_shown(job: Job) -> None:
    """Into a pipe there are lines, though mpirun gives rank 0 a terminal of its own; in a terminal there is a bar."""
    def shown(words: list[str], into: int) -> bytes:
        return subprocess.run(words, env=environment(MASTER_PORT=free_port()), check=True, timeout=120, stdout=into, stderr=subprocess.DEVNULL,
                              stdin=subprocess.DEVNULL).stdout or b""

    for words in (job.words("shown", "--ranks", "2"), ["mpirun", "-x", "MASTER_PORT", "-n", "2", *job.words("shown")]):
        text = shown(words, subprocess.PIPE)
        assert b"\x1b" not in text, f"a bar in a pipe: {text!r}"
        assert text.count(b"\nepoch ") == 4, f"expected a line for each of 4 epochs: {text!r}"
    for words in (job.words("shown", "--ranks", "2"),
                  ["mpirun", "-x", "MASTER_PORT", "-x", "MILLRACE_TERMINAL=1", "-n", "2", *job.words("shown")]):
        near, far = os.openpty()
        text = bytearray()
        reader = threading.Thread(target=read_all, args=(near, text))
        reader.start()
        shown(words, far)
        os.close(far)
        reader.join()
        os.close(near)
        assert b"\x1b[K" in text, f"no bar in a terminal: {text!r}"
    print("a line for each epoch in a pipe, a bar in a terminal")


def read_all(terminal: int, text: bytearray) -> None:
    try:
        while piece := os.read(terminal, 4096):
            text += piece
    except OSError:  # its other end is closed
        pass


def newest_step(output: pathlib.Path) -> int:
    return max((int(path.name[5:]) for path in output.glob("checkpoints/step-*") if path.name[5:].isdigit()), default=0)


def check_stop(job: Job, number: signal.Signals, one_rank: bool = False) -> None:
    """The command is asked to stop, or one rank: all ranks end behind one step, one line says so, and the checkpoint of that step is on the disk."""
    output = job.folder / f"stopped{number.name}{one_rank}"
    process = subprocess.Popen(job.words(output.name, "--ranks", "3", "--quiet", config="long"), env=environment(), stdout=subprocess.PIPE,
                               stderr=subprocess.STDOUT, text=True)
    deadline = time.monotonic() + 60
    while not newest_step(output) and time.monotonic() < deadline:
        time.sleep(0.05)
    os.kill(max(ranks_of(output)) if one_rank else process.pid, number)
    text, _ = process.communicate(timeout=60)
    assert process.returncode == 1, f"exit code {process.returncode}: {text}"
    found = re.findall(r"stopped in epoch \d+ at step (\d+): --resume goes on from there", text)
    assert len(found) == 1, f"expected one line of one rank in: {text}"
    assert newest_step(output) == int(found[0]), f"expected a checkpoint of step {found[0]}, found {newest_step(output)}"
    assert not ranks_of(output), "a rank is left behind"
    print(f"{number.name}: stopped at step {found[0]}, behind its checkpoint")


def check_gone(job: Job) -> None:
    """No rank outlives the command, however it ends."""
    output = job.folder / "gone"
    process = subprocess.Popen(job.words(output.name, "--ranks", "2", "--quiet", config="long"), env=environment(), stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 60
    while not newest_step(output) and time.monotonic() < deadline:
        time.sleep(0.05)
    process.kill()
    process.wait()
    while ranks_of(output) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not ranks_of(output), "a rank is left behind"
    print("the command was killed, and its ranks ended")


def check_resume(job: Job) -> None:
    """A job of 200 steps whose ranks are killed behind random steps, or while they start: MILLRACE_KILLS times."""
    (job.folder / "short.toml").write_text(CONFIG.format(epochs=40))
    job.by_flag(2, "whole")
    rng = random.Random(11)
    output = job.folder / "killed"
    killed = 0
    for step in sorted(rng.randrange(195) for _ in range(int(os.environ.get("MILLRACE_KILLS", "3")))):
        more = ["--resume"] if newest_step(output) else []
        process = subprocess.Popen(job.words("killed", "--ranks", "2", "--quiet", *more), env=environment(), stdout=subprocess.DEVNULL,
                                   stderr=subprocess.DEVNULL)
        over = newest_step(output) >= step
        while process.poll() is None and newest_step(output) < step:
            time.sleep(0.002)
        time.sleep(rng.random() * (1 if over else 0.02))
        ranks = ranks_of(output)
        for rank in rng.sample(ranks, rng.randint(1, len(ranks))) if ranks else []:
            os.kill(rank, signal.SIGKILL)
        process.wait(timeout=60)
        killed += bool(ranks)
    job.by_flag(2, "killed", *(["--resume"] if newest_step(output) else []))
    assert killed > 0
    assert job.weights("killed") == job.weights("whole"), f"resumed after {killed} kills: other bits"
    name = f"checkpoints/step-{newest_step(output)}/optimizer.safetensors"
    assert (output / name).read_bytes() == (job.folder / "whole" / name).read_bytes(), f"resumed after {killed} kills: another state of the optimizer"
    print(f"killed and resumed, {killed} times: equal bits")


def main() -> None:
    info = subprocess.run([MILLRACE, "info"], capture_output=True, text=True, check=True).stdout
    if shutil.which("mpirun") is None or "mpi: not in this build" in info:
        print("skipped: this build has no MPI, or there is no mpirun")
        sys.exit(77)
    with tempfile.TemporaryDirectory() as folder:
        job = Job(pathlib.Path(folder))
        check_starts(job)
        check_same_job(job)
        check_said_once(job)
        check_shown(job)
        check_lost_rank(job, signal.SIGKILL, ["rank 2 has died", "signal 9"], 5)
        check_lost_rank(job, signal.SIGSTOP, ["rank 2 gave no sign of life"], 15)
        check_stop(job, signal.SIGTERM, one_rank=True)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            check_stop(job, number)
        check_gone(job)
        check_resume(job)


if __name__ == "__main__":
    main()
