"""What BytePS costs before it does anything: seconds of `import byteps`, and memory of a server without data.

import byteps        fresh interpreter, wall clock of the import statement and a first use of its names    below 0.3 s
                     torch must not be among the loaded modules: servers never need it
a server process     resident set size after all workers have connected, before the first tensor           below 80 MB
"""

import os
import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import msgspec

from baselines import contenders
from baselines.launch import ROOT, Contender
from experiments import here, record
from experiments.bounds import Row
from experiments.crew import LaunchError
from experiments.record import Case, OracleCheck, Record
from experiments.run import blank_record

NAME = "footprint"
IMPORT, SERVER = "import", "idle server"
_IMPORT = """
import sys, time
started = time.perf_counter()
import byteps
byteps.push_pull
print(time.perf_counter() - started, int("torch" in sys.modules))
"""
_WORKER = """
import sys, byteps
byteps.init()
print("connected", flush=True)
sys.stdin.readline()
byteps.shutdown()
"""
_MB = 1e6
_DEADLINE_SECONDS = 30.0


def cases(*, blocks: int = 5, tier: str = "reproduce") -> list[Case]:
    """Fresh processes in every block."""
    return [
        Case(
            experiment=NAME,
            tier=tier,
            contender="byteps",
            settings={"what": what},
            n=1,
            k=1 if what == SERVER else 0,
            nic_bytes_per_s=0.0,
            nbytes=1,  # nothing is moved
            warmups=0,
            iterations=1,
            block=block,
            position=position,
        )
        for block in range(blocks)
        for position, what in enumerate((IMPORT, SERVER))
    ]


def contender(name: str) -> Contender:
    return contenders.get(name)


def execute(wanted: Sequence[Case], raw: Path, tell: Callable[[str], None]) -> list[Record]:
    """Each measured and recorded."""
    records = []
    for case in wanted:
        blank = blank_record(case, contenders.get(case.contender), "measured")
        try:
            one = _import(blank) if case.settings["what"] == IMPORT else _server(blank)
        except (LaunchError, subprocess.SubprocessError, OSError) as error:
            one = msgspec.structs.replace(blank, error=f"{type(error).__name__}: {error}")
        record.append(raw / f"{NAME}.jsonl", one)
        records.append(one)
        tell(f"{case.title}: {one.error or one.facts}")
    return records


def _import(blank: Record) -> Record:
    command = [sys.executable, "-c", _IMPORT]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=True, timeout=_DEADLINE_SECONDS)
    seconds, with_torch = done.stdout.split()
    return _filled(blank, float(seconds), no_torch=with_torch == "0", facts={"import_seconds": seconds})


def _server(blank: Record) -> Record:
    """A job of 1 worker and 1 server, up to the point where everything is connected."""
    environment = {
        **{name: value for name, value in os.environ.items() if not name.startswith(("BYTEPS_", "DMLC_"))},
        **{"DMLC_PS_ROOT_URI": here.LOOPBACK, "DMLC_PS_ROOT_PORT": str(here.free_port()), "DMLC_NUM_WORKER": "1"},
        **{"DMLC_NUM_SERVER": "1", "BYTEPS_FORCE_DISTRIBUTED": "1", "BYTEPS_JOB_SECRET": secrets.token_hex(16)},
    }
    role = [sys.executable, "-m", "byteps", "launch"]
    started = time.monotonic()
    machine = here.ThisMachine()
    processes = [
        machine.popen("scheduler", role, env={**environment, "DMLC_ROLE": "scheduler"}, cwd=ROOT),
        machine.popen("server", role, env={**environment, "DMLC_ROLE": "server"}, cwd=ROOT),
        machine.popen(
            "worker",
            [*role, "--", sys.executable, "-c", _WORKER],
            env={**environment, "DMLC_ROLE": "worker", "DMLC_WORKER_ID": "0"},
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
        ),
    ]
    worker = processes[-1]
    assert worker.stdout is not None
    assert worker.stdin is not None
    try:
        if worker.stdout.readline().strip() != b"connected":  # the start time-out of BytePS bounds the wait
            raise LaunchError("the worker did not connect to the server")
        seconds = time.monotonic() - started
        rss = [_rss_bytes(pid) for pid in machine.pids("server")]
        torch = any("libtorch" in Path(f"/proc/{pid}/maps").read_text() for pid in machine.pids("server"))
    finally:
        worker.stdin.close()
        for process in processes:
            try:
                process.wait(_DEADLINE_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        worker.stdout.close()
    facts = {"rss_bytes": str(max(rss)), "processes": str(len(rss))}
    return _filled(blank, seconds, no_torch=not torch, facts=facts)


def _rss_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def _filled(blank: Record, seconds: float, *, no_torch: bool, facts: dict[str, str]) -> Record:
    """The check of these records is that torch stays away."""
    check = OracleCheck(max_error=0.0, tolerance=0.0, checked=1, passed=no_torch)
    return msgspec.structs.replace(blank, seconds=[seconds], oracle=check, facts=facts)


def rows(records: Sequence[Record]) -> list[Row]:
    """Both quantities, and how often torch was loaded."""

    def of(what: str) -> list[Record]:
        return [one for one in records if not one.error and one.case.settings["what"] == what]

    torch = sum(one.oracle is not None and not one.oracle.passed for one in records)
    return [
        Row(
            what="import byteps",
            unit="s",
            values=tuple(one.seconds[0] for one in of(IMPORT)),
            bound=0.3,
            direction="at most",
        ),
        Row(
            what="idle server, resident",
            unit="MB",
            values=tuple(int(one.facts["rss_bytes"]) / _MB for one in of(SERVER)),
            bound=80.0,
            direction="at most",
        ),
        Row(what="processes with torch", values=(float(torch),), bound=0.0, direction="at most"),
    ]
