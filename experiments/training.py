"""Real training: what hooks and queues cost, against PyTorch's DDP on gloo with the same model in the same run.

Four workers train a model of 200 tensors, 25 million parameters, on the CPU of this machine (`experiments.trainer`):

    over loopback, unshaped, k = 0    iteration, each of our ways / DDP        at most 1.1
    emulated NICs, k = n              iteration, DistributedOptimizer / DDP    at most 1
    unequal machines                  as in `experiments.unequal`

The same without any synchronisation runs, too: what is above it is what synchronising costs.  The warm-up steps of our
launches are traced (`byteps.trace`): exposed communication and overlap are medians over workers and steps, without the
first.  Computation and communication share the cores of one machine here, so that one hides less of the other than
where GPUs compute.  A block is a launch of each, order rotated.
"""

import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from statistics import median

import msgspec

from baselines.contenders import get
from baselines.launch import LEADER_PORT_DISTANCE, Contender, Launch, Process
from byteps import trace
from byteps.units import format_rate, parse_rate
from experiments import here, launch, record, run, unequal
from experiments.bounds import Row
from experiments.emulated import Emulated
from experiments.record import Case, Record
from experiments.small_tensors import without_nic
from experiments.statistics import launch_seconds, paired_ratios
from scripts.lab import star
from scripts.netns import Lab, why_no_lab

NAME = "training"
WORKERS = 4
LAYERS = 50
PARAMETERS = 25_018_880  # fewer in proportion with fewer layers, five at a time
NIC = "300Mbit"
LOCAL, DDP, OPTIMIZER, HOOK, BACKEND = "local", "ddp", "optimizer", "hook", "backend"
LABELS = {
    LOCAL: "without synchronisation",
    DDP: "DDP",
    OPTIMIZER: "BytePS, DistributedOptimizer",
    HOOK: "BytePS, DDP hook",
    BACKEND: "BytePS, DDP on our backend",
}
OURS = (OPTIMIZER, HOOK, BACKEND)
_PARTITION = "4096000"  # the default of a user who knows no NIC rate


