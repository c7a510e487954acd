"""The report: the verdicts, the tables and figures behind them, how faithful the runs were, what they are evidence for.

Made from `claims.toml`, the records and the figures that were drawn from them, as one document that is written twice:
`results/REPORT.md`, beside its figures, and `results/report.html`, a single file with everything inside.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path

from experiments import agenda, bench, captions
from experiments.analysis import SOURCES, Loaded, Source, absent, absent_text, load
from experiments.claims import Verdict, load_claims
from experiments.document import Block, Document, Heading, Items, Paragraph, Picture, Table, markdown, paragraphs
from experiments.figures import COMPUTED
from experiments.html import html
from experiments.spec import is_model
from experiments.tables import (
    alpha_beta,
    environment,
    errors,
    fairness,
    fat_tree,
    goodput,
    inside,
    launches,
    replays,
    schemes,
)
from experiments.verdicts import CLAIMS, claims_table, judge_all, measured_again

FIRST = ("fig12", "fig9b", "fig4", "fig15_16", "slow_nics", "gain", "sizes", "tune")  # others follow by name

SCOPE = """\
The emulated cluster is evidence about software and algorithms on a network that is limited by bandwidth: every byte
crosses real sockets and kernels, every NIC is shaped in both directions, and all contenders get the same congestion
control.  It is no evidence about the hardware of the paper: there are no GPUs, no PCIe, no RDMA, and NICs are about 500
times slower than 100 Gbit/s.  Figures of the paper are shown beside ours as fractions of each NIC's goodput, never
joined with them.

A training replay is a model's tensors at the moments at which they become ready; computation is waited for.  Its
tensors are divided by the scale, and computation takes `dilation` times as long as published, so that both keep their
proportion.  Latencies, negotiation cycles and the cost of a message or a call stay what they are: beside computation
they weigh 1/dilation times as much as in the real training, more where the dilation is below 1, less where it is above:
{weights}.  The groups above say how large they are beside the network.

The optimum t_opt counts packet headers (rate x 1448/1514) and nothing else.  A launch is one start of fresh processes;
its number is the median of its timed iterations; intervals are taken over blocks of launches.  With few blocks an
interval is the range, and `coverage` says how often it holds the true median: 50 % with 2 blocks, 75 % with 3.
"""


def scope(loaded: Iterable[Loaded]) -> str:
    """What the records are evidence for, with the dilation of every experiment that replays models."""
    texts = []
    for one in loaded:
        dilations = {record.case.dilation for record in one.records if is_model(record.case.workload)}
        if dilations:
            low, high = f"{1 / max(dilations):.2g}", f"{1 / min(dilations):.2g}"
            texts.append(f"{one.experiment} {low if low == high else f'{low} to {high}'} times as much")
    return SCOPE.strip().format(weights=", ".join(texts) or "no replays are among these records")


def experiments() -> tuple[str, ...]:
    """All experiments that run here, in the report's order."""
    known = agenda.experiments()
    return (*(name for name in FIRST if name in known), *(name for name in known if name not in FIRST))


def simulated_only() -> tuple[str, ...]:
    """All experiments that do not run here."""
    return tuple(name for name in agenda.simulations() if name not in agenda.experiments())


Section = tuple[str, str, Callable[[Loaded], Table | list[Block]], tuple[str, ...]]  # experiment, title, table, figures


def _inside(loaded: Loaded) -> list[Block]:
    return [inside.speeds(loaded), inside.bytes_on_links(loaded)]


def _no_table(loaded: Loaded) -> list[Block]:
    """Where the figure says it all."""
    return []


def _alpha_beta(loaded: Loaded) -> list[Block]:
    return [alpha_beta.costs(loaded), alpha_beta.plans(loaded)]


