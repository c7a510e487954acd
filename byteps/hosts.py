"""The machines of a cluster file as hosts to log in to: addresses, users, folders, interfaces.

The file is `byteps.cluster`'s with addresses, and with what is not the default; docs/cluster.md explains every key:

    [[machine]]
    name = "gpu"
    role = "gpu"
    nic = "25Gbit"
    count = 2
    address = ["10.0.0.1", "10.0.0.2"]    # for ssh and for the job

    [[machine]]
    name = "old"
    role = "cpu"
    nic = "10Gbit"
    address = "10.0.0.3"
    ssh = { port = 2222 }

Paths on hosts may begin with ~/, the home of the user there; `resolved` makes a file of whole paths for the hosts.
Pure but for `load_site` and `load_for_login`, which read the file they are given.
"""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from byteps.cluster import Cluster, Machine, Role, cluster_of, load_cluster
from byteps.cluster_file import ClusterFile, Login, MachineTable, as_list, must_be, parse_file, read_text, where
from byteps.units import parse_rate, parse_seconds

DEFAULT_PEERS = ("horovod", "mxnet")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")  # names of hosts become parts of paths and commands


@dataclass(frozen=True, kw_only=True)
class Host:
    """One machine, and how to come to it."""

    name: str
    role: Role
    address: str  # for ssh and for the job
    interfaces: tuple[str, ...]  # names or networks, one per NIC; (): the one that has `address`
    nic_bytes_per_s: float  # each way, of all its NICs together
    nics: tuple[float, ...]
    gpus: int
    user: str  # "": the local one
    port: int
    key: str  # a file on the machine that logs in; "": the ssh agent's and the default keys
    python: str  # makes the environments
    workdir: str
    environment: str  # "": the suite makes its own
    peers_folder: str  # the same of the peers
    torch_index: str  # "": the default package index
    wheels: str  # a folder on the machine that logs in; "": from the index
    peers: tuple[str, ...]
    machine: str  # preset or description of its inside; "": not known

    @property
    def suite(self) -> str:
        """Where the repository's files lie."""
        return f"{self.workdir}/suite"

    @property
    def run(self) -> str:
        """Where pid files, logs and the secret of a run lie."""
        return f"{self.workdir}/run"


@dataclass(frozen=True, kw_only=True)
class Site:
    """All hosts: GPU machines and CPU machines in the file's order."""

    hosts: tuple[Host, ...]
    known_hosts: str
    host_keys: Literal["reject", "accept-new"]
    connect_seconds: float
    provenance: Literal["measured", "emulated"]
    cap_bytes_per_s: float  # every NIC is to be capped to it; 0: none
    cluster: Cluster

    @property
    def gpu_hosts(self) -> tuple[Host, ...]:
        return tuple(host for host in self.hosts if host.role == "gpu")

    @property
    def cpu_hosts(self) -> tuple[Host, ...]:
        return tuple(host for host in self.hosts if host.role == "cpu")

    def host(self, name: str) -> Host:
        """By its name; a ValueError lists all."""
        for host in self.hosts:
            if host.name == name:
                return host
        raise ValueError(f"host is {name!r}; use one of {', '.join(host.name for host in self.hosts)}")


def parse_site(text: str, source: str) -> Site:
    """The hosts that a TOML text describes; a ValueError names `source`, the machine, the key, and what is allowed.

    Paths on this machine are taken as relative to the folder of `source`.
    """
    file = parse_file(text, source)
    cluster = cluster_of(file, source)
    machines = iter(cluster.machines)
    hosts: list[Host] = []
    used: dict[str, str] = {}
    for index, table in enumerate(file.machine):
        try:
            addresses = _addresses(table, index)
            interfaces = _interfaces(table, index)
            for name, address in zip(table.names, addresses, strict=True):
                _check_name(table, index, name)
                if address in used:
                    remark = f"{used[address]!r} has it, too"
                    raise ValueError(must_be(where(table, index, "address"), address, "another for every host", remark))
                used[address] = name
                hosts.append(_host(table, next(machines), address, interfaces, file, Path(source).parent))
        except ValueError as error:
            raise ValueError(f"{source}: {error}") from None
    return Site(
        hosts=tuple(hosts),
        known_hosts=_local_path(file.ssh.known_hosts, Path(source).parent),
        host_keys=file.ssh.host_keys,
        connect_seconds=parse_seconds(file.ssh.connect_timeout),
        provenance=file.site.provenance,
        cap_bytes_per_s=parse_rate(file.network.cap) if file.network.cap else 0.0,
        cluster=cluster,
    )


def load_site(path: str | Path) -> Site:
    """The hosts described by a TOML file."""
    return parse_site(read_text(path), str(path))


