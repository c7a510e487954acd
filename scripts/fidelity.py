"""Was this machine fast enough for what it emulated?  Watched during a run, put into its record.

The lab slows the network down, not the processors.  If the processes of n emulated machines get in each other's way on
the few cores there are, the run measures this machine and not the network.  Three observations, the first decides:

- lateness of a canary that sleeps 1 ms in a loop (`scripts.canary`): p99 up to 3 ms is good, up to 10 ms suspect, above
  that the run was CPU-bound and enters no figure;
- the run-queue wait of the run's own threads: the share of the time that the worst-off thread was runnable and had no
  core, from the second field of /proc/PID/task/TID/schedstat; near 0 is good, near 1 bad.  Not waited / (ran + waited):
  network threads run for microseconds, so that ratio is 0.7 on a machine that is a third idle;
- the idle share of the machine.  busy = cores * wall - idle - iowait, because the kernel samples the other fields of
  /proc/stat at ticks and misses what runs in between.  By itself a poor signal: a run may be faithful at 90 % busy.
"""

import contextlib
import os
import select
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Literal, Self

GOOD_LATENESS_SECONDS, CPU_BOUND_LATENESS_SECONDS = 3e-3, 10e-3

_SAMPLE_SECONDS = 1.0  # of short-lived threads at most this much of the end is lost
_CANARY_SECONDS = 10.0  # to start, and to answer
_CANARY = Path(__file__).with_name("canary.py")

_Thread = tuple[int, int]  # process id, thread id


@dataclass(frozen=True, kw_only=True)
class Fidelity:
    """What was observed during `wall_seconds` of a run."""

    wall_seconds: float
    lateness_p50_seconds: float
    lateness_p99_seconds: float
    run_queue_wait_share: float
    idle_share: float

    @property
    def verdict(self) -> Literal["good", "suspect", "cpu-bound"]:
        if self.lateness_p99_seconds <= GOOD_LATENESS_SECONDS:
            return "good"
        return "suspect" if self.lateness_p99_seconds <= CPU_BOUND_LATENESS_SECONDS else "cpu-bound"


def wait_share(first_ns: Mapping[_Thread, int], last_ns: Mapping[_Thread, int], wall_seconds: float) -> float:
    """The largest share of the time that one thread waited; `first_ns` lacks the threads that started later."""
    return max((last_ns[thread] - first_ns.get(thread, 0) for thread in last_ns), default=0) * 1e-9 / wall_seconds


def idle_share(idle_ticks: int, ticks_per_s: int, num_cores: int, wall_seconds: float) -> float:
    """`idle_ticks` of all cores together, idle and iowait, as a share of what the cores had; ticks round it above 1."""
    return min(1.0, idle_ticks / ticks_per_s / (num_cores * wall_seconds))


class FidelityError(RuntimeError):
    """Nobody could watch: the canary did not answer."""


class Watch:
    """Observes from entering to leaving; `pids` names the processes of the run whenever asked, such as `Lab.pids`."""

    fidelity: Fidelity  # after leaving

    def __init__(self, pids: Callable[[], Iterable[int]]) -> None:
        self._pids = pids
        self._leave = threading.Event()
        self._sampler = threading.Thread(target=self._sample, name="run-queue sampler", daemon=True)
        # Only the sampler touches these until it is joined: nanoseconds waited per thread.
        self._first: dict[_Thread, int] = {}
        self._last: dict[_Thread, int] = {}

    def __enter__(self) -> Self:
        self._canary = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_CANARY)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            start_new_session=True,
        )
        if self._answer() != "awake":
            self._canary.kill()
            raise FidelityError(f"the canary did not start: {sys.executable} {_CANARY}")
        self._first.update(self._waited())
        self._last.update(self._first)
        self._idle_ticks, self._start = _idle_ticks(), time.monotonic()
        self._sampler.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        wall_seconds = time.monotonic() - self._start
        idle_ticks = _idle_ticks() - self._idle_ticks
        assert self._canary.stdin is not None
        self._canary.stdin.close()
        self._leave.set()
        self._sampler.join()
        self._last.update(self._waited())
        try:
            answer = self._answer().split()
        finally:
            self._canary.kill()
            self._canary.wait()
            assert self._canary.stdout is not None
            self._canary.stdout.close()
        if len(answer) != 3:
            if error is not None:
                return  # what went wrong inside matters more
            raise FidelityError(f"the canary did not say how late it was, but {' '.join(answer)!r}")
        p50, p99, _ = map(float, answer)
        self.fidelity = Fidelity(
            wall_seconds=wall_seconds,
            lateness_p50_seconds=p50,
            lateness_p99_seconds=p99,
            run_queue_wait_share=wait_share(self._first, self._last, wall_seconds),
            idle_share=idle_share(idle_ticks, os.sysconf("SC_CLK_TCK"), _num_cores(), wall_seconds),
        )

    def _sample(self) -> None:
        while not self._leave.wait(_SAMPLE_SECONDS):
            self._last.update(self._waited())

    def _waited(self) -> dict[_Thread, int]:
        result = {}
        for pid in self._pids():
            with contextlib.suppress(OSError):  # the process or the thread ended meanwhile
                for tid in os.listdir(f"/proc/{pid}/task"):
                    result[pid, int(tid)] = int(Path(f"/proc/{pid}/task/{tid}/schedstat").read_bytes().split()[1])
        return result

    def _answer(self) -> str:
        assert self._canary.stdout is not None
        ready, _, _ = select.select([self._canary.stdout], [], [], _CANARY_SECONDS)
        return self._canary.stdout.readline().decode().strip() if ready else ""


def _idle_ticks() -> int:
    """idle + iowait of all cores since boot."""
    fields = Path("/proc/stat").read_text().split("\n", 1)[0].split()
    return int(fields[4]) + int(fields[5])


def _num_cores() -> int:
    """As many as /proc/stat counts, which may be more than this process may use."""
    return sum(line.startswith("cpu") for line in Path("/proc/stat").read_text().splitlines()) - 1
