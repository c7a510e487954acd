"""What a transport does to a machine's links: kernel TCP, RDMA from host memory, and GPUDirect RDMA, per byte sent.

    kernel TCP    GPU -> host memory; the processor copies it into the kernel's buffers; the NIC reads it from there
    RDMA          GPU -> host memory; the NIC reads it from there, nobody copies
    GPUDirect     GPU -> NIC through the PCIe switch that both are under; host memory and CPU see nothing of it

and the same backwards for what is received.  Each is a load on every link of a `byteps.machine.Topology` and, for TCP,
seconds of a core.  `rate` is the highest at which no link, NIC or core is asked for more than it has: stages overlap.
`serial_rate` is that of one message after the other whose stages do not: real transports lie between both.

`write_rate` is a model of the OSDI paper's Table 2, which takes three burdens off one RDMA path in turn.  The NIC moves
pages: the goodput of a clean path is *given* (90 Gbit/s, section 7), and so are the size of a page and that burdens add
up.  What each burden costs per page is *fitted* to the first three columns (41, 52, 76); the last, 89, is the
only number that is not, and comes out as the given 90.  So the model says what the burdens cost, and proves nothing.
Pure: no I/O, no clock, no randomness.
"""

import math
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise

from byteps.machine import Topology
from byteps.strategy import Loads

FAR_GPUDIRECT_BYTES_PER_S = 50e9 / 8
"""Given: GPU and NIC not under one switch stay "below 50 Gbit/s" on a NIC of 100 (OSDI 2020, section 5): a bound."""

PAGE_BYTES = 4096
CLEAN_BYTES_PER_S = 90e9 / 8  # given: goodput of RDMA point to point on the paper's 100GbE
LOOPBACK_SECONDS = 169.0e-9  # fitted, per page: a machine's own service is reached through the NIC (2:1 incast inside)
UNALIGNED_SECONDS = 199.0e-9  # fitted, per page: buffers do not begin with a page
SEVERAL_ENTRIES_SECONDS = 67.1e-9  # fitted, per page: a WRITE gathers from more than one entry


@dataclass(frozen=True, kw_only=True)
class Transport:
    name: str
    kernel_copies: int  # that the processor makes of every byte in host memory
    direct: bool  # between NIC and GPU, without host memory
    core_seconds_per_byte: float = 0.0


RDMA = Transport(name="RDMA", kernel_copies=0, direct=False)
GPUDIRECT = Transport(name="GPUDirect RDMA", kernel_copies=0, direct=True)


def kernel_tcp(core_seconds_per_byte: float) -> Transport:
    """One copy between user and kernel; system calls, packets and the copy cost a core so much, which is measured."""
    return Transport(name="kernel TCP", kernel_copies=1, direct=False, core_seconds_per_byte=core_seconds_per_byte)


def stages(transport: Transport, topology: Topology, gpu: str, nic: str, *, sending: bool = True) -> list[Loads]:
    """What each step of a byte loads, in order.  A GPU of "": the byte is in host memory, to stay there or be sent."""
    network = f"{nic}.{'out' if sending else 'in'}"
    if transport.direct and gpu:
        route = topology.route(gpu, nic) if sending else topology.route(nic, gpu)
        steps: list[Loads] = [Counter([*route, network])]
        return steps
    memory = f"{topology.cpu_of(nic)}.memory"
    cpu = topology.cpu_of(nic)
    between = [topology.route(gpu, cpu) if sending else topology.route(cpu, gpu)] if gpu else []
    copies = [Counter[str]([*route, memory]) for route in between]  # from or to the GPU: one write or one read
    copies += [Counter[str]({memory: 2})] * transport.kernel_copies  # a read and a write
    wire = Counter[str]([memory, *(topology.route(cpu, nic) if sending else topology.route(nic, cpu)), network])
    return [*copies, wire] if sending else [wire, *reversed(copies)]


def loads(transport: Transport, topology: Topology, gpu: str, nic: str, *, sending: bool = True) -> Loads:
    """On every link, per byte."""
    total = Counter[str]()
    for step in stages(transport, topology, gpu, nic, sending=sending):
        total.update(step)
    return total


def rate(transport: Transport, topology: Topology, gpu: str, nic: str, *, cores: float = 1.0) -> tuple[float, str]:
    """Bytes/s of one direction when all stages overlap, and what allows no more; `cores`: that TCP may use."""
    limits = {link: topology.capacities[link] / load for link, load in loads(transport, topology, gpu, nic).items()}
    return _least(limits | _ceilings(transport, topology, gpu, nic, cores))


def serial_rate(transport: Transport, topology: Topology, gpu: str, nic: str, *, cores: float = 1.0) -> float:
    """Bytes/s when no two stages of a message overlap, and one message is under way."""
    seconds = sum(_slowest(topology, step) for step in stages(transport, topology, gpu, nic))
    seconds += transport.core_seconds_per_byte / cores
    ceilings = _ceilings(transport, topology, gpu, nic, math.inf)
    return min([1 / seconds, *ceilings.values()])


def hidden_share(observed: float, serial: float, overlapped: float) -> float:
    """How much of the time between both bounds a transport of this rate hides: 0 serial, 1 all; outside: neither."""
    if not serial < overlapped:
        raise ValueError(
            f"serial {serial:.4g} bytes/s is not below overlapped {overlapped:.4g}: there is nothing to hide"
        )
    return (1 / serial - 1 / observed) / (1 / serial - 1 / overlapped)


def write_rate(*, loopback: bool, unaligned: bool, several_entries: bool) -> float:
    """Bytes/s of RDMA WRITEs with these burdens on them: the model of Table 2."""
    costs = (
        (loopback, LOOPBACK_SECONDS),
        (unaligned, UNALIGNED_SECONDS),
        (several_entries, SEVERAL_ENTRIES_SECONDS),
    )
    return PAGE_BYTES / (PAGE_BYTES / CLEAN_BYTES_PER_S + sum(seconds for there, seconds in costs if there))


def fitted_seconds(rates: Iterable[float]) -> list[float]:
    """Per page, what each burden costs if taking it off raises these bytes/s, the last of which is the clean path's."""
    times = [PAGE_BYTES / one for one in rates]
    return [before - after for before, after in pairwise(times)]


def _ceilings(transport: Transport, topology: Topology, gpu: str, nic: str, cores: float) -> dict[str, float]:
    found = {}
    if transport.direct and gpu and not _under_one_switch(topology, gpu, nic):
        found["GPU and NIC under different switches"] = FAR_GPUDIRECT_BYTES_PER_S
    if transport.core_seconds_per_byte:
        found["cores"] = cores / transport.core_seconds_per_byte
    return found


def _under_one_switch(topology: Topology, gpu: str, nic: str) -> bool:
    return topology.switch_of(gpu) != "" and topology.switch_of(gpu) == topology.switch_of(nic)


def _slowest(topology: Topology, step: Loads) -> float:
    return max(load / topology.capacities[link] for link, load in step.items())


def _least(limits: dict[str, float]) -> tuple[float, str]:
    name = min(limits, key=lambda one: limits[one])
    return limits[name], name
