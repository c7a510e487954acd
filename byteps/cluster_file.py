"""The keys of a cluster file: which there are, what each allows, and errors that say so.

One file serves `byteps plan` (through `byteps.cluster`) and the running on real machines (through `byteps.hosts`), so
every key is checked here for both.  A description is what follows "use" in an error, and what docs/cluster.md explains.
Pure but for `read_text`.
"""

import difflib
import ipaddress
import math
import re
import tomllib
import typing
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec

from byteps.units import parse_rate, parse_seconds

MOST_COUNT = 100_000
Peer = Literal["horovod", "mxnet", "mpi", "tensorflow", "byteps-official"]

_HOST_NAME = re.compile(
    r"(?=.{1,253}$)[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9-]*[A-Za-z0-9])?)*"
)
_INTERFACE = re.compile(r"[^\s/:]{1,15}")  # the kernel's own rule


def _key(description: str) -> msgspec.Meta:
    return msgspec.Meta(description=description)


_User = Annotated[str, _key('a user\'s name, such as "ubuntu"; left out: the local user')]
_Port = Annotated[int, _key("a port from 1 to 65535")]
_KeyFile = Annotated[str, _key('the path of a private key; "" takes the ssh agent and the default keys')]
_Workdir = Annotated[str, _key('a path that begins with / or ~/, such as "~/byteps"')]
_Python = Annotated[str, _key('an interpreter, best with its whole path, such as "/usr/bin/python3.11"')]
_Environment = Annotated[str, _key("the whole path of a virtual environment on the hosts, or leave it out")]
_PeersFolder = Annotated[str, _key("the whole path of a folder on the hosts that holds the peers, or leave it out")]
_Index = Annotated[str, _key('the address of a package index, such as "https://download.pytorch.org/whl/cpu"')]
_Wheels = Annotated[str, _key("a folder with wheels on this machine, or leave it out")]
_Peers = Annotated[list[Peer], _key("a list of " + ", ".join(typing.get_args(Peer)))]


class Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Any table of the file."""


class Login(Table, frozen=True, kw_only=True):
    """How to log in; None: as [ssh] says."""

    user: _User | None = None
    port: _Port | None = None
    key: _KeyFile | None = None


class SshTable(Login, frozen=True, kw_only=True):
    known_hosts: Annotated[str, _key('a file as ssh keeps it, such as "~/.ssh/known_hosts"')] = "~/.ssh/known_hosts"
    host_keys: Annotated[
        Literal["reject", "accept-new"], _key('"reject", or "accept-new" to take the keys of hosts not yet known')
    ] = "reject"
    connect_timeout: Annotated[str, _key("a time above 0, such as 10s")] = "10s"


class InstallTable(Table, frozen=True, kw_only=True):
    """What to install and where; None: as [install] says, and there: the default."""

    workdir: _Workdir | None = None
    python: _Python | None = None
    environment: _Environment | None = None
    peers_folder: _PeersFolder | None = None
    torch_index: _Index | None = None
    wheels: _Wheels | None = None
    peers: _Peers | None = None


class SiteTable(Table, frozen=True, kw_only=True):
    provenance: Annotated[
        Literal["measured", "emulated"], _key('"measured", or "emulated" where the hosts are parts of one machine')
    ] = "measured"


class NetworkTable(Table, frozen=True, kw_only=True):
    oversubscription: Annotated[float, _key("1.0 (none) or more, such as 4.0 for 4:1")] = 1.0
    cap: Annotated[str, _key('a rate for every NIC, such as "10Gbit", or leave it out')] = ""


class MachineTable(Table, frozen=True, kw_only=True):
    name: Annotated[str, _key('a name, such as "gpu"')]
    role: Annotated[Literal["gpu", "cpu"], _key('"gpu" or "cpu"')]
    nic: Annotated[str | list[str], _key('a rate such as "25Gbit", or a list of them, such as ["100Gbit", "100Gbit"]')]
    count: Annotated[int, _key(f"1 to {MOST_COUNT}, or leave it out for one machine")] | None = None
    gpus: Annotated[int, _key("a whole number of GPUs: 1 or more in a GPU machine, 0 in a CPU machine")] | None = None
    machine: Annotated[str, _key("a preset or the path of a description")] = ""
    price: Annotated[float, _key("0 or more per hour, or leave it out")] = 0.0
    rack: Annotated[str, _key('a rack\'s name, such as "r1", or leave it out')] = ""
    address: Annotated[str | list[str], _key("a host's name or IP address; with count a list of them")] = ""
    interface: Annotated[
        str | list[str], _key('an interface such as "eth0", or a network such as "10.0.0.0/16"; one for every NIC')
    ] = ""
    ssh: Annotated[Login, _key("a table of user, port, key, such as { port = 2222 }")] = Login()
    install: Annotated[InstallTable, _key("a table of keys as in [install]")] = InstallTable()

    @property
    def names(self) -> list[str]:
        return [self.name] if self.count is None else [f"{self.name}{i}" for i in range(self.count)]

    @property
    def rates(self) -> tuple[float, ...]:
        """Bytes per second each way, of each NIC."""
        return tuple(parse_rate(rate) for rate in as_list(self.nic))


class ClusterFile(Table, frozen=True, kw_only=True):
    machine: Annotated[list[MachineTable], _key("[[machine]] tables, one for every kind of machine")]
    site: Annotated[SiteTable, _key("a table [site]")] = SiteTable()
    ssh: Annotated[SshTable, _key("a table [ssh]")] = SshTable()
    install: Annotated[InstallTable, _key("a table [install]")] = InstallTable()
    network: Annotated[NetworkTable, _key("a table [network]")] = NetworkTable()


def read_text(path: str | Path) -> str:
    """A text file, with or without a byte order mark; a ValueError names the file and what is wrong with it."""
    try:
        return Path(path).read_bytes().decode("utf-8-sig")
    except OSError as error:
        raise ValueError(f"{path}: {error.strerror}; give the path of a cluster file (docs/cluster.md)") from None
    except UnicodeDecodeError as error:
        raise ValueError(
            f"{path}: byte {error.object[error.start]:#04x} at {error.start} is not UTF-8; save the file as UTF-8"
        ) from None


def parse_file(text: str, source: str) -> ClusterFile:
    """The tables, every value checked by itself; a ValueError names file, machine, key, value and what is allowed."""
    try:
        tables = tomllib.loads(text.removeprefix("\ufeff"))
    except tomllib.TOMLDecodeError as error:
        raise ValueError(f"{source}: this is not TOML: {error}") from None
    try:
        file = msgspec.convert(tables, ClusterFile)
    except msgspec.ValidationError as error:
        raise ValueError(f"{source}: {_explain(str(error), tables)}") from None
    for problem in _problems(file, (), file):
        raise ValueError(f"{source}: {problem}")
    return file


def as_list(value: str | list[str]) -> list[str]:
    """The values of a key that takes one or several; "" is none."""
    return value if isinstance(value, list) else [value] if value else []


def where(table: MachineTable, index: int, key: str) -> str:
    """How errors name the key of a machine."""
    return f"machine[{index}].{key} of {table.name!r}"


def must_be(place: str, value: object, allowed: str, remark: str = "") -> str:
    """The text of every error about a value."""
    return f"{place} is {value!r}{f': {remark}' if remark else ''}; use {allowed}"


def _rate(text: str) -> bool:
    return parse_rate(text) > 0


def _address(text: str) -> bool:
    try:
        ipaddress.ip_address(text)
    except ValueError:
        return _HOST_NAME.fullmatch(text) is not None and not re.fullmatch(r"[0-9.]+", text)
    return True


def _interface(text: str) -> bool:
    if "/" in text:
        ipaddress.ip_network(text, strict=False)
        return True
    return _INTERFACE.fullmatch(text) is not None


def _remote_path(text: str) -> bool:
    return text.startswith(("/", "~/")) and _is_line(text)


def _is_line(text: str) -> bool:
    return text.isprintable() and text == text.strip()


# By key: whether a value is allowed; a ValueError is a no with a reason.  Of a list every element is asked.
_CHECKS: Mapping[str, Callable[[Any], bool]] = {
    "name": lambda text: bool(text) and _is_line(text),
    "nic": _rate,
    "count": lambda count: 1 <= count <= MOST_COUNT,
    "gpus": lambda gpus: gpus >= 0,
    "price": lambda price: 0 <= price < math.inf,
    "oversubscription": lambda factor: 1 <= factor < math.inf,
    "cap": _rate,
    "address": _address,
    "interface": _interface,
    "connect_timeout": lambda text: parse_seconds(text) > 0,
    "user": lambda text: re.fullmatch(r"[^\s:@/]+", text) is not None,
    "port": lambda port: 1 <= port <= 65535,
    "workdir": _remote_path,
    "environment": _remote_path,
    "peers_folder": _remote_path,
    "python": lambda text: _is_line(text) and not text.startswith("-"),
    "torch_index": lambda text: re.fullmatch(r"(https?|file)://\S+", text) is not None,
}
_NEEDED = ("name", "nic", "user", "workdir", "python", "connect_timeout")  # "" is not the same as leaving it out


def _problems(table: msgspec.Struct, path: tuple[str | int, ...], file: ClusterFile) -> Iterator[str]:
    for key in table.__struct_fields__:
        value = getattr(table, key)
        here = (*path, key)
        if isinstance(value, msgspec.Struct):
            yield from _problems(value, here, file)
        elif isinstance(value, list) and value and isinstance(value[0], msgspec.Struct):
            for index, row in enumerate(value):
                yield from _problems(row, (*here, index), file)
        elif (reason := _wrong(key, value)) is not None:
            yield must_be(_place(here, msgspec.to_builtins(file)), value, _allowed(type(table), key), reason)


def _wrong(key: str, value: object) -> str | None:
    """The reason, "" if the value itself is all there is to say; None if nothing is wrong."""
    if value is None or (value == "" and key not in _NEEDED):
        return None
    if value == []:
        return None if key == "peers" else ""
    check = _CHECKS.get(key, lambda text: not isinstance(text, str) or text.isprintable())
    try:
        return None if all(map(check, value if isinstance(value, list) else [value])) else ""
    except ValueError as error:
        return str(error)


def _explain(message: str, tables: dict[str, Any]) -> str:
    """msgspec's error in our words: with the machine's name, the value, and what is allowed."""
    text, _, written = message.partition(" - at `$")
    path = [int(word) if word.isdigit() else word for word in re.findall(r"[^.\[\]`]+", written)]
    keys = [word for word in path if isinstance(word, str)]
    quoted = re.search(r"field `([^`]*)`", text)
    if quoted is None:
        owner = _struct_at(keys[:-1])
        return must_be(_place(path, tables), _value_at(path, tables), _allowed(owner, keys[-1]))
    place = _place(path, tables)
    fields = _struct_at(keys).__struct_fields__
    if "missing" in text:
        return f"{place or 'the file'} has no key {quoted[1]!r}; use {_allowed(_struct_at(keys), quoted[1])}"
    close = difflib.get_close_matches(quoted[1], fields, 1)
    meant = f", perhaps {close[0]!r} is meant" if close else ""
    return f"{place or 'the file'} has an unknown key {quoted[1]!r}{meant}; use {', '.join(fields)}"


def _place(path: typing.Sequence[str | int], tables: dict[str, Any]) -> str:
    """ "machine[0].nic of 'gpu'"."""
    text = ""
    for word in path:
        text += f"[{word}]" if isinstance(word, int) else f"{'.' if text else ''}{word}"
    if len(path) < 2 or path[0] != "machine":
        return text
    machine = _value_at(path[:2], tables)
    name = machine.get("name") if isinstance(machine, dict) else None
    return f"{text} of {name!r}" if name else text


def _value_at(path: typing.Sequence[str | int], tables: Any) -> Any:
    for word in path:
        tables = tables[word]
    return tables


def _struct_at(keys: typing.Sequence[str]) -> type[msgspec.Struct]:
    struct: type[msgspec.Struct] = ClusterFile
    for key in keys:
        (struct,) = (found for found in _parts(typing.get_type_hints(struct)[key]) if issubclass(found, msgspec.Struct))
    return struct


def _parts(hint: Any) -> Iterator[type]:
    inner = typing.get_args(hint)
    if not inner and isinstance(hint, type):
        yield hint
    for one in inner:
        yield from _parts(one)


def _allowed(struct: type[msgspec.Struct], key: str) -> str:
    """The description of a key."""
    return next(_descriptions(typing.get_type_hints(struct, include_extras=True)[key]))


def _descriptions(hint: Any) -> Iterator[str]:
    for meta in getattr(hint, "__metadata__", ()):
        yield str(meta.description)
    for one in typing.get_args(hint):
        yield from _descriptions(one)