SECTIONS: tuple[Section, ...] = (
    ("fig12", "Figure 12: fraction of the optimum t_opt", goodput.fractions, ("fig12_goodput",)),
    ("fig9b", "Figure 9b: the CPU adder", goodput.adder, ("fig9b_adder",)),
    ("fig4", "Figure 4: VGG-16, share of linear scaling", replays.fig4, ("fig4_vgg16",)),
    ("fig15_16", "Figures 15 and 16: six models, share of linear scaling", replays.models, ("fig15_16_models",)),
    ("slow_nics", "The same models with slower NICs, share of linear scaling", replays.slow_nics, ("slow_nics",)),
    ("gain", "Where the gain comes from: each step on top of the last", replays.gain, ("gain_steps",)),
    ("sizes", "Sizes and numbers of tensors", goodput.sizes, ("sizes_time", "sizes_counts")),
    (
        "topologies",
        "Schemes of the literature on star and BCube, emulated",
        schemes.emulated,
        ("schemes_emulated",),
    ),
    ("aggregation", "In-network aggregation against ring and servers, emulated", _no_table, ("aggregation_time",)),
    ("congestion", "Congestion control and queues, emulated", _no_table, ("congestion_queues",)),
    (
        "fat_tree",
        "Schemes on an emulated Fat-Tree with hashed paths",
        fat_tree.emulated,
        ("schemes_fat_tree",),
    ),
    ("inside", "Figure 14: ways to sum inside a machine, every link emulated", _inside, ("fig14_emulated",)),
    (
        "alpha_beta",
        "All-reduces as a + b s, and MG-WFBP's rule with these constants",
        _alpha_beta,
        ("schemes_alpha_beta",),
    ),
    ("bml", "VGG-19 on BCube against one NIC per server", schemes.saved, ("schemes_bml",)),
    ("bml_lenet5", "LeNet-5 on BCube against one NIC per server", schemes.saved, ("schemes_bml_lenet5",)),
)
SCHEMES = tuple(one.__name__ for one in COMPUTED if one.__name__.startswith("schemes_"))
ALONE = (*(name for one in COMPUTED if (name := one.__name__) not in SCHEMES), "limits_nic")  # of no experiment
SIMULATED_SCHEMES = """\
Every scheme is written once, as a schedule that is proved, counted and simulated; `python -m experiments schemes`
prints all tables, `docs/schemes.md` explains them."""
THEORY = """\
What no record stands behind: the paper's cluster day by day, and where by theory BytePS stops being the fastest
(`python -m experiments limits` prints the numbers, `docs/limits.md` explains them)."""
VERSUS = ("fig12", "fig4", "fig15_16", "slow_nics", "sizes")
COMPARISON = "How many times faster than its opponents BytePS is in the same block; above 1, BytePS is faster."
CLAIMED = """\
Every claim was written into `experiments/claims.toml` before the run that judges it. `ours` says first what kind of
records it is from: emulated clusters, simulated ones and real ones are never joined. An interval is over blocks of
launches; the parts that decided the verdict are named."""
CALIBRATED = """\
Before and after a launch all links are filled at once, both ways, and what they carry is compared with what they
should; a launch between two calibrations that failed is not used."""
GROUPS = """\
What does not dilate weighs 1/dilation times as much beside computation as in the real training (bare tensors: 1).
Latency in shares of the iteration, core-seconds on a GPU machine as cores that would be busy at the NIC's rate, the
token bucket of the emulated NIC in shares of M, and how many partitions each summation service of BytePS has.  A dash:
not recorded, or does not apply."""


ON_HOSTS = """\
Records that `--cluster` left. They are never joined with those of the emulated cluster of this machine; figures of them
alone are in `results/cluster/report.html`. What was said of their NICs and hardware stands above, under what was not
run."""
Find = Callable[[str], list[Block]]


def _picture(folder: Path, name: str) -> list[Block]:
    """A figure by its name, or how to draw it; the link leads there from where the report lies, the folder above."""
    file = folder / f"{name}.png"
    caption = captions.read(file)
    if caption is None:
        return [Paragraph(text=f"Figure `{name}` is not drawn: `make figures` draws what there are records for.")]
    return [Picture(file=file, link=f"{folder.name}/{file.name}", title=caption.title, caption=caption.lines)]


def _sections(loaded: Sequence[Loaded], picture: Find) -> list[Block]:
    by_name = {one.experiment: one for one in loaded}
    blocks: list[Block] = []
    for name, title, tabulate, pictures in SECTIONS:
        one = by_name.get(name)
        if one is None or not one.records:
            continue
        found = tabulate(one)
        blocks += [Heading(title=title), *([found] if isinstance(found, Table) else found)]
        blocks += paragraphs(absent_text(absent(one)))
        blocks += [block for wanted in pictures for block in picture(wanted)]
    return blocks


def _on_hosts(of_hosts: Sequence[Loaded]) -> list[Block]:
    """What ran on the hosts of a cluster, apart from what is emulated here; its figures are in a report of its own."""
    titles = {name: (title, tabulate) for name, title, tabulate, _ in SECTIONS}
    blocks: list[Block] = []
    for one in of_hosts:
        if one.experiment in titles:
            title, tabulate = titles[one.experiment]
            found = tabulate(one)
            blocks += [Heading(title=f"{title}, on hosts", level=3), Paragraph(text=f"{one.records[-1].case.site}.")]
            blocks += [found] if isinstance(found, Table) else found
    return [Heading(title="On the hosts of a cluster"), *paragraphs(ON_HOSTS), *blocks] if blocks else []


