"""Brings an emulated cluster up and down, runs processes on its hosts and reads its counters.

A process on a host is an ordinary child of this one: nsenter puts it into the host's network namespace, unshare gives
it a UTS name of its own, the host's address (Horovod and others bind to what their host name resolves to).  All of
them exec, so the child's pid is the process itself.  It leads a session of its own: Ctrl-C reaches the experiment,
which ends its processes in order.  Nothing outlives the creator: see `scripts.leftovers`.
"""

import contextlib
import dataclasses
import json
import operator
import os
import secrets
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Self

from scripts import lab
from scripts.lab import Batch, LabSpec
from scripts.leftovers import (
    NETNS_DIR,
    LabError,
    dismiss_guardian,
    existing,
    processes_in,
    remove,
    start_guardian,
    start_ticks,
    sweep,
)
from scripts.process import LocalProcess, Stream

__all__ = ["Counters", "Lab", "LabError", "Stream", "sweep", "why_no_lab"]

_TERM_SECONDS = 2.0
_TOOL_SECONDS = 30.0
_TOOLS = {"ip": "iproute2", "tc": "iproute2", "nsenter": "util-linux", "unshare": "util-linux"}
_CAPABILITIES = {"CAP_NET_ADMIN": 12, "CAP_SYS_ADMIN": 21}
# "$0" is the host's name, the rest the command
_NAME_AND_EXEC = 'printf %s "$0" >/proc/sys/kernel/hostname && exec "$@"'


@dataclass(frozen=True, kw_only=True)
class Counters:
    """What passed a host's NIC so far.  `tx`, `rx`: as the NIC counts, a GSO packet's headers once (1.002 * payload).
    `wire`: as the token buckets count, every packet's headers (1.0465 * payload).
    """

    tx_bytes: int
    rx_bytes: int
    tx_packets: int  # a GSO packet is one
    rx_packets: int
    tx_wire_bytes: int
    rx_wire_bytes: int
    dropped_packets: int

    def __sub__(self, before: "Counters") -> "Counters":
        return self._with(before, operator.sub)

    def __add__(self, other: "Counters") -> "Counters":
        return self._with(other, operator.add)

    def _with(self, other: "Counters", operation: Callable[[int, int], int]) -> "Counters":
        names = [field.name for field in dataclasses.fields(self)]
        return Counters(**{name: operation(getattr(self, name), getattr(other, name)) for name in names})


def why_no_lab() -> str:
    """Why this machine cannot build a lab and what to do about it, or ""."""
    if sys.platform != "linux":
        return f"the emulated cluster needs Linux, this is {sys.platform}: run it in a virtual machine"
    missing = sorted(tool for tool in _TOOLS if shutil.which(tool) is None)
    if missing:
        packages = " ".join(sorted({_TOOLS[tool] for tool in missing}))
        return f"the emulated cluster needs {', '.join(missing)}: apt-get install {packages}"
    if os.geteuid() != 0:
        return f"the emulated cluster needs root, this is user {os.geteuid()}: run the same command with sudo"
    effective = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("CapEff"))
    lacking = [name for name, bit in _CAPABILITIES.items() if not int(effective.split()[1], 16) >> bit & 1]
    if lacking:
        return f"root lacks {' and '.join(lacking)} here: start the container with --privileged"
    return ""


