"""An emulated cluster whose hosts are reached as real ones are: a sshd, a process table and a work directory in each.

    python -m scripts.sshlab --gpu 2 --cpu 2 -- make reproduce CLUSTER=cluster.toml TIER=smoke

brings up the hosts gpu0, gpu1, cpu0, cpu1 and one more, `control`, writes a cluster file (see `byteps.hosts`), runs the
command on `control`, where the file's path is also in $CLUSTER, and takes everything down again.  Nothing of the system
is touched: keys, known hosts and sshd's configuration are made for this lab, in a folder of its own.

A host is `scripts.netns`'s, with mount and process namespaces of its own below it.  Its work directory is a folder of
the lab's, mounted over the same path on every host, so that hosts share no files; /run and /dev/shm are its own, too.
The holder of a host's process namespace takes the whole host with it when it is killed, as `kill_host` does; the lab's
guardian kills it like any other process of the lab.
"""

import argparse
import json
import os
import select
import shlex
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Self

from byteps.units import parse_rate
from scripts.lab import overload, star
from scripts.netns import Lab, LabError, why_no_lab

CONTROL = "control"
WORKDIR = "/var/tmp/byteps-cluster"  # of every host; in the machine's own file system only an empty folder
USER = "root"

_SSHD = ("/usr/sbin/sshd", "/usr/local/sbin/sshd")
_START_SECONDS = 20.0
_END_SECONDS = 20.0
_CONFIG = """\
Port 22
ListenAddress {address}
HostKey {folder}/host_{name}
AuthorizedKeysFile {folder}/client.pub
PidFile none
StrictModes no
UsePAM no
PasswordAuthentication no
KbdInteractiveAuthentication no
PermitRootLogin prohibit-password
UseDNS no
MaxStartups 100
MaxSessions 100
Subsystem sftp internal-sftp
"""
# "$0" is the host's name, for the process list; then its folder, the work directory, sshd and its configuration.  The
# holder is init of its process namespace: it ignores SIGTERM, and SIGKILL of it ends the host.  root's ~/.bashrc is not
# the lab's business.
_BOOT = """\
mount --bind "$1" "$2"
mount -t tmpfs tmpfs /run && mkdir /run/sshd
mount -t tmpfs tmpfs /dev/shm
if [ -e /root/.bashrc ]; then mount --bind /dev/null /root/.bashrc; fi
mount -t sysfs sysfs /sys
exec "$3" -D -e -f "$4"
"""


def why_no_sshlab() -> str:
    """Why this machine cannot build one and what to do about it, or ""."""
    if reason := why_no_lab():
        return reason
    if _sshd() is None:
        return "hosts that are reached by ssh need sshd: make sshd (installs openssh-server)"
    return ""


def _sshd() -> str | None:
    return next((path for path in _SSHD if os.access(path, os.X_OK)), None)


