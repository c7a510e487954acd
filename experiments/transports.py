"""What transports cost: the same tensor from one process to another on this machine, over each of them.

256 MiB in messages of 4 MiB and of 64 KiB (`experiments.carriers`); at the end all bytes lie in the receiver's own
tensor, and every one is checked.  Goodput is the bytes over the time until then; core-seconds are those of both
processes while it takes, from their own clocks, per GiB.  A block is a launch of each, order rotated; ratios are to the
bare TCP sockets of the same block and message size.

How often the payload is copied, besides what the kernel does to get it in and out; from the sources of the libraries:

    socket, unix     0
    shm-write        1   into shared memory that is the receiver's tensor; the kernel has no part in it
    shm-slots        2   into shared memory and out of it; the kernel has no part in it
    zmq-zero-copy    1   from the frame into the tensor
    zmq-copy         3   into ZeroMQ's message; out of it as bytes; into the tensor
    grpc-*           5   bytes() of a part of the tensor; into gRPC's slice; slices as bytes; joined; into the tensor
    ucx-tcp          2   in fragments, into UCX's buffers and out of them (UCX_PROTO_INFO=y says so, for both sizes)
    ucx-shm          0   one system call of the receiver reads the sender's memory (CMA; by UCX_PROTO_INFO=y, too)

Published: a zero-copy transport carried 2.43 times what gRPC did, and 1.21 times copying RDMA (Yi et al., SIGCOMM 2017,
abstract); the OSDI paper's Table 2 is what copies and the memory path cost it.
"""

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from baselines.environments import Environment
from baselines.launch import DRIVER, Contender, Launch, Process
from byteps.units import format_nbytes
from experiments.bounds import Row
from experiments.record import Case, Record
from experiments.statistics import launch_seconds, paired_ratios

NAME = "transports"
NBYTES = 256 << 20
LARGE, SMALL = 4 << 20, 64 << 10
YARDSTICK = "socket"
GIB = 2**30
GRPC_OVER, COPYING_OVER = 2.43, 1.21  # of zero-copy over these, published
TABLE_2 = {"baseline": 41.0, "+ shared memory": 52.0, "+ page-aligned": 76.0, "all": 89.0}  # Gbit/s, OSDI 2020

_GRPC = Environment(name="transports", label="gRPC", distribution="grpcio", version_wanted="1.85.3")
_ZMQ = Environment(name="transports", label="pyzmq", distribution="pyzmq", version_wanted="27.3.0")
_UCX = Environment(name="transports", label="UCX", distribution="libucx-cu12", version_wanted="1.22.0")


@dataclass(frozen=True, kw_only=True)
class Carrier:
    """A transport as it is drawn, and where it runs."""

    label: str
    copies: int  # of the payload in user space
    colour: str
    marker: str
    program: str  # of `experiments.carriers`
    environment: Environment | None = None  # None: the suite's own
    variables: Mapping[str, str] | None = None


CARRIERS: dict[str, Carrier] = {
    "socket": Carrier(label="TCP socket", copies=0, colour="#0072B2", marker="o", program="sockets"),
    "unix": Carrier(label="Unix socket", copies=0, colour="#56B4E9", marker="s", program="sockets"),
    "shm-slots": Carrier(label="Shared memory, slots", copies=2, colour="#117733", marker="^", program="memory"),
    "shm-write": Carrier(label="Shared memory, in place", copies=1, colour="#44AA99", marker="v", program="memory"),
    "zmq-copy": Carrier(
        label="ZeroMQ, copying", copies=3, colour="#882255", marker="<", program="zeromq", environment=_ZMQ
    ),
    "zmq-zero-copy": Carrier(
        label="ZeroMQ, without", copies=1, colour="#CC6677", marker=">", program="zeromq", environment=_ZMQ
    ),
    "grpc-unary": Carrier(
        label="gRPC, call by call", copies=5, colour="#E69F00", marker="D", program="rpc", environment=_GRPC
    ),
    "grpc-stream": Carrier(
        label="gRPC, a stream", copies=5, colour="#999933", marker="d", program="rpc", environment=_GRPC
    ),
    "ucx-tcp": Carrier(
        label="UCX over TCP",
        copies=2,
        colour="#332288",
        marker="P",
        program="ucx",
        environment=_UCX,
        variables={"UCX_TLS": "tcp", "UCX_NET_DEVICES": "lo"},
    ),
    "ucx-shm": Carrier(
        label="UCX, shared memory",
        copies=0,
        colour="#AA4499",
        marker="X",
        program="ucx",
        environment=_UCX,
        variables={"UCX_TLS": "sm"},
    ),
}


