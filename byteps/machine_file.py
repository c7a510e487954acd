"""Machines as TOML, and those that come with this package.  In short form (docs/machines.md has the long one):

    source = "data sheet"
    peer_efficiency = 0.76  # optional: of copies between GPUs across PCIe switches
    cpu = [{names = ["CPU0", "CPU1"], memory = "1024Gbit"}]  # reads and writes together
    socket = [{between = ["CPU0", "CPU1"], rate = "300Gbit"}]
    switch = [{names = ["P0"], under = "CPU0", rate = "105Gbit"}]  # rate: of the link to what it is under
    gpu = [{names = ["GPU0", "GPU1"], under = "P0", rate = "105Gbit"}]
    nic = [{names = ["NIC0"], under = "P0", rate = "105Gbit", network = "90Gbit"}]
    fabric = [{name = "NVLink0", gpus = ["GPU0", "GPU1"], rate = "1200Gbit"}]

Rates of links are each way, a fabric's is the sum of a GPU's NVLinks; "" and left out mean unknown.
Pure but for `preset`, which reads a file of this package.
"""

from pathlib import Path

import msgspec

from byteps.expected import expected
from byteps.machine import PRESETS, Link, Node, Topology, warned
from byteps.units import parse_rate


class _Rate(float):
    """Bytes per second; in the file, text such as "25Gbit", or "" for unknown."""


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    rate: _Rate = _Rate()


class _Cpu(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    names: list[str]
    memory: _Rate = _Rate()


class _Socket(_Table, frozen=True, kw_only=True):
    between: tuple[str, str]


class _Device(_Table, frozen=True, kw_only=True):
    names: list[str]
    under: str


class _Nic(_Device, frozen=True, kw_only=True):
    network: _Rate = _Rate()


class _Fabric(_Table, frozen=True, kw_only=True):
    name: str
    gpus: list[str]


class _File(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    source: str
    cpu: list[_Cpu]
    peer_efficiency: float = 1.0
    socket: list[_Socket] = []
    switch: list[_Device] = []
    gpu: list[_Device] = []
    nic: list[_Nic] = []
    fabric: list[_Fabric] = []

    def topology(self, name: str) -> Topology:
        nodes = [Node(name=cpu, kind="cpu", bytes_per_s=table.memory) for table in self.cpu for cpu in table.names]
        nodes += [Node(name=switch, kind="switch") for table in self.switch for switch in table.names]
        nodes += [Node(name=gpu, kind="gpu") for table in self.gpu for gpu in table.names]
        nodes += [Node(name=nic, kind="nic", bytes_per_s=table.network) for table in self.nic for nic in table.names]
        nodes += [Node(name=name, kind="fabric") for name in dict.fromkeys(table.name for table in self.fabric)]
        links = [Link(a=t.between[0], b=t.between[1], kind="socket", bytes_per_s=t.rate) for t in self.socket]
        for t in (*self.switch, *self.gpu, *self.nic):
            links += [Link(a=lower, b=t.under, kind="pcie", bytes_per_s=t.rate) for lower in t.names]
        for f in self.fabric:
            links += [Link(a=gpu, b=f.name, kind="nvlink", bytes_per_s=f.rate) for gpu in f.gpus]
        return Topology(
            name=name, nodes=tuple(nodes), links=tuple(links), source=self.source, peer_efficiency=self.peer_efficiency
        )


def parse_machine(text: str, source: str) -> Topology:
    """The machine that a TOML text describes; `source` names the text in errors, which also name the key."""
    try:
        file = msgspec.toml.decode(text.removeprefix("\ufeff"), type=_File, dec_hook=_rate_of)
        return warned(file.topology(Path(source).stem))
    except msgspec.ValidationError as error:
        raise ValueError(f"{source}: {error}{expected(error, _File)}") from error
    except msgspec.DecodeError as error:
        hint = "expected TOML, NCCL's XML or what `nvidia-smi topo -m` prints"
        raise ValueError(f"{source}: {error}; {hint}") from error
    except RecursionError:
        raise ValueError(f"{source}: brackets are nested too deeply; a description has two levels of them") from None
    except (ValueError, OverflowError) as error:
        raise ValueError(f"{source}: {error}") from error


def _rate_of(kind: type[_Rate], rate: object) -> _Rate:
    if rate == "":
        return kind()
    if not isinstance(rate, str):
        raise ValueError(f'{rate!r} is not a rate: write text such as "25Gbit", or "" if it is unknown')
    return kind(parse_rate(rate))


def preset(name: str) -> Topology:
    """A machine that comes with this package."""
    if name not in PRESETS:
        raise ValueError(f"{name!r} is no preset; there are {', '.join(PRESETS)}")
    path = Path(__file__).with_name("machines") / f"{name}.toml"
    return parse_machine(path.read_text(encoding="utf-8"), path.name)