def _fairness(loaded: Sequence[Loaded]) -> list[Block]:
    by_name = {one.experiment: one for one in loaded}
    texts = [
        ("Tuning: as many trials for everyone, on models that no figure reports", "tune", fairness.tuning),
        ("At several NIC rates: ratios that drift by more than 5 % do not transfer", "rates", fairness.transfer_table),
        ("Scaled against whole models", "scaling", fairness.scaling_table),
    ]
    found = [(title, tabulate(by_name[name])) for title, name, tabulate in texts if name in by_name]
    everywhere = [one for one in loaded if one.experiment != "tune"]
    found += [
        ("What we do around a peer, and the result without it", fairness.intervention_table(everywhere)),
        ("Default knobs beside tuned ones", fairness.defaults_table(everywhere)),
    ]
    blocks = [block for title, rows in found if rows for block in (Heading(title=title, level=3), rows)]
    return [Heading(title="Fairness"), *blocks] if blocks else []


def _titled(title: str, text: str, *blocks: Block) -> list[Block]:
    """A section; nothing if none of its tables has a row."""
    return [Heading(title=title), *paragraphs(text), *blocks] if any(blocks) else []


def compose(
    results: Path, *, sources: tuple[Source, ...] = SOURCES, figures: Path | None = None
) -> tuple[Document, list[Verdict]]:
    """The report and the verdicts in it; `figures` is where its pictures are, `results`/figures if it is left out."""
    loaded = [load(results, name, sources=sources) for name in (*experiments(), *simulated_only())]
    picture = partial(_picture, figures or results / "figures")
    of_hosts = [load(results, name, sources=("cluster",)) for name in experiments()] if "raw" in sources else []
    of_hosts = [one for one in of_hosts if one.records]
    claims = load_claims(CLAIMS)
    verdicts = judge_all(claims, loaded)
    on_nics = [one for one in loaded if any(record.case.nic_bytes_per_s for record in one.records)]
    again = measured_again(claims, of_hosts or loaded)
    blocks: list[Block] = [Paragraph(text=environment.summary(verdicts, loaded))]
    blocks += [Heading(title="Claims"), *paragraphs(CLAIMED), claims_table(verdicts, again)]
    blocks += _titled("Contenders: versions and knobs", "", launches.contenders(loaded))
    blocks += [Heading(title="What was not run, and why"), *environment.not_run([*loaded, *of_hosts], verdicts)]
    blocks += [Heading(title="Where the records come from"), environment.setting([*loaded, *of_hosts])]
    blocks += _on_hosts(of_hosts)
    blocks += _sections(loaded, picture)
    blocks += [Heading(title="Figures of theory"), *paragraphs(THEORY)]
    blocks += [block for name in ALONE for block in picture(name)]
    blocks += [Heading(title="The schemes of the literature, simulated"), *paragraphs(SIMULATED_SCHEMES)]
    blocks += [schemes.topologies(), schemes.merging(), schemes.regrets()]
    blocks += [block for name in SCHEMES for block in picture(name)]
    blocks += [
        block for block in picture("disciplines_time") if isinstance(block, Picture)
    ]  # a sweep's: often not there
    blocks += errors.section(loaded, picture)
    versus = [one for one in on_nics if one.experiment in VERSUS]
    blocks += _titled("BytePS against its opponents", COMPARISON, replays.against_opponents(versus))
    blocks += _fairness(loaded)
    for one in on_nics:
        if one.experiment == "fig12":
            blocks += _titled("What it costs", "", launches.cost(one))
    blocks += _titled("Link calibration", CALIBRATED, launches.calibration([*loaded, *of_hosts]))
    worst = "Worst of all launches, repeated ones included."
    blocks += _titled("Was the machine fast enough?", worst, launches.fidelity(on_nics))
    blocks += _titled("How far from a real cluster?", GROUPS, launches.dimensionless(on_nics))
    blocks += bench.report_blocks(results, sources, picture)
    problems = environment.problems([*loaded, *of_hosts])
    blocks += [Heading(title="Launches that were not used, and other trouble")]
    blocks += [Items(lines=tuple(problems)) if problems else Paragraph(text="None.")]
    blocks += [Heading(title="What this is evidence for"), *paragraphs(scope(on_nics))]
    blocks += [
        Heading(title="Environment"),
        environment.machines([*loaded, *of_hosts]) or Paragraph(text="No records."),
    ]
    return Document(title="Report", blocks=tuple(blocks)), verdicts


def write(results: Path) -> tuple[Path, list[Verdict]]:
    """Write REPORT.md and report.html, with the figures that there are; returns the first one's path."""
    document, verdicts = compose(results)
    results.mkdir(parents=True, exist_ok=True)
    path = results / "REPORT.md"
    path.write_text(markdown(document), encoding="utf-8")
    (results / "report.html").write_text(html(document), encoding="utf-8")
    return path, verdicts
