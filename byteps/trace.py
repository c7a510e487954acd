"""What a worker did when, as Chrome trace events: open the file in ui.perfetto.dev or chrome://tracing.

Rows of a worker: its steps; computation (forward: until the first gradient is ready; backward: from the first gradient
to the last); waiting, which is the communication that computation did not hide; and for every tensor its push_pulls,
from the call until its first partition is sent ("queued"), and from there until the last answer.

Every worker writes a file of its own, out.rank3.json; `byteps launch` joins those of a local job into out.json.  A file
is a JSON array with one event per line, appended in whole lines.  The closing bracket, which viewers do without, comes
last: a worker that was killed leaves a file that opens.  Times are the host's monotonic clock, the same for all its
processes.  A step ends with an optimiser's step; only a window of steps is recorded, so that the file stays small.

    python -m byteps.trace out.json        step, communication and exposed time per worker
"""

import json
import os
import sys
import threading
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, Final

from byteps.errors import StartError
from byteps.settings import Steps

Event = dict[str, Any]

STEP, COMPUTE, WAIT, QUEUED, PUSH_PULL = "step", "compute", "wait", "queued", "push_pull"
_ROWS: Final = (STEP, COMPUTE, WAIT)  # those of tensors come below
_FLUSH_LINES: Final = 256
_MAX_LINES: Final = 200_000  # 30 MB: for programs without steps, and steps of very many tensors
_encode: Final = json.JSONEncoder(separators=(",", ":")).encode
_OPENING: Final = b"[\n"
_CLOSING: Final = b'{"name":"complete","ph":"M","pid":0,"args":{}}\n]\n'


@dataclass(eq=False, slots=True)
class Span:
    """One push_pull of one tensor.  Each moment is told by the thread that sees it."""

    trace: "Trace"
    name: str
    nbytes: int
    step: int
    submitted: int
    sent: int = 0

    def leaves(self) -> None:
        """A partition is sent; the first counts."""
        self.sent = self.sent or time.monotonic_ns()

    def answered(self) -> None:
        """The last answer is in."""
        self.trace._answered(self, time.monotonic_ns())


class Trace:
    """A worker's events.  Any thread may call it; a write takes lines, never parts of one."""

    def __init__(self, path: Path, rank: int, steps: Steps) -> None:
        """`path` is the job's; this worker's has its rank in the name."""
        self._file = _create(path_of(path, rank))
        self._rank = rank
        self._steps = steps
        self._lock = threading.Lock()  # guards _lines, _rows and _written
        self._lines: list[str] = []
        self._rows: dict[str, int] = {}  # of tensors
        self._written = 0
        self._step = 0
        self._began = time.monotonic_ns()
        self._used = False  # whether this step has submitted anything
        self._first_gradient = self._last_gradient = self._last_answer = 0
        self._hidden = False
        self._hook: Any = None
        self._meta("process_name", 0, name=f"worker {rank}")
        self._meta("process_sort_index", 0, sort_index=rank)
        for row, name in enumerate(_ROWS):
            self._name(row, name)

    @property
    def _recording(self) -> bool:
        return self._steps.first <= self._step < self._steps.end and self._written < _MAX_LINES

    def count_steps_of(self, optimizer: ModuleType) -> None:
        """The steps of any optimiser of torch, whichever way its gradients are summed, are the steps of the trace."""
        self._hook = optimizer.register_optimizer_step_post_hook(lambda *_: self.step())

    def submitted(self, name: str, nbytes: int) -> Span | None:
        """The user calls push_pull; None outside the window."""
        self._used = True
        return Span(self, name, nbytes, self._step, time.monotonic_ns()) if self._recording else None

    def gradient(self, *, hidden: bool = False) -> None:
        """The backward pass has a gradient ready; `hidden`: for which somebody waits where no Python sees it."""
        self._used, self._hidden = True, hidden
        self._last_gradient = time.monotonic_ns()
        self._first_gradient = self._first_gradient or self._last_gradient

    def waited(self, name: str, began: int) -> None:
        """The user's thread got its result, and had to wait.  Other threads hold nobody up."""
        if threading.current_thread() is threading.main_thread():
            self._event(WAIT, name, began, time.monotonic_ns())

    def _answered(self, span: Span, now: int) -> None:
        self._last_answer = now
        self._event(QUEUED, span.name, span.submitted, span.sent, span)
        self._event(PUSH_PULL, span.name, span.sent, now, span)

    def step(self) -> None:
        """An optimiser has stepped; one that is wrapped in another says so twice."""
        if not self._used:
            return
        now = time.monotonic_ns()
        if self._first_gradient:
            self._event(COMPUTE, "forward", self._began, self._first_gradient)
            self._event(COMPUTE, "backward", self._first_gradient, self._last_gradient)
            if self._hidden and self._last_answer > self._last_gradient:
                self._event(WAIT, "gradients", self._last_gradient, self._last_answer)
        self._event(STEP, f"step {self._step}", self._began, now)
        self._flush()
        self._step += 1
        self._began = now
        self._used = False
        self._first_gradient = self._last_gradient = self._last_answer = 0

    def close(self) -> None:
        if self._hook is not None:
            self._hook.remove()
        self._flush()
        self._write(_CLOSING)
        os.close(self._file)

    def _event(self, kind: str, name: str, began: int, ended: int, span: Span | None = None) -> None:
        if span is None and not self._recording:
            return
        args = {"step": self._step} if span is None else {"step": span.step, "bytes": span.nbytes}
        row = _ROWS.index(kind) if span is None else self._row(name)
        times = {"ts": began / 1000, "dur": (ended - began) / 1000}
        self._line({"name": name, "cat": kind, "ph": "X", "pid": self._rank, "tid": row, **times, "args": args})

    def _row(self, name: str) -> int:
        with self._lock:
            if (row := self._rows.get(name)) is not None:
                return row
            row = self._rows[name] = len(self._rows) + len(_ROWS)
        self._name(row, name)
        return row

    def _name(self, row: int, name: str) -> None:
        self._meta("thread_name", row, name=name)
        self._meta("thread_sort_index", row, sort_index=row)

    def _meta(self, kind: str, row: int, **args: object) -> None:
        self._line({"name": kind, "ph": "M", "pid": self._rank, "tid": row, "args": args})

    def _line(self, event: Event) -> None:
        line = _encode(event)
        with self._lock:
            self._lines.append(line)
            self._written += 1
            full = len(self._lines) >= _FLUSH_LINES
        if full:
            self._flush()

    def _flush(self) -> None:
        with self._lock:
            if self._lines:
                self._write("".join(f"{line},\n" for line in self._lines).encode())
                self._lines.clear()

    def _write(self, data: bytes) -> None:
        """One call, which the kernel appends as a whole.  A disk that is full ends the trace, not the training."""
        try:
            os.write(self._file, data)
        except OSError as error:
            self._steps = Steps(0, 0)
            sys.stderr.write(f"byteps: worker {self._rank} stops its trace: {error.strerror}\n")


