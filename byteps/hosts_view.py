"""What `byteps cluster check` prints: the hosts of a site, and what is done with them.  Pure."""

from collections.abc import Sequence
from itertools import groupby

from byteps.hosts import Host, Site
from byteps.units import format_rate


def view(site: Site, title: str) -> str:
    """Machines, how to log in, and what `make reproduce` would do."""
    heading = ("host", "role", "ssh", "NICs", "interface", "GPUs", "inside")
    return "\n\n".join(
        [
            f"{title}: {_number(site.gpu_hosts, 'GPU machine')}, {_number(site.cpu_hosts, 'CPU machine')}",
            "\n".join(columns([heading, *map(_row, site.hosts)])),
            "\n".join(_steps(site)),
        ]
    )


def _number(hosts: Sequence[Host], what: str) -> str:
    return f"{len(hosts)} {what}{'s' * (len(hosts) != 1)}"


def _row(host: Host) -> tuple[str, ...]:
    user = f"{host.user}@" if host.user else ""
    login = f"{user}{host.address}" + (f" port {host.port}" if host.port != 22 else "")
    interfaces = ", ".join(host.interfaces) or "that of the address"
    return (
        host.name, host.role, login, " + ".join(map(format_rate, host.nics)), interfaces, str(host.gpus), host.machine
    )  # fmt: skip


def _steps(site: Site) -> list[str]:
    strangers = "is accepted and kept" if site.host_keys == "accept-new" else "is refused"
    lines = [
        f"log in: host keys from {site.known_hosts}; a host not in it {strangers}, a changed key is refused;"
        f" {site.connect_seconds:g} s per host",
    ]
    for what, hosts in groupby(sorted(site.hosts, key=_installs), key=_installs):
        lines.append(f"install on {', '.join(host.name for host in hosts)}: {what}")
    if site.cap_bytes_per_s:
        lines.append(f"during a run: every NIC capped to {format_rate(site.cap_bytes_per_s)} by tc (needs root)")
    lines.append(f"records are marked {site.provenance!r}")
    if len(site.gpu_hosts) < 2:
        lines.append("NOT ENOUGH to run experiments: there is nothing to synchronise below 2 GPU machines")
    return lines


def _installs(host: Host) -> str:
    if host.environment:
        steps = [f"suite into {host.suite}, with the environment {host.environment}"]
    else:
        torch = f"with torch from {host.torch_index}" if host.torch_index else "with torch"
        kind = torch if host.role == "gpu" else "without torch"
        source = f", from the wheels in {host.wheels}" if host.wheels else ""
        steps = [f"suite into {host.suite}, an environment made by {host.python} {kind}{source}"]
    if host.peers_folder:
        steps.append(f"peers as they are in {host.peers_folder}")
    elif host_peers(host):
        steps.append(f"peers {', '.join(host_peers(host))}")
    return "; ".join(steps)


def host_peers(host: Host) -> tuple[str, ...]:
    """The peers that a host needs: those without servers have no part on CPU machines."""
    return host.peers if host.role == "gpu" else tuple(peer for peer in host.peers if peer not in ("horovod", "mpi"))


def columns(rows: Sequence[Sequence[str]]) -> list[str]:
    """Rows of cells as lines, every column as wide as its widest cell."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
