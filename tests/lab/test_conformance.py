"""One suite for all contenders, BytePS included: right sums, whatever the tensors and the world size, and no more bytes
on the NIC than the algorithm needs.

A launch serves several cases, since starting a contender takes longer than its sums.  Sums are exact, on data that
depend on rank, index and iteration (see `baselines.data`); each case has a warm-up and two iterations back to back.
"""

import contextlib
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import pytest

from baselines.contenders import CONTENDERS
from baselines.session import Tensor
from experiments import catalogue, launch
from experiments.emulated import Emulated
from experiments.record import Case
from scripts.lab import star
from scripts.netns import Lab, why_no_lab

pytestmark = [pytest.mark.skipif(bool(why_no_lab()), reason=why_no_lab() or "-"), pytest.mark.timeout(180)]

NIC_BYTES_PER_S = 125e6  # 1 Gbit/s
PAYLOAD_NBYTES = 8 * 2**20
PAYLOAD_TOLERANCE = 0.02
ODD = (1, 7, 65521, 2**20 + 1)
NAMES = sorted(name for name, contender in CONTENDERS.items() if contender.plan is not None)
SIBLINGS = ("mxnet-p3", "mxnet-async")  # of mxnet-sync
SCHEDULED = {"strategy": "scheduled", "piece": "100000", "credit": "300000"}
STRATEGIES = [
    ("gloo-ring", 0, {"strategy": "one-by-one"}),
    ("gloo-ring", 0, {"strategy": "fused", "bucket": "1MiB"}),
    ("gloo-ring", 0, SCHEDULED),
    ("byteps", 2, {"strategy": "one-by-one"}),
    ("horovod", 0, SCHEDULED),
    ("mxnet-sync", 2, SCHEDULED),
]

Outcomes = Callable[..., dict[str, launch.Outcome]]


def mixed(count: int, dtype: str) -> tuple[Tensor, ...]:
    """The odd sizes among many small ones; ready times 0.1 ms apart, priorities that are not the order of anything."""
    sizes = [ODD[index // 10] if index % 10 == 5 and index // 10 < len(ODD) else 0 for index in range(count)]
    return tuple(
        Tensor(
            name=f"mixed/{dtype}/{index}",
            numel=size or 1 + index * 7919 % 4001,
            dtype=dtype,
            ready_seconds=index * 1e-4,
            priority=index * 37 % 101,
            forward_seconds=1e-5,
        )
        for index, size in enumerate(sizes)
    )


def cases_of(name: str, n: int, k: int, settings: dict[str, str]) -> dict[str, Case]:
    """The cases of a launch; half precision comes last, since a contender may refuse it."""
    shapes = {"payload": ("tensor", PAYLOAD_NBYTES)}
    shapes |= {f"{numel} elements": ("tensor", 4 * numel) for numel in ODD}
    shapes |= {"many": ("mixed:100:float32", 4), "half": ("mixed:50:float16", 4)}
    return {
        title: Case(
            experiment="conformance",
            tier="smoke",
            contender=name,
            settings=settings,
            n=n,
            k=k,
            nic_bytes_per_s=NIC_BYTES_PER_S,
            nbytes=nbytes,
            workload=workload,
            warmups=1,
            iterations=2,
            block=0,
        )
        for title, (workload, nbytes) in shapes.items()
    }


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Outcomes]:
    """Runs a launch the first time that it is asked for."""
    shipped = catalogue.of_case

    def of_case(workload: str, nbytes: int, scale: float, dilation: float) -> tuple[Tensor, ...]:
        kind, _, rest = workload.partition(":")
        if kind != "mixed":
            return shipped(workload, nbytes, scale, dilation)
        count, _, dtype = rest.partition(":")
        return mixed(int(count), dtype)

    hosts = ["gpu0", "gpu1", "gpu2", "gpu3", "cpu0", "cpu1", "scheduler"]
    with pytest.MonkeyPatch.context() as patch, Lab(star(dict.fromkeys(hosts, NIC_BYTES_PER_S))) as lab:
        patch.setattr(catalogue, "of_case", of_case)
        patch.setattr(launch, "_watched", lambda _lab, _outcome: contextlib.nullcontext())  # nothing is measured here

        @cache
        def run(name: str, n: int, k: int, settings: tuple[tuple[str, str], ...] = ()) -> dict[str, launch.Outcome]:
            cases = cases_of(name, n, k, dict(settings))
            logs = Path(tmp_path_factory.mktemp(f"{name}-{n}-{k}"))
            contender, stage = CONTENDERS[name], Emulated(lab)
            found = launch.run(list(cases.values()), contender, stage, logs=logs, tell=lambda _case, _doing: None)
            assert lab.pids() == []
            return dict(zip(cases, found, strict=True))

        yield run


def points() -> list[tuple[str, int, int]]:
    """Contender, n, k: all world sizes, and where CPU machines matter, with some and without at the largest.

    Contenders that are run as another one, but for a word in their settings, need not be alone or two once more.
    """
    with_k, without_k = ((1, 0), (2, 2), (3, 0), (4, 0), (4, 2)), ((1, 0), (2, 0), (3, 0), (4, 0))
    return [
        (name, n, k)
        for name in NAMES
        for n, k in (with_k if CONTENDERS[name].uses_k else without_k)
        if n > 2 or name not in SIBLINGS
    ]


def need(name: str) -> None:
    if reason := CONTENDERS[name].missing():
        pytest.skip(reason)


def check(name: str, found: dict[str, launch.Outcome]) -> None:
    half = found.pop("half")
    for title, outcome in found.items():
        assert outcome.error == "", title
        assert outcome.oracle is not None
        assert outcome.oracle.passed, f"{title}: off by {outcome.max_error}"
        assert len(outcome.seconds) == 2
    if half.error:
        assert name in ("mpi", "mpi-ring", "mxnet-async")  # MPI has no such type; it cannot hold sums over many rounds
        assert "float16" in half.error.splitlines()[0]  # refused in so many words
    else:
        assert half.oracle is not None
        assert half.oracle.passed, f"half precision: off by {half.max_error}"


@pytest.mark.parametrize("name, n, k", points())
def test_sums_are_exact(outcomes: Outcomes, name: str, n: int, k: int) -> None:
    need(name)
    check(name, dict(outcomes(name, n, k)))


@pytest.mark.parametrize("name, k, settings", STRATEGIES)
def test_sums_are_exact_with_a_strategy(outcomes: Outcomes, name: str, k: int, settings: dict[str, str]) -> None:
    need(name)
    check(name, dict(outcomes(name, 2, k, tuple(settings.items()))))


@pytest.mark.parametrize("name, k", [(name, k) for name, n, k in points() if n == 4])
def test_a_gpu_machine_sends_what_the_formula_says(outcomes: Outcomes, name: str, k: int) -> None:
    need(name)
    formula = CONTENDERS[name].nic_nbytes
    if formula is None:
        pytest.skip("it chooses its algorithm itself, so there is no formula")
    outcome = outcomes(name, 4, k)["payload"]
    sent = [outcome.nics[f"gpu{rank}"].payload_sent / len(outcome.seconds) for rank in range(4)]
    assert sum(sent) / len(sent) == pytest.approx(formula(4, k, PAYLOAD_NBYTES), rel=PAYLOAD_TOLERANCE)
    assert max(sent) == pytest.approx(formula(4, k, PAYLOAD_NBYTES), rel=PAYLOAD_TOLERANCE)