def _create(path: Path) -> int:
    try:
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o644)
        os.write(file, _OPENING)
    except OSError as error:
        raise StartError(f"cannot write the trace to {str(path)!r}: {error.strerror}; name another file") from None
    return file


def path_of(path: Path, rank: int) -> Path:
    """The file of one worker."""
    return path.with_name(f"{path.stem}.rank{rank}{path.suffix}")


def prepare_files(path: Path, workers: int) -> None:
    """Before a local job; an error if the trace cannot be written.  No file of an earlier job may become part of it."""
    os.close(_create(path))
    for rank in range(workers):
        path_of(path, rank).unlink(missing_ok=True)


def join_files(path: Path, workers: int) -> None:
    """After a local job, whichever way it ended: one file of its workers'."""
    parts = [part for rank in range(workers) if (part := path_of(path, rank)).exists()]
    with path.open("wb") as file:
        file.write(_OPENING)
        for part in parts:
            data = part.read_bytes().removeprefix(_OPENING).removesuffix(_CLOSING)
            file.write(data[: data.rfind(b"\n") + 1])
        file.write(_CLOSING)
    for part in parts:
        part.unlink()


# ---- reading ----


@dataclass(frozen=True, kw_only=True)
class StepTimes:
    """One step of one worker, in seconds."""

    rank: int
    step: int
    seconds: float
    communication: float  # at least one push_pull under way, from its first partition to its last answer
    exposed: float  # waiting for it

    @property
    def overlap(self) -> float:
        """The share of the communication that computation hid."""
        return max(1 - self.exposed / self.communication, 0.0) if self.communication else 1.0


def read(path: Path) -> Iterator[Event]:
    """The events of a trace, complete or not."""
    for line in path.read_text(errors="replace").splitlines():
        try:
            event = json.loads(line.rstrip(","))
        except ValueError:
            continue  # a bracket
        if isinstance(event, dict):
            yield event


def step_times(events: Iterable[Event]) -> list[StepTimes]:
    """Every complete step in the trace, by rank and number."""
    steps: dict[tuple[int, int], float] = {}
    waits: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    transfers: dict[tuple[int, int], list[tuple[float, float]]] = defaultdict(list)
    for event in events:
        if event["ph"] != "X":
            continue
        key, began, length = (event["pid"], event["args"]["step"]), event["ts"], event["dur"]
        if event["cat"] == STEP:
            steps[key] = length
        elif event["cat"] in (WAIT, PUSH_PULL):
            (waits if event["cat"] == WAIT else transfers)[key].append((began, began + length))
    return [
        StepTimes(
            rank=rank,
            step=step,
            seconds=steps[rank, step] * 1e-6,
            communication=_measure(transfers[rank, step]) * 1e-6,
            exposed=_measure(waits[rank, step]) * 1e-6,
        )
        for rank, step in sorted(steps)
    ]


def _measure(intervals: Iterable[tuple[float, float]]) -> float:
    """The length of their union."""
    total, end = 0.0, float("-inf")
    for began, ended in sorted(intervals):
        total += max(ended - max(began, end), 0.0)
        end = max(end, ended)
    return total


def table(found: Sequence[StepTimes]) -> str:
    """Medians over a worker's steps."""
    from statistics import median  # here, because its import takes longer than the rest of this module's

    lines = ["worker  steps  step (ms)  communication (ms)  exposed (ms)  overlap"]
    for rank in sorted({one.rank for one in found}):
        mine = [one for one in found if one.rank == rank]
        step, communication, exposed = (
            1e3 * median(getattr(one, name) for one in mine) for name in ("seconds", "communication", "exposed")
        )
        overlap = median(one.overlap for one in mine)
        lines.append(f"{rank:6d}  {len(mine):5d}  {step:9.2f}  {communication:18.2f}  {exposed:12.2f}  {overlap:6.0%}")
    return "\n".join(lines)


if __name__ == "__main__":
    for name in sys.argv[1:]:
        print(table(step_times(read(Path(name)))))