def load_for_login(path: str | Path) -> Site:
    """The same for the machine that logs in: what the file names there (descriptions, key, wheels) is there, too."""
    load_cluster(path)  # looks for the descriptions
    site = load_site(path)
    for host in site.hosts:
        if host.key and not Path(host.key).expanduser().is_file():
            raise ValueError(f"{path}: {must_be(f'ssh.key of {host.name!r}', host.key, 'a private key that is here')}")
        if host.wheels and not list(Path(host.wheels).expanduser().glob("*.whl")):
            allowed = "a folder here that has *.whl files"
            raise ValueError(f"{path}: {must_be(f'install.wheels of {host.name!r}', host.wheels, allowed)}")
    return site


def resolved(site: Site, workdirs: Mapping[str, str]) -> str:
    """A cluster file for the hosts themselves: whole paths, and nothing about the machine that logs in.

    `workdirs`: by host, without ~.
    """
    lines = ["[site]", f"provenance = {json.dumps(site.provenance)}"]
    if site.cap_bytes_per_s:
        lines += ["[network]", f"cap = {json.dumps(_bits(site.cap_bytes_per_s))}"]
    for host in site.hosts:
        values: dict[str, Any] = {
            "name": host.name,
            "role": host.role,
            "nic": [_bits(rate) for rate in host.nics],
            "gpus": host.gpus,
            "address": host.address,
        }
        if host.interfaces:
            values["interface"] = list(host.interfaces)
        lines += ["[[machine]]", *(f"{key} = {json.dumps(value)}" for key, value in values.items())]
        lines.append(f"install = {{ workdir = {json.dumps(workdirs[host.name])}, peers = {json.dumps(host.peers)} }}")
    return "\n".join(lines) + "\n"


def _bits(bytes_per_s: float) -> str:
    return f"{bytes_per_s * 8:.0f}bit"


def _addresses(table: MachineTable, index: int) -> list[str]:
    place, addresses = where(table, index, "address"), as_list(table.address)
    wanted = len(table.names)
    if not addresses:
        raise ValueError(f"{place} is missing: ssh and the job need it; use a host's name or IP address")
    if len(addresses) != wanted:
        allowed = f"a list of {wanted}, since count is {table.count}" if table.count is not None else "one"
        raise ValueError(must_be(place, table.address, allowed))
    return addresses


def _interfaces(table: MachineTable, index: int) -> tuple[str, ...]:
    interfaces, nics = as_list(table.interface), len(table.rates)
    if interfaces and len(interfaces) != nics:
        allowed = f"a list of {nics}, one for every rate in nic" if nics > 1 else "one, since nic is one rate"
        raise ValueError(must_be(where(table, index, "interface"), table.interface, allowed))
    return tuple(interfaces)


def _check_name(table: MachineTable, index: int, name: str) -> None:
    if not _NAME.fullmatch(name):
        allowed = "letters, digits and . _ - (it becomes the name of a folder)"
        raise ValueError(must_be(where(table, index, "name"), name, allowed))


def _host(
    table: MachineTable, machine: Machine, address: str, interfaces: tuple[str, ...], file: ClusterFile, folder: Path
) -> Host:
    wheels = _choose("wheels", "", table.install, file.install)
    key = _choose("key", "", table.ssh, file.ssh)
    return Host(
        name=machine.name,
        role=machine.role,
        address=address,
        interfaces=interfaces,
        nic_bytes_per_s=machine.nic_bytes_per_s,
        nics=machine.nics,
        gpus=machine.gpus,
        user=_choose("user", "", table.ssh, file.ssh),
        port=_choose("port", 22, table.ssh, file.ssh),
        key=key and _local_path(key, folder),
        python=_choose("python", "python3", table.install, file.install),
        workdir=_choose("workdir", "~/byteps", table.install, file.install).rstrip("/"),
        environment=_choose("environment", "", table.install, file.install),
        peers_folder=_choose("peers_folder", "", table.install, file.install),
        torch_index=_choose("torch_index", "", table.install, file.install),
        wheels=wheels and _local_path(wheels, folder),
        peers=tuple(_choose("peers", list(DEFAULT_PEERS), table.install, file.install)),
        machine=machine.machine,
    )


def _choose(key: str, default: Any, own: Login | Any, common: Login | Any) -> Any:
    """A machine's own value, else the common one, else the default."""
    for table in (own, common):
        if (value := getattr(table, key)) is not None:
            return value
    return default


def _local_path(path: str, folder: Path) -> str:
    """As seen from the cluster file; ~ stays for whoever opens it."""
    return path if path.startswith("~") else str(folder / path)