class SshLab:
    """Hosts with a sshd each, and `control`, up inside `with`.

    `rates`: bytes/s of each host's NIC by its name; names that begin with "cpu" get that role, all others are GPU
    machines.  `install`: further keys of [install] by role ("" for all), such as {"gpu": {"environment": sys.prefix}}.
    `extra`: TOML for the cluster file's top.  Afterwards `cluster_file` describes the hosts.
    """

    def __init__(
        self, rates: Mapping[str, float], *, install: Mapping[str, Mapping[str, str | list[str]]] = {}, extra: str = ""
    ) -> None:
        if CONTROL in rates:
            raise ValueError(f"host name {CONTROL!r} is the lab's own; give the host another")
        self.rates = dict(rates)
        self._install = {role: dict(keys) for role, keys in install.items()}
        self._extra = extra
        self.lab = Lab(star({**self.rates, CONTROL: max(self.rates.values())}))
        self._holders: dict[str, subprocess.Popen[bytes]] = {}
        self._folder = tempfile.TemporaryDirectory(prefix="byteps-sshlab-")
        self.folder = Path(self._folder.name)
        self.cluster_file = self.folder / "cluster.toml"

    def __enter__(self) -> Self:
        try:
            if reason := why_no_sshlab():
                raise LabError(reason)
            Path(WORKDIR).mkdir(parents=True, exist_ok=True)
            self._make_keys()
            self.lab.up()
            for name in self.rates:
                self.boot(name)
            self._write_cluster_file()
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.lab.down()
        for holder in self._holders.values():
            holder.wait(timeout=_END_SECONDS)
        self._folder.cleanup()

    def boot(self, name: str) -> None:
        """Start a host, for the first time or after `kill_host`; returns when its sshd answers."""
        sshd = _sshd()
        assert sshd is not None
        disk = self.folder / f"disk_{name}"
        disk.mkdir(exist_ok=True)
        config = self.folder / f"sshd_{name}.conf"
        config.write_text(_CONFIG.format(address=self.lab.spec.address(name), folder=self.folder, name=name))
        isolate = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "--mount-proc")
        boot = ("/bin/sh", "-euc", _BOOT, name, str(disk), WORKDIR, sshd, str(config))
        with (self.folder / f"sshd_{name}.log").open("ab") as log:
            self._holders[name] = self.lab.popen(name, [*isolate, *boot], stdout=log, stderr=log)
        self._wait_for_sshd(name)

    def kill_host(self, name: str) -> None:
        """As when its power fails: every process on it is gone at once."""
        holder = self._holders[name]
        holder.kill()
        holder.wait(timeout=_END_SECONDS)

    def popen(self, argv: Sequence[str], **options: object) -> "subprocess.Popen[bytes]":
        """A process on `control`, from where all hosts are reached."""
        env = {**os.environ, "CLUSTER": str(self.cluster_file)}
        return self.lab.popen(CONTROL, argv, env=env, **options)  # type: ignore[arg-type]

    def ssh(self, name: str, command: str, *, seconds: float = 30.0) -> "subprocess.CompletedProcess[str]":
        """Run a shell command on a host by ssh."""
        known = f"UserKnownHostsFile={self.folder / 'known_hosts'}"
        ssh = ["ssh", "-F", "none", "-i", str(self.folder / "client"), "-o", known, "-o", "BatchMode=yes"]
        argv = [*ssh, f"{USER}@{self.lab.spec.address(name)}", command]
        with self.popen(argv, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
            try:
                out, err = process.communicate(timeout=seconds)
            finally:
                process.kill()
        return subprocess.CompletedProcess(argv, process.returncode, out.decode(), err.decode())

    def _make_keys(self) -> None:
        for file in ("client", *(f"host_{name}" for name in self.rates)):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", "sshlab", "-f", str(self.folder / file))
        lines = []
        for name in self.rates:
            public = (self.folder / f"host_{name}.pub").read_text().split()[:2]
            lines.append(f"{self.lab.spec.address(name)} {' '.join(public)}\n")
        (self.folder / "known_hosts").write_text("".join(lines))

    def _wait_for_sshd(self, name: str) -> None:
        probe = (
            "import socket, sys\n"
            "with socket.create_connection((sys.argv[1], 22), timeout=2) as peer: print(peer.recv(4).decode())"
        )
        deadline = time.monotonic() + _START_SECONDS
        while True:
            argv = [sys.executable, "-I", "-S", "-c", probe, self.lab.spec.address(name)]
            with self.lab.popen(CONTROL, argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
                assert process.stdout is not None
                ready, _, _ = select.select([process.stdout], [], [], 3.0)
                if ready and process.stdout.read(4) == b"SSH-":
                    return
                process.kill()
            log = (self.folder / f"sshd_{name}.log").read_text(errors="replace")
            if self._holders[name].poll() is not None or time.monotonic() > deadline:
                raise LabError(f"the sshd of {name} does not answer: {log.strip() or 'nothing in its log'}")
            time.sleep(0.05)

    def _write_cluster_file(self) -> None:
        key, known = self.folder / "client", self.folder / "known_hosts"
        common = {"workdir": WORKDIR, **self._install.get("", {})}
        tables = [
            self._extra,
            '[site]\nprovenance = "emulated"\n',
            f'[ssh]\nuser = "{USER}"\nkey = "{key}"\nknown_hosts = "{known}"\n',
            "\n".join(["[install]", *(f"{name} = {json.dumps(value)}" for name, value in common.items()), ""]),
        ]
        for name, rate in self.rates.items():
            role = "cpu" if name.startswith("cpu") else "gpu"
            own = ", ".join(f"{name} = {json.dumps(value)}" for name, value in self._install.get(role, {}).items())
            tables.append(
                f'[[machine]]\nname = "{name}"\nrole = "{role}"\nnic = "{rate * 8 / 1e6:g}Mbit"\n'
                f'address = "{self.lab.spec.address(name)}"\ninterface = "eth0"\n'
                + (f"install = {{ {own} }}\n" if own else "")
            )
        self.cluster_file.write_text("\n".join(filter(None, tables)))


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, timeout=30)
    if done.returncode:
        raise LabError(f"{shlex.join(argv)} failed: {done.stderr.strip()}")


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m scripts.sshlab", description=__doc__.split("\n")[0])
    parser.add_argument("--gpu", type=int, default=2, help="GPU machines (default 2)")
    parser.add_argument("--cpu", type=int, default=2, help="CPU machines (default 2)")
    parser.add_argument("--rate", default="200Mbit", help="rate of every NIC (default 200Mbit)")
    parser.add_argument("--slow", metavar="HOST=RATE", action="append", default=[], help="another rate for one host")
    parser.add_argument(
        "--install",
        metavar="[ROLE:]KEY=VALUE",
        action="append",
        default=[],
        help="a further key of [install], such as gpu:environment=.venv or peers=horovod,mxnet",
    )
    parser.add_argument("command", nargs="+", help="what to run on the control host; the cluster file is $CLUSTER")
    return parser.parse_args(argv)


def _install(words: Sequence[str]) -> dict[str, dict[str, str | list[str]]]:
    found: dict[str, dict[str, str | list[str]]] = {}
    for word in words:
        key, equals, value = word.partition("=")
        role, _, name = key.rpartition(":")
        if not equals or role not in ("", "gpu", "cpu"):
            raise ValueError(f"--install {word}: write KEY=VALUE, gpu:KEY=VALUE or cpu:KEY=VALUE")
        if name == "peers":
            found.setdefault(role, {})[name] = [peer for peer in value.split(",") if peer]
        else:  # folders of this machine, which the hosts see, too
            is_path = name in ("environment", "peers_folder", "wheels")
            found.setdefault(role, {})[name] = os.path.abspath(value) if is_path else value
    return found


def main(argv: Sequence[str]) -> int:
    options = _arguments(argv)
    try:
        names = [f"gpu{i}" for i in range(options.gpu)] + [f"cpu{i}" for i in range(options.cpu)]
        rates = dict.fromkeys(names, parse_rate(options.rate))
        for slow in options.slow:
            name, _, rate = slow.partition("=")
            if name not in rates:
                raise ValueError(f"--slow {slow}: no host {name!r}; there are {', '.join(names)}")
            rates[name] = parse_rate(rate)
        if reason := overload(star(rates), os.cpu_count() or 1):
            raise LabError(reason)
        with SshLab(rates, install=_install(options.install)) as lab:
            command = [word.replace("$CLUSTER", str(lab.cluster_file)) for word in options.command]
            process = lab.popen(command, stdin=None, cwd=os.getcwd())
            signal.signal(signal.SIGTERM, lambda *_: process.terminate())
            while True:
                try:
                    return process.wait()
                except KeyboardInterrupt:  # the command ends itself; the lab stays up for its clean-up
                    process.send_signal(signal.SIGINT)
    except (LabError, ValueError, OSError) as error:
        print(error, file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
