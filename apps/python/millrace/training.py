# SPDX-License-Identifier: Apache-2.0
"""Training jobs, as `millrace train` runs them (docs/training.md): a configuration in, a folder with the model, its curves and checkpoints out."""

from __future__ import annotations

import builtins
import numbers
import operator
import os
import pathlib
import queue
import re
import threading
import weakref
from types import TracebackType
from typing import Any, Callable, Iterator, Mapping, NamedTuple

from ._core import ArgumentError, FileNotFoundError, IoError, ParseError, PermissionError, _in_ranks, _train

__all__ = ["Epoch", "Score", "TrainCurve", "TrainResult", "train", "train_curve"]


class Score(NamedTuple):
    """A mean loss and, of classes, the share that was right."""

    loss: float
    accuracy: float | None


class Epoch(NamedTuple):
    """The results of one epoch."""

    epoch: int
    """From 1 on."""
    step: int
    """Updates so far."""
    train: Score
    """Before each update, over the epoch."""
    validation: Score | None
    learning_rate: float
    gradient_norm: float
    """The mean of its steps."""


class TrainResult(NamedTuple):
    """The end of a job."""

    epochs: list[Epoch]
    best_epoch: int
    """Whose weights were kept."""
    validation: Score | None
    test: Score | None
    folder: pathlib.Path
    files: list[str]
    """That were written there: model.mr and model.onnx, live.mr, curves.svg, metrics.jsonl."""


def _score(of: tuple[float, float | None] | None) -> Score | None:
    return None if of is None else Score(*of)


def _epoch(of: tuple[Any, ...]) -> Epoch:
    return Epoch(of[0], of[1], Score(*of[2]), _score(of[3]), of[4], of[5])


def _toml_text(text: str) -> str:
    return '"' + "".join(c if c >= " " and c not in '"\\\x7f' and not "\ud800" <= c <= "\udfff" else f"\\u{ord(c):04x}" for c in text) + '"'


def _toml_value(place: str, value: Any) -> str:
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # a number of NumPy or PyTorch
        value = value.item()
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, numbers.Integral):
        return repr(int(value))
    if isinstance(value, numbers.Real):
        return repr(float(value))
    if isinstance(value, (str, os.PathLike)):
        return _toml_text(os.fspath(value))
    if isinstance(value, (list, tuple)):  # a line for each, as lines are bounded
        return "[" + ",\n".join(_toml_value(f"{place}[{i}]", one) for i, one in enumerate(value)) + "]"
    raise TypeError(f"train: {place}: expected text, a number, a bool or a list of these in the configuration, found a {type(value).__name__}")


def _toml_key(key: Any) -> str:
    text = str(key)
    return text if re.fullmatch("[A-Za-z0-9_-]+", text) else _toml_text(text)


def _tables(value: Any) -> list[Mapping[str, Any]] | None:
    """The tables of `key = value`; None: it is a value."""
    if isinstance(value, Mapping):
        return [value]
    return list(value) if isinstance(value, (list, tuple)) and value and all(isinstance(one, Mapping) for one in value) else None


def _toml(config: Mapping[str, Any]) -> str:
    """A configuration as TOML: values first, then tables and lists of tables."""
    lines = [f"{_toml_key(key)} = {_toml_value(str(key), value)}" for key, value in config.items() if _tables(value) is None]
    for key, value in config.items():
        for i, table in enumerate(_tables(value) or []):
            lines.append(f"[{_toml_key(key)}]" if isinstance(value, Mapping) else f"[[{_toml_key(key)}]]")
            place = str(key) if isinstance(value, Mapping) else f"{key}[{i}]"
            lines += [f"{_toml_key(inner)} = {_toml_value(f'{place}.{inner}', held)}" for inner, held in table.items()]
    return "\n".join(lines) + "\n"


def _whole(name: str, value: Any, least: int, most: int) -> int:
    """A whole number in the range that the command has."""
    found = operator.index(value)
    if not least <= found <= most:
        raise ArgumentError(f"train: {name}: expected a whole number from {least} to {most}, found {found}")
    return found


def _path(name: str, value: str | os.PathLike[str]) -> str:
    text = os.fspath(value)
    if not text or "\0" in text:
        raise ArgumentError(f"train: {name}: expected a path that is not empty and has no NUL, found {text!r}")
    return text


def _read(name: str) -> str:
    """The text of a file; its errors are those of this library."""
    try:
        return pathlib.Path(name).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ParseError(f"{name}: expected text in UTF-8, found other bytes: {error}") from None
    except OSError as error:
        kind = FileNotFoundError if isinstance(error, builtins.FileNotFoundError) else PermissionError if isinstance(error, builtins.PermissionError) else IoError
        raised = kind(f"{name}: cannot open: {error.strerror}")
        raised.errno, raised.strerror, raised.filename = error.errno, error.strerror, name
        raise raised from None