def cases(
    *,
    blocks: int = 3,
    lab_blocks: int = 2,
    unequal_blocks: int | None = None,
    iterations: int = 3,
    steps: int = 3,
    layers: int = LAYERS,
    tier: str = "reproduce",
) -> list[Case]:
    """Every way over loopback; DDP and ours with shaped NICs and a CPU machine for every GPU machine; unequal machines,
    one block if there are any in the lab, unless said otherwise."""

    def block_of(ways: Sequence[str], block: int, k: int, rate: float) -> list[Case]:
        turn = block % len(ways)
        return [
            Case(
                experiment=NAME,
                tier=tier,
                contender="byteps" if way in OURS else "ddp",
                settings={"way": way, "layers": str(layers), "samples": "8", "steps": str(steps)},
                n=WORKERS,
                k=k,
                nic_bytes_per_s=rate,
                nbytes=4 * (PARAMETERS * layers // LAYERS),
                warmups=1,
                iterations=iterations,
                block=block,
                position=position,
            )
            for position, way in enumerate((*ways[turn:], *ways[:turn]))
        ]

    found = [case for block in range(blocks) for case in block_of((LOCAL, DDP, *OURS), block, 0, 0.0)]
    found += [
        case for block in range(lab_blocks) for case in block_of((DDP, OPTIMIZER), block, WORKERS, parse_rate(NIC))
    ]
    several = min(lab_blocks, 1) if unequal_blocks is None else unequal_blocks
    return found + unequal.cases(NAME, PARAMETERS // LAYERS, blocks=several, iterations=iterations, tier=tier)


def contender(name: str) -> Contender:
    """The contender of that name, with a training in place of the driver."""
    one = get(name)
    sources = ("experiments/trainer.py", "experiments/training.py", "experiments/unequal.py", "experiments/here.py")
    if name == "byteps":
        return replace(one, plan=_plan_byteps, sources=(*one.sources, *sources, "byteps/torch/*.py"))
    return replace(one, plan=_plan_torch, sources=(*one.sources, *sources))


def _trainer(launch: Launch, rank: int) -> tuple[str, ...]:
    settings = launch.settings
    store = f"tcp://{launch.gpu_machines[0].address}:{launch.port + LEADER_PORT_DISTANCE}"
    words = {name: settings[name] for name in ("way", "layers", "samples", "steps", "pace") if name in settings}
    words |= {"rank": str(rank), "size": str(len(launch.gpu_machines)), "rendezvous": store}
    return (
        *(sys.executable, "-m", "experiments.trainer"),
        *(part for name, word in words.items() for part in (f"--{name}", word)),
    )


def _plan_torch(launch: Launch) -> list[Process]:
    return [
        Process(
            host=machine.host,
            name=f"worker {rank}",
            argv=_trainer(launch, rank),
            env={"GLOO_SOCKET_IFNAME": machine.interface, "OMP_NUM_THREADS": "1"},
            rank=rank,
        )
        for rank, machine in enumerate(launch.gpu_machines)
    ]


def _plan_byteps(launch: Launch) -> list[Process]:
    """The roles of a job of BytePS, whose workers train; unshaped, with what a user gets who says nothing."""
    plan = get("byteps").plan
    assert plan is not None
    workers = {process.rank: process for process in _plan_torch(launch)}
    if not launch.nic_bytes_per_s:
        launch = replace(launch, settings={**launch.settings, "partition": _PARTITION})
    planned = []
    for process in plan(launch):
        env = _nic_environment(process.env, launch) if launch.nic_bytes_per_s else without_nic(process.env)
        if process.rank >= 0:
            start = process.argv[: process.argv.index("--") + 1]
            worker = workers[process.rank]
            process = replace(process, argv=(*start, *worker.argv))
            env = {**env, **worker.env}
        planned.append(replace(process, env=env))
    return planned


def _nic_environment(env: Mapping[str, str], launch: Launch) -> dict[str, str]:
    """The variables of a process on shaped NICs, as the settings of `experiments.unequal` change them."""
    changed = dict(env)
    if launch.settings.get("shares") == "equal":
        changed["BYTEPS_NIC_RATE"] = format_rate(launch.nic_bytes_per_s)
    if interfaces := launch.settings.get("interfaces", ""):
        changed |= {"DMLC_NODE_HOST": "", "DMLC_INTERFACE": interfaces}
        changed["BYTEPS_NIC_RATE"] = format_rate(launch.nic_bytes_per_s * len(interfaces.split(",")))
    return changed


def _traced(one: Contender, path: Path, steps: int) -> Contender:
    """With a trace of the warm-up, but for the first step, which registers the tensors."""
    variables = {"BYTEPS_TRACE": str(path), "BYTEPS_TRACE_STEPS": f"1:{max(steps, 2)}"}

    def plan(launch: Launch) -> list[Process]:
        assert one.plan is not None
        return [replace(process, env={**process.env, **variables}) for process in one.plan(launch)]

    return replace(one, plan=plan)


def execute(wanted: Sequence[Case], raw: Path, tell: Callable[[str], None]) -> list[Record]:
    """One launch after the other, each recorded as soon as it ends; those with shaped NICs only where a lab can be."""
    records = []
    for number, case in enumerate(wanted, start=1):
        if case.nic_bytes_per_s and (reason := why_no_lab()):
            tell(f"[{number}/{len(wanted)}] {case.title}: not run: {reason}")
            continue
        started = time.monotonic()
        logs = raw / "logs" / f"{record.case_hash(case)[:12]}-{time.time_ns()}"
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "trace.json"
            one = run_once(case, _traced(contender(case.contender), path, int(case.settings["steps"])), logs)
            one = msgspec.structs.replace(one, facts={**one.facts, **_from_traces(path)})
        record.append(raw / f"{NAME}.jsonl", one)
        records.append(one)
        said = one.error or f"{launch_seconds(one.seconds):.3f} s"
        tell(f"[{number}/{len(wanted)}] {case.title}: {said} ({time.monotonic() - started:.0f} s)")
    return records


def run_once(case: Case, one: Contender, logs: Path) -> Record:
    """On this machine, or on an emulated cluster where NICs are shaped."""
    if not case.nic_bytes_per_s:
        return here.run(case, one, logs=logs)
    blank = run.blank_record(case, one, "emulated")
    with Lab(star(run.cluster_of([case]) | case.nics, nics=int(case.settings.get("nics", "1")))) as lab:
        stage = Emulated(lab)
        before = run.calibrate_once(stage)
        (outcome,) = launch.run([case], one, stage, logs=logs, tell=lambda _case, _doing: None)
        return run.assemble(blank, outcome, before, run.calibrate_once(stage))


def _from_traces(path: Path) -> dict[str, str]:
    """Medians over workers and steps; nothing where nothing was traced."""
    files = sorted(path.parent.glob("*.json"))
    found = [one for file in files for one in trace.step_times(trace.read(file))]
    if not found:
        return {}
    names = ("seconds", "communication", "exposed", "overlap")
    return {f"traced {name}": f"{median(getattr(one, name) for one in found):.6f}" for name in names}


def rows(records: Sequence[Record]) -> list[Row]:
    """Iterations, ratios within blocks, and what the traces say."""

    def of(way: str, k: int) -> list[Record]:
        alike = [one for one in records if one.correct and "theme" not in one.case.settings]
        return [one for one in alike if one.case.settings["way"] == way and one.case.k == k]

    def per_block(way: str, k: int = 0) -> dict[int, float]:
        return {one.case.block: launch_seconds(one.seconds) for one in of(way, k)}

    def row(what: str, values: Mapping[int, float], bound: float | None = None, unit: str = "", note: str = "") -> Row:
        return Row(what=what, values=tuple(values.values()), bound=bound, direction="at most", unit=unit, note=note)

    found = [row(f"iteration, {label}", per_block(way), unit="s") for way, label in LABELS.items()]
    found += [row(f"{LABELS[way]} / DDP", paired_ratios(per_block(way), per_block(DDP)), 1.1) for way in OURS]
    for way in OURS:
        traced = {one.case.block: one for one in of(way, 0) if "traced exposed" in one.facts}
        for fact, unit, note in (("exposed", "s", "in the traced warm-up"), ("overlap", "", "of the communication")):
            values = {block: float(one.facts[f"traced {fact}"]) for block, one in traced.items()}
            found.append(row(f"{fact}, {LABELS[way]}", values, unit=unit, note=note))
    there = f"n = k = {WORKERS}, {NIC} NICs"
    found += [row(f"iteration, {LABELS[way]}, {there}", per_block(way, WORKERS), unit="s") for way in (DDP, OPTIMIZER)]
    ratios = paired_ratios(per_block(OPTIMIZER, WORKERS), per_block(DDP, WORKERS))
    return [*found, row(f"{LABELS[OPTIMIZER]} / DDP, {there}", ratios, 1.0), *unequal.rows(records)]