def cases(
    *,
    blocks: int = 5,
    iterations: int = 3,
    nbytes: int = NBYTES,
    messages: Sequence[int] = (LARGE, SMALL),
    carriers: Sequence[str] = tuple(CARRIERS),
    tier: str = "reproduce",
) -> list[Case]:
    """One launch of each per block and message size; the order moves on by one from block to block."""
    result = []
    for block in range(blocks):
        lines = [(carrier, message) for message in messages for carrier in carriers]
        turn = block * 3 % len(lines)  # so that neighbours are others, too
        for position, (carrier, message) in enumerate(lines[turn:] + lines[:turn]):
            result.append(
                Case(
                    experiment=NAME,
                    tier=tier,
                    contender=carrier,
                    settings={"message": str(message)},
                    n=1,
                    k=1,
                    nic_bytes_per_s=0.0,
                    nbytes=nbytes,
                    warmups=1,
                    iterations=iterations,
                    block=block,
                    position=position,
                )
            )
    return result


def contender(name: str) -> Contender:
    """A carrier as what launches know."""
    carrier = CARRIERS[name]
    there = carrier.environment
    return Contender(
        name=name,
        label=carrier.label,
        colour=carrier.colour,
        marker=carrier.marker,
        uses_k=False,
        version=there.version if there else (lambda: "1"),
        sources=(
            *("experiments/carriers/__init__.py", "experiments/carriers/program.py", "experiments/carriers/sockets.py"),
            *(f"experiments/carriers/{carrier.program}.py", *DRIVER, "experiments/here.py"),
        ),
        plan=lambda launch: _plan(launch, name),
        missing=there.missing if there else str,
    )


def _plan(launch: Launch, name: str) -> list[Process]:
    """The sender has the GPU machine's part, the receiver the CPU machine's."""
    carrier = CARRIERS[name]
    sender, receiver = launch.gpu_machines[0], launch.cpu_machines[0]
    place = {
        "address": receiver.address,
        "port": launch.port,
        "nbytes": launch.nbytes,
        "message_nbytes": int(launch.settings["message"]),
    }
    python = carrier.environment.python if carrier.environment else sys.executable
    return [
        Process(
            host=machine.host,
            name=role,
            argv=(python, "-m", "experiments.carriers.program", role, name, json.dumps(place)),
            env={"OMP_NUM_THREADS": "1", **(carrier.variables or {})},
            rank=rank,
        )
        for rank, (role, machine) in enumerate((("sender", sender), ("receiver", receiver)))
    ]


def goodput(one: Record) -> float:
    """Bytes per second."""
    return one.case.nbytes / launch_seconds(one.seconds)


def core_seconds(one: Record) -> float:
    """Of both processes, per GiB."""
    return one.cpu_seconds / (len(one.seconds) * one.case.nbytes / GIB)


def per_block(
    records: Sequence[Record], carrier: str, message: int, value: Callable[[Record], float]
) -> dict[int, float]:
    """Block -> value, of what was right."""
    return {
        one.case.block: value(one)
        for one in records
        if (one.case.contender, one.case.settings.get("message")) == (carrier, str(message)) and one.verified
    }


def ratios(
    records: Sequence[Record], carrier: str, other: str, message: int, value: Callable[[Record], float] = goodput
) -> tuple[float, ...]:
    """Of two carriers, within blocks."""
    found = paired_ratios(per_block(records, carrier, message, value), per_block(records, other, message, value))
    return tuple(found.values())


def rows(records: Sequence[Record]) -> list[Row]:
    """By message size: what each carried and cost, against bare sockets; then what others published."""
    found = []
    for message in sorted({int(one.case.settings["message"]) for one in records}, reverse=True):
        size = format_nbytes(message)
        for name, carrier in CARRIERS.items():
            note = _absent(records, name) or f"{carrier.copies} copies of its own"
            said = f"{carrier.label}, {size}"
            rates = tuple(value / 1e9 for value in per_block(records, name, message, goodput).values())
            spent = tuple(per_block(records, name, message, core_seconds).values())
            found += [
                Row(what=f"{said}: goodput", unit="GB/s", values=rates, note=note),
                Row(what=f"{said}: core-seconds per GiB", unit="s", values=spent),
            ]
            if name != YARDSTICK:
                against = {"goodput": goodput, "core-seconds": core_seconds}
                found += [
                    Row(what=f"{said}: {what} / TCP socket", values=ratios(records, name, YARDSTICK, message, value))
                    for what, value in against.items()
                ]
        for what, carrier_name, other, published in PUBLISHED:
            values = ratios(records, carrier_name, other, message)
            found.append(Row(what=f"{what}, {size}", values=values, note=f"published {published} of GPUDirect RDMA"))
    return found


PUBLISHED = (
    ("shared memory in place / gRPC, a stream", "shm-write", "grpc-stream", GRPC_OVER),
    ("shared memory in place / through slots", "shm-write", "shm-slots", COPYING_OVER),
)
"""What here is nearest to a published ratio: zero-copy over gRPC, and over a transport of the same kind that copies."""


def _absent(records: Sequence[Record], name: str) -> str:
    """Why there is nothing of a carrier."""
    if any(one.case.contender == name for one in records):
        return ""
    return f"not run: {contender(name).missing() or 'not asked for'}"
