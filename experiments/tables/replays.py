"""Training replays: Figures 4, 15 and 16, slow NICs, and where the gain comes from."""

from collections.abc import Sequence

from experiments import opponents, paper
from experiments.analysis import Loaded, attempted, communication_bound, frame
from experiments.document import Table
from experiments.figures.fig15_16 import without_and_with
from experiments.gain import AS_IT_IS, FUSED, ONE_BY_ONE, SCHEDULED, SUMS, Decomposition, decompose
from experiments.groups import unshaped
from experiments.record import Case
from experiments.statistics import paired_ratios
from experiments.tables.goodput import against_k
from experiments.tables.markdown import NOTHING, cell, interval, table
from scripts.lab import shaping


def fig4(loaded: Loaded) -> Table:
    """Shares of linear scaling; the paper's beside them."""
    published = paper.fig4()
    rows = frame(attempted(loaded.records))

    def over(values: list[float], *, any_k: bool = False) -> dict[int, float]:
        return (
            {-1: values[0] / published.linear}
            if any_k
            else {k: value / published.linear for k, value in zip(published.k, values, strict=True)}
        )

    cited = [
        ("BytePS", over(published.byteps)),
        ("All-reduce", over(published.allreduce, any_k=True)),
        ("All-reduce + ByteScheduler", over(published.allreduce_bytescheduler, any_k=True)),
        ("MXNet PS", over(published.ps)),
        ("MXNet PS + ByteScheduler", over(published.ps_bytescheduler)),
    ]
    same_n = rows.empty or int(rows["n"].max()) == published.n
    ks = {*rows["k"], *(published.k if same_n else ())}
    return against_k(rows, "efficiency", cited if same_n else [], sorted(ks))


def models(loaded: Loaded) -> Table:
    """Shares of linear scaling of every model at every n; the paper's at 8 GPUs per machine."""
    published = paper.fig15_16()
    everything = frame(attempted(loaded.records))
    ns = sorted(set(everything["n"]))
    rows = []
    for workload, of_model in everything.groupby("workload", sort=False):
        model = str(workload).partition("@")[0]
        title = paper.TITLES.get(model, str(workload))
        for look, of_line in without_and_with(of_model):
            rows.append((title, look.label, *(cell(of_line[of_line["n"] == n], "efficiency") for n in ns)))
        if model in published.model and loaded.experiment == "fig15_16":
            rows += [(title, f"{what}, paper", *cells) for what, cells in _published(published, model, ns)]
    return table(("model", "", *(f"n = {n}" for n in ns)), rows)


def _published(published: paper.Figures15And16, model: str, ns: Sequence[int]) -> list[tuple[str, list[str]]]:
    data = published.model[model]
    index = {machines: position for position, machines in enumerate(published.machines)}
    return [
        (what, [f"{values[index[n]] / data.linear[index[n]]:.3f}" if n in index else NOTHING for n in ns])
        for what, values in (
            ("BytePS, k = 0", data.byteps_k0),
            ("BytePS, k = n", data.byteps_kn),
            ("All-reduce", data.allreduce),
            ("PS, k = n", data.ps),
        )
        if values
    ]


def against_opponents(loaded: Sequence[Loaded]) -> Table:
    """How many times faster BytePS is than the best opponent and the best all-reduce, on as many machines as ran."""
    rows = []
    for experiment in loaded:
        largest = max((record.case.n for record in experiment.records), default=0)
        records = [record for record in experiment.records if record.case.n == largest]
        for contest in opponents.contests(records, opponents.seconds_of):
            for k, ours in sorted(contest.byteps.items()):
                ratios = paired_ratios(opponents.best_of(contest.opponents(k)), ours).values()
                if contest.others or contest.cpu_bound:
                    allreduce = opponents.best_of(contest.opponents(k, opponents.all_reduce))
                    others = paired_ratios(allreduce, ours).values()
                    rows.append(
                        (
                            opponents.part_name(contest.case, k),
                            str(contest.case.n),
                            interval(ratios),
                            interval(others),
                            _kind(contest.case),
                            f"{len(ratios)} of {len(ours)}",
                            ", ".join(contest.left_out(k)) or NOTHING,
                        )
                    )
    header = ("situation", "n", "best opponent / BytePS", "best all-reduce / BytePS", "what limits it")
    return table((*header, "blocks with all of them", "CPU-bound, left out"), rows)


def _kind(case: Case) -> str:
    if unshaped(case):
        return f"software: M is {case.nbytes / shaping(case.nic_bytes_per_s).burst_bytes:.0f} token buckets"
    if not opponents.replay(case):
        return "network"
    return "communication" if communication_bound(case) else "computation"


def gain(loaded: Loaded) -> Table:
    """Each step's ratio on top of the last: how many times faster an iteration got by it."""
    published = paper.fig15_16()
    rows = []
    for model in decompose(loaded.records):
        for way in SUMS:
            rows.append(_gain_row(model, way))
        name = model.model.partition("@")[0]
        if name in published.model:
            data, at = published.model[name], published.machines.index(4)
            total = f"{data.byteps_k0[at] / data.allreduce[at]:.3f} (over all-reduce)"
            rows.append((paper.TITLES.get(name, name), "paper, BytePS k = 0, 4 machines", *[NOTHING] * 5, total))
    header = ("model", "sums", "one by one: share of linear", "fused / one by one", "scheduled / fused")
    return table((*header, "scheduled: over ring", "as it is / one by one", "all steps: over ring one by one"), rows)


def _gain_row(model: Decomposition, way: str) -> tuple[str, ...]:
    title = paper.TITLES.get(model.model.partition("@")[0], model.model)
    share = model.share_of_linear((way, ONE_BY_ONE))

    def step(slow: tuple[str, str], fast: tuple[str, str]) -> str:
        reason = next((model.reasons[cell] for cell in (fast, slow) if cell in model.reasons), "")
        return interval(model.ratios(slow, fast)) if model.ratios(slow, fast) else reason or NOTHING

    return (
        title,
        way,
        f"{share:.3f}" if share is not None else model.reasons.get((way, ONE_BY_ONE), NOTHING),
        step((way, ONE_BY_ONE), (way, FUSED)),
        step((way, FUSED), (way, SCHEDULED)),
        NOTHING if way == "ring" else step(("ring", SCHEDULED), (way, SCHEDULED)),
        NOTHING if way == "split" else step((way, ONE_BY_ONE), (way, AS_IT_IS)),
        step(("ring", ONE_BY_ONE), (way, SCHEDULED)),
    )


def slow_nics(loaded: Loaded) -> Table:
    """Shares of linear scaling, a column for each model."""
    everything = frame(attempted(loaded.records))
    names = list(dict.fromkeys(everything["workload"]))
    rows = []
    for n, of_n in everything.groupby("n"):
        for look, of_line in without_and_with(of_n):
            cells = [cell(of_line[of_line["workload"] == name], "efficiency") for name in names]
            rows.append((str(n), look.label, *cells))
    return table(("n", "", *(paper.TITLES.get(name, name) for name in names)), rows)