class Lab:
    """An emulated cluster, up inside `with` or from `up` to `down`.  `popen` and `pids` are safe from any thread."""

    def __init__(self, spec: LabSpec) -> None:
        self.spec = spec
        start = start_ticks(os.getpid())
        assert start is not None
        self.prefix = lab.run_prefix(os.getpid(), start, secrets.token_hex(3))
        self._lock = threading.Lock()  # guards _is_up and _processes
        self._is_up = False
        self._processes: list[LocalProcess] = []
        self._guardian: subprocess.Popen[bytes] | None = None
        self._hosts: dict[int, str] = {}  # by the inode of its network namespace

    def __enter__(self) -> Self:
        self.up()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.down()

    def up(self) -> None:
        if self._guardian is not None:
            raise LabError(f"the lab {self.prefix} is up already; build a second one with a second Lab")
        if reason := why_no_lab():
            raise LabError(reason)
        sweep()
        self._guardian = start_guardian(self.prefix)
        try:
            for stage in self.stages():
                _apply(stage)
        except BaseException:
            self.down()
            raise
        places = (*self.spec.names, lab.SWITCH)
        self._hosts = {os.stat(NETNS_DIR / self.namespace(name)).st_ino: name for name in places}
        with self._lock:
            self._is_up = True

    def stages(self) -> tuple[tuple[Batch, ...], ...]:
        """What `up` applies, one after the other; a lab with more than hosts and a switch adds its own."""
        return lab.bring_up(self.spec, self.prefix)

    def down(self) -> None:
        """Ends everything that still runs in the lab, SIGTERM first, and removes it.  Again is harmless."""
        with self._lock:
            self._is_up = False
            processes, self._processes = self._processes, []
        try:
            remove(existing(self.prefix), term_seconds=_TERM_SECONDS)
        finally:
            for process in processes:
                process.kill()  # one that had not entered its namespace yet; does nothing to a finished one
                process.wait(timeout=_TERM_SECONDS)
            if self._guardian is not None:
                dismiss_guardian(self._guardian)
                self._guardian = None

    def namespace(self, host: str) -> str:
        """Of a host, or of the switch."""
        if host == lab.SWITCH:
            return lab.switch_namespace(self.prefix)
        return lab.host_namespace(self.prefix, self.spec.host(host).name)

    def popen(
        self,
        host: str,
        argv: Sequence[str],
        *,
        env: Mapping[str, str] | None = None,
        cwd: str | Path | None = None,
        stdin: Stream = subprocess.DEVNULL,
        stdout: Stream = None,
        stderr: Stream = None,
    ) -> LocalProcess:
        """Starts a process on a host, or in the switch.  `env` None inherits this process's, else it is all of it."""
        enter = [_tool("nsenter"), f"--net={NETNS_DIR / self.namespace(host)}", "--"]
        name = [_tool("unshare"), "--uts", "--", "/bin/sh", "-c", _NAME_AND_EXEC, self.spec.address(host)]
        with self._lock:
            if not self._is_up:
                raise LabError(f"the lab is not up, so {argv[0]} cannot start on {host}; call up() or use `with`")
            process = LocalProcess(
                [*enter, *name, *argv],
                env=env,
                cwd=cwd,
                stdin=stdin,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )
            self._processes = [other for other in self._processes if other.returncode is None]
            self._processes.append(process)
        return process

    def pids(self) -> list[int]:
        """Every live process on the lab's hosts and in its switch, started by `popen` or by its children."""
        return processes_in(lab.namespaces(self.spec, self.prefix))

    def host_of(self, pid: int) -> str:
        """The host on which a process runs; "" if it is gone or not in the lab."""
        try:
            inode = os.stat(f"/proc/{pid}/ns/net").st_ino
        except OSError:
            return ""
        return self._hosts.get(inode, "")

    def counters(self, host: str, nic: int = 0) -> Counters:
        return self._read((host,), nic)[host]

    def all_counters(self) -> dict[str, Counters]:
        """Counters of all hosts, all NICs of one together.  Read them when nothing is in flight: it is in neither."""
        found = self._read(self.spec.names)
        for nic in range(1, self.spec.nics):
            found = {host: found[host] + more for host, more in self._read(self.spec.names, nic).items()}
        return found

    def _read(self, hosts: Sequence[str], nic: int = 0) -> dict[str, Counters]:
        switch = lab.switch_namespace(self.prefix)
        commands = [["tc", "-n", switch, "-s", "-j", "qdisc", "show"]]
        for host in hosts:
            commands.append(["ip", "-n", self.namespace(host), "-s", "-j", "link", "show", "dev", lab.device(nic)])
            commands.append(["tc", "-n", self.namespace(host), "-s", "-j", "qdisc", "show", "dev", lab.device(nic)])
        ports, *answers = (json.loads(text) for text in _run_all([(command, "") for command in commands]))
        buckets = {qdisc["dev"]: qdisc for qdisc in ports if qdisc["kind"] == "tbf"}
        result = {}
        for host, (link,), (sent,) in zip(hosts, answers[::2], answers[1::2], strict=True):
            received = buckets[lab.port(self.spec.names.index(host), nic)]
            result[host] = Counters(
                tx_bytes=link["stats64"]["tx"]["bytes"],
                rx_bytes=link["stats64"]["rx"]["bytes"],
                tx_packets=link["stats64"]["tx"]["packets"],
                rx_packets=link["stats64"]["rx"]["packets"],
                tx_wire_bytes=sent["bytes"],
                rx_wire_bytes=received["bytes"],
                dropped_packets=sent["drops"] + received["drops"],
            )
        return result


def _apply(stage: Iterable[Batch]) -> None:
    _run_all([(_command(batch), batch.text) for batch in stage])


def _command(batch: Batch) -> list[str]:
    if batch.tool == "sh":
        return ["nsenter", f"--net={NETNS_DIR / batch.namespace}", "--", "/bin/sh", "-eu"]
    return [batch.tool, *(["-n", batch.namespace] if batch.namespace else []), "-batch", "-"]


def _run_all(commands: Sequence[tuple[Sequence[str], str]]) -> list[bytes]:
    """Runs the commands side by side, each with its standard input; the outputs in order, or the first failure."""
    running = []
    with contextlib.ExitStack() as stack:
        for argv, text in commands:
            process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
            stack.enter_context(process)
            stack.callback(process.kill)
            assert process.stdin is not None
            process.stdin.write(text.encode())  # a few lines: fits into the pipe
            process.stdin.close()
            process.stdin = None
            running.append(process)
        outputs = [process.communicate(timeout=_TOOL_SECONDS) for process in running]
    for (argv, _), process, (_, error) in zip(commands, running, outputs, strict=True):
        if process.returncode != 0:
            hint = "the kernel needs veth, bridge, sch_tbf and tcp_cubic (try modprobe)"
            raise LabError(f"{' '.join(argv)} failed: {error.decode().strip()}; {hint}")
    return [output for output, _ in outputs]


def _tool(name: str) -> str:
    """Absolute, since `env` of a process on a host may come without PATH."""
    path = shutil.which(name)
    if path is None:
        raise LabError(why_no_lab())
    return path


def _main(argv: Sequence[str]) -> int:
    if list(argv) == ["list"]:
        for namespace in sorted(os.listdir(NETNS_DIR)) if NETNS_DIR.exists() else []:
            if (creator := lab.creator_of(namespace)) is not None:
                state = "in use" if start_ticks(creator[0]) == creator[1] else "left over"
                print(f"{namespace}  creator {creator[0]}, {state}, {len(processes_in([namespace]))} processes")
        return 0
    if list(argv) == ["sweep"]:
        if reason := why_no_lab():
            print(reason, file=sys.stderr)
            return 1
        for namespace in sweep():
            print(f"removed {namespace}")
        return 0
    print("usage: python -m scripts.netns list|sweep", file=sys.stderr)
    return 2


if __name__ == "__main__":
    sys.exit(_main(sys.argv[1:]))
