"""What the systems cost beyond bandwidth: a few constants of each, every one with its source, in `systems.toml`.

    BytePS             share of a NIC's rate that it reaches; cost of a partition, each way; cost of a tensor
    all-reduce         share of a NIC's rate; negotiation of a tensor for each doubling of the number of ranks, since
                       MPI's collectives go up and down a tree; Horovod's cycle and fusion buffer; what NCCL takes for
                       a step from GPU to GPU over the network, NVLink, or PCIe
    parameter server   its servers' time in n M/(k B) and its workers' in M/B, which do not overlap for a key; cost of a
                       tensor in each framework
    the lab            latency between two machines of the emulated cluster; nothing of it is fitted

`experiments.fit` finds those that are fitted, and says how well they explain the points they were fitted on.
Pure but for `load`, which reads the file.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from byteps.predict import BytePSCosts, RingCosts, ServerCosts

FILE = Path(__file__).with_name("systems.toml")
HEADER = """\
# What the systems cost beyond bandwidth (see systems.py): seconds, bytes and fractions, each with its source.
# `python -m experiments fit` writes those that are fitted.
"""


class _Table(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A table of the file."""


class Constant(_Table, frozen=True, kw_only=True):
    """Seconds, bytes, or a fraction, as its name says."""

    value: float
    source: str

    def __post_init__(self) -> None:
        if not 0 <= self.value < math.inf or not self.source:
            raise ValueError(f"a constant has value = {self.value}, source = {self.source!r}: 0 or more, and a source")


class BytePS(_Table, frozen=True, kw_only=True):
    network_fraction: Constant
    message_seconds: Constant
    tensor_seconds: Constant
    partition_bytes: Constant

    def costs(self) -> BytePSCosts:
        return BytePSCosts(
            network_fraction=self.network_fraction.value,
            message_seconds=self.message_seconds.value,
            tensor_seconds=self.tensor_seconds.value,
            partition_bytes=round(self.partition_bytes.value),
        )


class AllReduce(_Table, frozen=True, kw_only=True):
    network_fraction: Constant
    negotiation_seconds: Constant
    cycle_seconds: Constant
    fusion_bytes: Constant
    network_step_seconds: Constant
    nvlink_step_seconds: Constant
    pcie_step_seconds: Constant

    def costs(self, ranks: int, step_seconds: float) -> RingCosts:
        return RingCosts(
            network_fraction=self.network_fraction.value,
            step_seconds=step_seconds,
            tensor_seconds=self.negotiation_seconds.value * math.log2(ranks),
            cycle_seconds=self.cycle_seconds.value,
            fusion_bytes=round(self.fusion_bytes.value),
        )


class ParameterServer(_Table, frozen=True, kw_only=True):
    server_fraction: Constant
    worker_fraction: Constant
    tensor_seconds: dict[str, Constant]  # by framework

    def costs(self, framework: str) -> ServerCosts:
        return ServerCosts(
            server_fraction=self.server_fraction.value,
            worker_fraction=self.worker_fraction.value,
            tensor_seconds=self.tensor_seconds[framework].value,
        )


class Lab(_Table, frozen=True, kw_only=True):
    latency_seconds: Constant  # one way


class Systems(_Table, frozen=True, kw_only=True):
    byteps: BytePS
    all_reduce: AllReduce
    parameter_server: ParameterServer
    lab: Lab


def replaced(constants: Systems, found: Mapping[str, tuple[float, str]]) -> Systems:
    """With other values and sources for some, by their paths in the file, such as "byteps.tensor_seconds"."""
    tables = msgspec.to_builtins(constants)
    for path, (value, source) in found.items():
        *names, last = path.split(".")
        table = tables
        for name in names:
            table = table[name]
        table[last] = {"value": value, "source": source}
    return msgspec.convert(tables, Systems)


def text(constants: Systems) -> str:
    """The file that `load` reads."""
    parts = [HEADER]

    def write(path: str, table: dict[str, Any]) -> None:
        if "source" in table:
            source = json.dumps(table["source"], ensure_ascii=False)
            parts.append(f"\n[{path}]\nvalue = {table['value']:.8g}\nsource = {source}\n")
        else:
            for name, inner in table.items():
                write(f"{path}.{name}" if path else name, inner)

    write("", msgspec.to_builtins(constants))
    return "".join(parts)


def load(path: Path = FILE) -> Systems:
    try:
        return msgspec.toml.decode(path.read_bytes(), type=Systems)
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"{path.name}: {error}") from error
