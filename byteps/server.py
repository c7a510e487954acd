"""The processes of the Summation Service: a role of its own on CPU machines, a worker's child on GPU machines."""

import argparse
import math
import os
import secrets
import socket
import subprocess
import sys
import threading
from typing import Final

from byteps import wire
from byteps.errors import BytePSError
from byteps.handshake import Acceptor, format_address, is_loopback, listen
from byteps.interfaces import own_address
from byteps.launcher import die_with_parent, settings_from_environment
from byteps.net import Connection, ConnectionLost, Flusher
from byteps.rendezvous import Link, check_secret, log
from byteps.service import SummationService
from byteps.settings import Settings
from byteps.version import VERSION
from byteps.wire import Message, ProtocolError

_CHECK_SECONDS: Final = 1.0
_VERDICT_SECONDS: Final = 5.0


class ServiceProcess:
    """A summation service as a member of a job."""

    def __init__(self, settings: Settings, *, rank: int, process: int, processes: int, machine: str) -> None:
        """`rank` is that of the worker whose machine it shares, or -1 on a CPU machine."""
        self._settings = settings
        self._who = "server" if rank < 0 else f"summation service of worker {rank}"
        self._flusher = Flusher()
        self._link = Link(settings, self._flusher, self._who)
        host = own_address(settings, self._link.local_host, process)
        check_secret(settings, host)
        sock = listen(host, 0)
        self._service = SummationService(
            num_workers=settings.num_workers, stall_warn_seconds=settings.stall_warn_seconds, report=self._link.send
        )
        self._planned = threading.Event()
        self._plan: wire.Plan | None = None
        self._acceptor = Acceptor(sock, settings.secret, self._admit, lambda text: log(self._who, text))
        self._link.start(
            wire.Register(
                role="server" if rank < 0 else "service",
                rank=rank if rank >= 0 else settings.server_id,
                num_workers=settings.num_workers,
                num_servers=settings.num_servers,
                version=VERSION,
                machine=machine,
                process=process,
                processes=processes,
                address=format_address(sock.getsockname()[:2]),
                local=is_loopback(host),
                nic_bytes_per_s=settings.nic_bytes_per_s,
            ),
            self._control,
        )

    def run(self) -> int:
        """Until the job is over; the exit code."""
        while not self._link.finished.wait(_CHECK_SECONDS):
            self._service.check_stalls()
        self._acceptor.close()
        if summary := self._service.store.summary():
            log(self._who, summary)
        if self._link.failure is not None:
            log(self._who, self._link.failure.text)
            return 1
        for connection in self._service.connections.values():
            connection.drain(_VERDICT_SECONDS)
        return 0

    def adopt(self, fd: int, rank: int) -> None:
        """Serve this machine's own worker over an inherited socket pair, which never touches the NIC."""
        connection = Connection(socket.socket(fileno=fd), self._flusher)
        threading.Thread(target=self._serve, args=(rank, connection), name=f"worker {rank}", daemon=True).start()

    def _control(self, message: Message) -> None:
        match message:
            case wire.Plan():
                self._plan = message
                self._planned.set()
            case wire.Notice(text=text):
                log(self._who, text)
            case wire.Departed(rank=rank):
                self._service.departed(rank)
            case wire.Finish() | wire.Failed():
                self._link.finished.set()

    def _admit(self, sock: socket.socket, peer: str) -> None:
        """In the acceptor's thread, which becomes the worker's reader."""
        connection = Connection(sock, self._flusher, congestion_control=self._settings.congestion_control)
        try:
            hello = connection.receive_message()
            if not isinstance(hello, wire.Hello):
                raise ProtocolError("the first message must say which worker this is")
            self._planned.wait(self._settings.start_seconds)
            if self._plan is None or hello.job != self._plan.job:
                raise ProtocolError("it belongs to another job")
            if not 0 <= hello.rank < self._settings.num_workers or hello.rank in self._service.connections:
                raise ProtocolError(f"rank {hello.rank} is connected already, or not of this job")
        except (ProtocolError, ConnectionLost) as error:
            log(self._who, f"closed the connection from {peer}: {error}")
            connection.close()
            return
        self._serve(hello.rank, connection)

    def _serve(self, rank: int, connection: Connection) -> None:
        self._service.connections[rank] = connection
        try:
            self._service.serve(rank, connection)
        except ConnectionLost:
            if not self._link.finished.is_set() and rank not in self._service._departed:
                self._link.send(wire.Lost(peer=self._name(rank)))
        except ProtocolError as error:
            self._link.send(wire.Violation(text=f"{self._who} refused a frame of {self._name(rank)}: {error}"))

    def _name(self, machine: int) -> str:
        """The worker that sends what a machine contributes."""
        return f"worker {machine * (self._plan.local_size if self._plan is not None else 1)}"


def num_processes(settings: Settings) -> int:
    """Summation processes per machine: one per 4 cores, so that cores and not the interpreter lock set the limit.

    As many on every NIC, unless the user says how many.
    """
    nics = max(len(settings.nics), 1)
    return settings.service_processes or math.ceil(max((os.cpu_count() or 1) // 4, 1) / nics) * nics


def service_command(*, rank: int, process: int, processes: int, machine: str, fd: int = -1) -> list[str]:
    """The command line of one summation process."""
    words = ["--rank", rank, "--process", process, "--processes", processes, "--machine", machine, "--fd", fd]
    return [sys.executable, "-m", "byteps.server", *map(str, words)]


def run_server(settings: Settings) -> int:
    """The server role of a CPU machine: one process, or several; the exit code."""
    if not settings.networked:
        log("server", "one machine needs no server (BYTEPS_FORCE_DISTRIBUTED=1 forces the use of one); done")
        return 0
    processes = num_processes(settings)
    machine = secrets.token_hex(8)  # containers may share a host's name and a process id
    if processes == 1:
        return ServiceProcess(settings, rank=-1, process=0, processes=1, machine=machine).run()
    environment = {**os.environ, **settings.to_environment()}
    children = [
        subprocess.Popen(
            service_command(rank=-1, process=process, processes=processes, machine=machine),
            env=environment,
            preexec_fn=die_with_parent,
        )
        for process in range(processes)
    ]
    return max(abs(child.wait()) for child in children)


def main() -> int:
    """Entry point of a summation process started by a worker or by `run_server`."""
    parser = argparse.ArgumentParser(description="One summation process; started by byteps itself.")
    parser.add_argument("--rank", type=int, required=True)
    parser.add_argument("--process", type=int, required=True)
    parser.add_argument("--processes", type=int, required=True)
    parser.add_argument("--machine", required=True)
    parser.add_argument("--fd", type=int, required=True)
    arguments = parser.parse_args()
    settings = settings_from_environment()
    try:
        process = ServiceProcess(
            settings,
            rank=arguments.rank,
            process=arguments.process,
            processes=arguments.processes,
            machine=arguments.machine,
        )
        if arguments.fd >= 0:
            process.adopt(arguments.fd, arguments.rank)
        return process.run()
    except BytePSError as error:
        log("server", str(error))
        return 1


if __name__ == "__main__":
    sys.exit(main())