def train(
    config: str | os.PathLike[str] | Mapping[str, Any],
    *,
    data: str | os.PathLike[str] | None = None,
    output: str | os.PathLike[str] | None = None,
    resume: bool = False,
    seed: int | None = None,
    epochs: int | None = None,
    threads: int = 1,
    ranks: int = 1,
    on_epoch: Callable[[Epoch], object] | None = None,
    on_note: Callable[[str], object] | None = None,
) -> TrainResult:
    """Trains a model on sequences of any lengths, and writes it to the job's folder. The GIL is released meanwhile.

    config:   a TOML file of `millrace train`, or a dict of the same keys: {'epochs': 10, 'data': {…}, 'layer': [{…}, …], …}
    data:     the folder in which relative names of data begin; default: that of the file
    output:   the job's folder, in the place of the configuration's; seed (0 to 2147483647), epochs (1 to 1000000000): likewise
    resume:   goes on from the newest whole checkpoint of that folder
    threads:  1 to 1024; results do not depend on it
    ranks:    1 to 1024 processes on this machine that share each batch, as `millrace train --ranks`; they are started for the job. Processes that `mpirun`, or
              others by RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT, have started share it without this argument: each calls `mr.train` with the same
              arguments, rank 0 writes the files, and it alone calls `on_epoch` and `on_note`
    on_epoch: called after each epoch; what it raises ends the job, as Ctrl-C does, behind a checkpoint
    on_note:  called with lines for people
    """
    if isinstance(config, Mapping):
        text, name = _toml(config), "config"
    else:
        name = _path("config", config)
        text = _read(name)

    def tell(said: tuple[str, Any]) -> None:
        if said[0] == "epoch" and on_epoch is not None:
            on_epoch(_epoch(said[1]))
        elif said[0] != "epoch" and on_note is not None:
            on_note(said[1])

    ranks, threads = _whole("ranks", ranks, 1, 1024), _whole("threads", threads, 1, 1024)
    seed = None if seed is None else _whole("seed", seed, 0, 2**31 - 1)
    epochs = None if epochs is None else _whole("epochs", epochs, 1, 10**9)
    data, output = None if data is None else _path("data", data), None if output is None else _path("output", output)
    arguments = (text, name, data, output, resume, seed, epochs, threads)
    if ranks > 1 and not _in_ranks():
        from ._ranks import train_in_ranks

        made = train_in_ranks(ranks, arguments, tell)
    else:
        made = _train(*arguments, tell)
    return TrainResult([_epoch(one) for one in made[0]], made[1], _score(made[2]), _score(made[3]), pathlib.Path(made[4]), list(made[5]))


class TrainCurve:
    """A job that runs beside its caller: `for epoch in mr.train_curve(config): …`, then `curve.result`. Leaving it early (`close`, the end of a `with`, or
    a `break` where nothing else holds it) stops the job behind a checkpoint. An error of the job is raised by the iteration, by `result`, or at the end of
    a `with`."""

    def __init__(self, run: Callable[[Callable[[Epoch], object]], TrainResult]) -> None:
        self._job = _Job(run)
        self._raised = False
        # The thread holds the job alone, so a curve that nobody iterates any more goes.
        weakref.finalize(self, self._job.close).atexit = False

    def __iter__(self) -> Iterator[Epoch]:
        while (epoch := self._job.queue.get()) is not None:
            yield epoch
        self._job.queue.put(None)
        self._job.thread.join()
        self._raise()

    def _raise(self) -> None:
        if self._job.error is not None:
            self._raised = True
            raise self._job.error

    @property
    def result(self) -> TrainResult:
        """Waits for the end of the job."""
        self._job.thread.join()
        self._raise()
        if self._job.result is None:
            raise RuntimeError("train_curve: the job was stopped before its end")
        return self._job.result

    def close(self) -> None:
        """Stops the job at the end of its epoch, behind a checkpoint."""
        self._job.close()

    def __enter__(self) -> TrainCurve:
        return self

    def __exit__(self, kind: type[BaseException] | None, value: BaseException | None, traceback: TracebackType | None) -> None:
        self.close()
        if kind is None and not self._raised:
            self._raise()


class _Job:
    """The state that a TrainCurve shares with its thread."""

    def __init__(self, run: Callable[[Callable[[Epoch], object]], TrainResult]) -> None:
        self.queue: queue.SimpleQueue[Epoch | None] = queue.SimpleQueue()
        self.result: TrainResult | None = None
        self.error: BaseException | None = None
        self._stop = False
        self._run = run
        self.thread = threading.Thread(target=self._work, name="millrace train", daemon=True)
        self.thread.start()

    def _work(self) -> None:
        try:
            self.result = self._run(self._tell)
        except _Stopped:
            pass
        except BaseException as error:
            self.error = error
        self.queue.put(None)

    def _tell(self, epoch: Epoch) -> None:
        self.queue.put(epoch)
        if self._stop:
            raise _Stopped

    def close(self) -> None:
        self._stop = True
        if threading.current_thread() is not self.thread:  # in which a collection of garbage may find the curve
            self.thread.join()


class _Stopped(Exception):
    pass


def train_curve(config: str | os.PathLike[str] | Mapping[str, Any], **options: Any) -> TrainCurve:
    """The same job as `train`, on a thread: its epochs come by iteration, as they end."""
    return TrainCurve(lambda tell: train(config, on_epoch=tell, **options))
