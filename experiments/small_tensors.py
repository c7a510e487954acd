"""Many small tensors: 10,000 of 4 bytes, 4 workers and 2 servers over loopback, against gloo one by one.

Small tensors travel together when they are submitted asynchronously; one at a time, what counts is the way of a message
through worker, summation service and worker.  torch.distributed has no batching for separate tensors, so a user's loop
over all_reduce is the yardstick for both.  A block is one launch of each, order rotated.

    asynchronously   ours / gloo one by one    at most 0.25
    one at a time    ours / gloo one by one    at most 1.5
"""

from collections.abc import Mapping, Sequence
from dataclasses import replace

from baselines.contenders import get
from baselines.launch import Contender, Launch, Process
from experiments.bounds import Row
from experiments.record import Case, Record
from experiments.statistics import launch_seconds, paired_ratios

NAME = "small_tensors"
NUM_TENSORS = 10_000
ASYNCHRONOUSLY, ONE_BY_ONE = "asynchronously", "one by one"
LINES = (("byteps", ASYNCHRONOUSLY), ("gloo", ONE_BY_ONE), ("byteps", ONE_BY_ONE))


def cases(*, blocks: int = 3, tensors: int = NUM_TENSORS, tier: str = "reproduce") -> list[Case]:
    """Every line once per block."""
    result = []
    for block in range(blocks):
        turn = block % len(LINES)
        for position, (contender, submit) in enumerate(LINES[turn:] + LINES[:turn]):
            result.append(
                Case(
                    experiment=NAME,
                    tier=tier,
                    contender=contender,
                    settings={"submit": submit},
                    workload=f"tensors:{tensors}",
                    n=4,
                    k=2,
                    nic_bytes_per_s=0.0,
                    nbytes=4 * tensors,
                    warmups=1,
                    iterations=3 if submit == ASYNCHRONOUSLY else 1,  # of 10,000 round trips one after the other
                    block=block,
                    position=position,
                )
            )
    return result


def contender(name: str) -> Contender:
    """BytePS without a NIC's rate, or gloo."""
    if name == "byteps":
        return replace(get("byteps"), plan=_plan_byteps)
    return replace(get("gloo-ring"), name="gloo")


def _plan_byteps(launch: Launch) -> list[Process]:
    plan = get("byteps").plan
    assert plan is not None
    return [replace(process, env=without_nic(process.env)) for process in plan(launch)]


def without_nic(environment: Mapping[str, str]) -> dict[str, str]:
    """Over loopback there is no NIC whose rate could decide anything."""
    return {name: value for name, value in environment.items() if name != "BYTEPS_NIC_RATE"}


def rows(records: Sequence[Record]) -> list[Row]:
    """Times per tensor, and the ratios within blocks."""

    def per_block(name: str, submit: str) -> dict[int, float]:
        return {
            one.case.block: launch_seconds(one.seconds) / (one.case.nbytes // 4)
            for one in records
            if one.verified and one.case.contender == name and one.case.settings["submit"] == submit
        }

    together, single, gloo = (
        per_block("byteps", ASYNCHRONOUSLY),
        per_block("byteps", ONE_BY_ONE),
        per_block("gloo", ONE_BY_ONE),
    )
    micro = {"BytePS, asynchronously": together, "BytePS, one at a time": single, "gloo, one by one": gloo}
    ratios = [
        ("asynchronously, BytePS / gloo one by one", together, 0.25),
        ("one at a time, BytePS / gloo", single, 1.5),
    ]
    return [
        *(
            Row(what=f"{what}, per tensor", unit="us", values=tuple(value * 1e6 for value in values.values()))
            for what, values in micro.items()
        ),
        *(
            Row(what=what, values=tuple(paired_ratios(ours, gloo).values()), bound=bound, direction="at most")
            for what, ours, bound in ratios
        ),
    ]
