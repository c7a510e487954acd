"""Runs a command on another host of the emulated cluster that this process is in: mpirun's launch agent instead of ssh.

    python -m baselines.enter ADDRESS=HOST,ADDRESS=HOST,... ADDRESS COMMAND...

The hosts of a cluster are network namespaces PREFIX-HOST with one prefix, so the own namespace tells the other's name.
As in `scripts.netns` the command has a UTS name of its own, the host's address: Open MPI compares host names to find
out which of its machines it is on.  As ssh does, it joins the words of the command for a shell.
Standard library only; the process becomes the command.
"""

import os
import shutil
import sys
from pathlib import Path

NETNS_DIR = Path("/run/netns")
_NAME_AND_RUN = 'printf %s "$0" >/proc/sys/kernel/hostname && eval "$1"'


def target(hosts: dict[str, str], own: str, address: str) -> str:
    """The namespace of the host with that address, given the name of the namespace of another."""
    if address not in hosts:
        raise SystemExit(f"enter: no host has the address {address}; there are {', '.join(hosts)}")
    for host in hosts.values():
        if own.endswith(f"-{host}"):
            return own.removesuffix(host) + hosts[address]
    raise SystemExit(f"enter: the namespace {own!r} is of none of the hosts {', '.join(hosts.values())}")


def own_namespace() -> str:
    """The name under which this process's network namespace is known."""
    here = os.stat("/proc/self/ns/net")
    for path in NETNS_DIR.iterdir() if NETNS_DIR.exists() else ():
        stat = path.stat()
        if (stat.st_dev, stat.st_ino) == (here.st_dev, here.st_ino):
            return path.name
    raise SystemExit(f"enter: this process is on no host of an emulated cluster (no name in {NETNS_DIR} is its own)")


def main() -> None:
    if len(sys.argv) < 4:
        raise SystemExit("usage: python -m baselines.enter ADDRESS=HOST,... ADDRESS COMMAND...")
    pairs, address, *command = sys.argv[1:]
    hosts = dict(pair.split("=", 1) for pair in pairs.split(","))
    namespace = NETNS_DIR / target(hosts, own_namespace(), address)
    enter = [shutil.which("nsenter") or "nsenter", f"--net={namespace}", "--"]
    name = [shutil.which("unshare") or "unshare", "--uts", "--", "/bin/sh", "-c", _NAME_AND_RUN, address]
    os.execv(enter[0], [*enter, *name, " ".join(command)])


if __name__ == "__main__":
    main()
