"""What BytePS's software costs: one worker and one server over unshaped loopback against a bare echo pair and MXNet.

The wire is as fast as memory here, so that every copy and every call shows.  Our pair carries a 256 MiB tensor to the
server and back in partitions of 4,096,000 bytes; the echo pair (`baselines.echo`) does the same with as long messages.
The first blocks also have MXNet's KVStore, twice: with the tensor as 16 keys, which is what the suite does for it
everywhere, and as one, which is what its user writes.  A block is a launch of each, in the opposite order from block to
block; the claims are judged by the median over blocks:

    throughput            ours / echo, M / t                                at least 0.85
    core-seconds per GiB  ours / echo, of worker and server (client and server)  at most 1.25
    throughput            ours / MXNet                                      at least 2.5

The scheduler is left out of the core-seconds: it waits.
"""

import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

from baselines.contenders import get
from baselines.launch import DRIVER, Contender, Launch, Process, driver_argv
from baselines.peers import byteps
from experiments.bounds import Row
from experiments.record import Case, Record
from experiments.statistics import launch_seconds, paired_ratios

NAME = "loopback"
NBYTES = 256 << 20
MESSAGE_NBYTES = 4_096_000
CONGESTION_CONTROL = "cubic"  # BytePS's default; the echo sockets use it, too
MXNET = "mxnet-sync"
KEYS, ONE_KEY = {"keys": "16"}, {"keys": "1"}
GIB = 2**30


def cases(
    *, blocks: int = 7, mxnet_blocks: int = 3, iterations: int = 3, nbytes: int = NBYTES, tier: str = "reproduce"
) -> list[Case]:
    """A pair per block, in the first blocks between the two of MXNet."""
    partition = {"partition": str(MESSAGE_NBYTES)}
    result = []
    for block in range(blocks):
        lines = [("byteps", partition), ("echo", partition)]
        if block < mxnet_blocks:
            lines = [(MXNET, KEYS), *lines, (MXNET, ONE_KEY)]
        for position, (contender, settings) in enumerate(lines if block % 2 == 0 else lines[::-1]):
            result.append(
                Case(
                    experiment=NAME,
                    tier=tier,
                    contender=contender,
                    settings=settings,
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
    """The two of the pair, and MXNet."""
    if name == MXNET:
        return get(name)
    if name == "byteps":
        return replace(get(name), plan=_plan_byteps)
    sources = ("baselines/echo.py", "baselines/adapters/echo_adapter.py", *DRIVER, "experiments/here.py")
    return Contender(
        name="echo",
        label="Bare echo pair",
        colour="#999999",
        marker="x",
        uses_k=False,
        version=lambda: "1",
        sources=sources,
        plan=_plan_echo,
    )


def _plan_byteps(launch: Launch) -> list[Process]:
    """The usual roles; one worker alone would contact nobody unless forced."""
    return [replace(process, env=_forced(process.env)) for process in byteps.plan(launch, forced=True)]


def _forced(environment: Mapping[str, str]) -> dict[str, str]:
    variables = dict(environment)
    variables.pop("BYTEPS_NIC_RATE", None)  # there is no NIC
    return {**variables, "BYTEPS_FORCE_DISTRIBUTED": "1"}


def _plan_echo(launch: Launch) -> list[Process]:
    client, server = launch.gpu_machines[0], launch.cpu_machines[0]
    words = {
        "address": server.address,
        "port": str(launch.port),
        "nbytes": str(launch.nbytes),
        "partition": launch.settings["partition"],
        "congestion_control": CONGESTION_CONTROL,
    }
    return [
        Process(
            host=server.host, name="server 0", argv=(sys.executable, "-m", "baselines.echo", *words.values()), env={}
        ),
        Process(host=client.host, name="worker 0", argv=driver_argv("echo_adapter", 0, launch, words), env={}, rank=0),
    ]


def _per_block(
    records: Sequence[Record], name: str, value: Callable[[Record], float], settings: Mapping[str, str] | None = None
) -> dict[int, float]:
    return {
        one.case.block: value(one)
        for one in records
        if one.case.contender == name and settings in (None, one.case.settings) and one.verified
    }


def _throughput(one: Record) -> float:
    return one.case.nbytes / launch_seconds(one.seconds)


def _core_seconds(one: Record) -> float:
    return one.cpu_seconds / (len(one.seconds) * one.case.nbytes / GIB)


def rows(records: Sequence[Record]) -> list[Row]:
    """Ratios within blocks, and what they are ratios of."""
    ours, echo = (_per_block(records, name, _throughput) for name in ("byteps", "echo"))
    ours_cpu, echo_cpu = (_per_block(records, name, _core_seconds) for name in ("byteps", "echo"))
    return [
        Row(what="BytePS throughput", unit="GB/s", values=tuple(value / 1e9 for value in ours.values())),
        Row(what="echo throughput", unit="GB/s", values=tuple(value / 1e9 for value in echo.values())),
        Row(
            what="throughput, BytePS / echo",
            values=tuple(paired_ratios(ours, echo).values()),
            bound=0.85,
            direction="at least",
        ),
        Row(what="BytePS core-seconds per GiB", unit="s", values=tuple(ours_cpu.values())),
        Row(what="echo core-seconds per GiB", unit="s", values=tuple(echo_cpu.values())),
        Row(
            what="core-seconds per GiB, BytePS / echo",
            values=tuple(paired_ratios(ours_cpu, echo_cpu).values()),
            bound=1.25,
            direction="at most",
        ),
        *_mxnet_rows(records, ours, "16 keys", KEYS),
        *_mxnet_rows(records, ours, "one key", ONE_KEY),
    ]


def _mxnet_rows(records: Sequence[Record], ours: dict[int, float], how: str, settings: Mapping[str, str]) -> list[Row]:
    theirs = _per_block(records, MXNET, _throughput, settings)
    cpu = _per_block(records, MXNET, _core_seconds, settings)
    return [
        Row(what=f"MXNet throughput, {how}", unit="GB/s", values=tuple(value / 1e9 for value in theirs.values())),
        Row(what=f"MXNet core-seconds per GiB, {how}", unit="s", values=tuple(cpu.values())),
        Row(
            what=f"throughput, BytePS / MXNet, {how}",
            values=tuple(paired_ratios(ours, theirs).values()),
            bound=2.5,
            direction="at least",
            note="" if theirs else get(MXNET).missing(),
        ),
    ]
