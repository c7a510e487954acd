"""The one table of contenders: what each is called, how it looks in figures, and which processes it needs where.

A contender is a name and a function from a `Launch` (machines, sizes, settings) to the processes to start.  The
orchestrator (`experiments.launch`) starts them, talks with those that run `baselines.driver`, and ends them all; it
knows nothing about any contender.  To add one, write an adapter and a module in `baselines.peers`, and name it here.
Pure: plans are data; nothing is started here.
"""

import importlib.metadata
from pathlib import Path

from baselines.launch import ROOT, Contender
from baselines.peers import byteps, horovod, mpi, mxnet, schedules, switch, tensorflow, torch

CPU_ADDER = Contender(
    name="cpu-adder",
    label="CPU adder",
    colour="#009E73",
    marker="D",
    uses_k=False,
    version=lambda: importlib.metadata.version("numpy"),
    sources=("byteps/kernels.py", "experiments/adder.py"),
    plan=None,
)

CONTENDERS: dict[str, Contender] = {
    contender.name: contender
    for contender in (
        *byteps.CONTENDERS,
        *torch.CONTENDERS,
        *horovod.CONTENDERS,
        *mpi.CONTENDERS,
        *mxnet.CONTENDERS,
        *tensorflow.CONTENDERS,
        *schedules.CONTENDERS,
        *switch.CONTENDERS,
        CPU_ADDER,
    )
}

USES_K = {name: contender.uses_k for name, contender in CONTENDERS.items()}


def get(name: str) -> Contender:
    """The contender of that name."""
    if name not in CONTENDERS:
        raise ValueError(f"contender {name!r} is not registered; registered are {', '.join(sorted(CONTENDERS))}")
    return CONTENDERS[name]


def source_files(contender: Contender) -> list[Path]:
    """The files that its sources name; a pattern that matches nothing is an error in the table."""
    files: set[Path] = set()
    for pattern in (p for p in contender.sources if not p.startswith("!")):
        found = set(ROOT.glob(pattern))
        if not found:
            raise FileNotFoundError(f"contender {contender.name}: no file matches {pattern} under {ROOT}")
        files |= found
    for pattern in (p[1:] for p in contender.sources if p.startswith("!")):
        files -= set(ROOT.glob(pattern))
    return sorted(files)
