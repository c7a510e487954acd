"""`python -m experiments`: run experiments, write the report, draw the figures.

python -m experiments list
python -m experiments run fig12 --tier reproduce     does what is missing; a second call resumes
python -m experiments run fig13 --on sim             simulated, on the paper's cluster
python -m experiments run fig12 --on cluster --cluster my.toml       on hosts, each with an agent (scripts.agent)
python -m experiments figures                        from records alone, into results/figures/
python -m experiments report                         results/REPORT.md and report.html; the claims on the screen
python -m experiments limits                         where BytePS stops being the fastest, by theory
python -m experiments schemes                        the synchronisation schemes of the literature, simulated
python -m experiments record-trace train.py:build --output mine.toml      your own training as a workload to replay
"""

import signal
import sys
from pathlib import Path
from typing import Annotated, NoReturn

import typer

from byteps.errors import BytePSError
from experiments import join
from experiments.spec import TIERS, SpecError, Tier

app = typer.Typer(no_args_is_help=True, add_completion=False, pretty_exceptions_enable=False)
app.add_typer(join.app, name="join")
OnOption = Annotated[
    str,
    typer.Option(
        "--on", help="lab, cluster, sim or theory (experiments/backends.py); left out: where the experiment belongs"
    ),
]
TierOption = Annotated[str, typer.Option(help=f"how much to run: {', '.join(TIERS)}")]
ResultsOption = Annotated[Path, typer.Option(help="folder with raw/ and reference/ records")]
ClusterOption = Annotated[Path | None, typer.Option(help="cluster file: run on its hosts; their agents connect here")]
ListenOption = Annotated[str, typer.Option(help="HOST:PORT that agents connect to")]
SecretOption = Annotated[Path | None, typer.Option(help="file that agents have, too; default: ../run/secret")]
ContinueOption = Annotated[bool, typer.Option("--continue", help="without hosts that were lost")]
LISTEN = "0.0.0.0:29300"
RESULTS = Path(__file__).resolve().parent.parent / "results"


def _fail(text: object) -> NoReturn:
    print(f"experiments: {text}", file=sys.stderr)
    raise typer.Exit(2)


def _tier(text: str) -> Tier:
    from experiments import agenda

    try:
        return agenda.parse_tier(text)
    except agenda.RunError as error:
        _fail(error)


def _terminate(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt


@app.command("list")
def list_experiments() -> None:
    """Experiments, their titles, and the number of launches per tier."""
    from experiments import agenda, spec

    for names, load in ((agenda.experiments(), agenda.load), (agenda.simulations(), agenda.load_simulation)):
        for name in names:
            experiment = load(name)
            launches = {
                tier: len(spec.launches(experiment, agenda.cases_of(experiment, tier))) for tier in experiment.tier
            }
            sizes = ", ".join(f"{tier} {count}" for tier, count in launches.items())
            print(f"{name:9} {experiment.title} ({experiment.provenance}; launches: {sizes})")


def _run(names: list[str], tier: Tier, results: Path, on: str = "") -> int:
    """Run what is missing; how many launches are left without a usable record."""
    from experiments import agenda, backends, run
    from scripts.netns import LabError

    signal.signal(signal.SIGTERM, _terminate)
    raw = results / "raw"
    try:
        chosen = backends.parse(on)
        if names == ["all"]:
            names = agenda.of_tier(tier) if chosen in (None, "lab") else agenda.simulations_of_tier(tier)
        places = {name: chosen or backends.belongs_to(name) for name in names}
        unfit = 0
        for name, place in places.items():
            if place in ("sim", "theory"):
                unfit += backends.compute(name, tier, place, raw=raw)
        here = [name for name, place in places.items() if place == "lab"]
        expected = [run.missing_seconds(name, tier, raw=raw) for name in here]
        for number, name in enumerate(here, start=1):
            unfit += run.run(name, tier, raw=raw, later_seconds=sum(expected[number:]))
        return unfit
    except (agenda.RunError, SpecError, LabError) as error:
        _fail(error)
    except KeyboardInterrupt:
        _interrupted()


def _conduct(
    names: list[str], tier: Tier, results: Path, file: Path, listen: str, secret: Path | None, *, go_on: bool
) -> int:
    """The same on the hosts of a cluster file."""
    from experiments import agenda, cluster, conduct
    from scripts.netns import LabError

    signal.signal(signal.SIGTERM, _terminate)
    try:
        if names == ["all"]:
            names = conduct.in_order(cluster.experiments_of(tier))
        secret = secret or conduct.SECRET
        return conduct.main(names, tier, file, listen=listen, secret_file=secret, results=results, go_on=go_on)
    except conduct.LostHostError as error:
        print(f"experiments: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    except (agenda.RunError, SpecError, LabError, BytePSError) as error:
        _fail(error)
    except KeyboardInterrupt:
        _interrupted()


def _interrupted() -> NoReturn:
    print("experiments: interrupted; everything is cleaned up, the same command resumes", file=sys.stderr)
    raise typer.Exit(130)


def _end(unfit: int) -> None:
    if unfit:
        print(f"experiments: {unfit} launches left no usable record; repeat the command to try again", file=sys.stderr)
        raise typer.Exit(1)
    print("experiments: every launch has a verified record")


@app.command("run")
def run_experiments(
    names: Annotated[list[str], typer.Argument(help="experiments, `all`, or .toml files of your own")],
    tier: TierOption = "reproduce",
    on: OnOption = "",
    results: ResultsOption = RESULTS,
    cluster: ClusterOption = None,
    listen: ListenOption = LISTEN,
    secret_file: SecretOption = None,
    go_on: ContinueOption = False,
) -> None:
    """Run what is missing; exit code 1 if a launch failed or was not faithful, or a host of a cluster was lost."""
    if on not in ("", "cluster") and cluster is not None:
        _fail(f"--on {on} --cluster {cluster}: a cluster file is for --on cluster")
    if cluster is not None:
        _end(_conduct(names, _tier(tier), results, cluster, listen, secret_file, go_on=go_on))
    elif on == "cluster":
        _fail("--on cluster: name the file that describes its hosts, --cluster my.toml")
    else:
        _end(_run(names, _tier(tier), results, on))


@app.command("tune")
def tune_contenders(results: ResultsOption = RESULTS) -> None:
    """Run the trials that are missing and write the best knobs of every contender to experiments/tuned.toml."""
    from experiments import agenda, analysis, tune

    _run([tune.NAME], "sweep", results)
    wanted = agenda.current_hashes(agenda.load(tune.NAME))
    records = analysis.load(results, tune.NAME, sources=("raw",)).records
    found = tune.winners(one for one in records if one.case_hash in wanted)
    earlier = {name: knobs for name, knobs in tune.load().items() if name not in {one.name for one in found}}
    tune.TUNED.write_text(tune.text(found, earlier), encoding="utf-8")
    for one in found:
        knobs = " ".join(f"{key}={value}" for key, value in sorted(one.knobs.items()))
        print(f"{one.name:24} {knobs:32} {one.seconds:.3f} s, worst of {one.trials} trials {one.worst_seconds:.3f} s")
    for name in earlier:
        print(f"{name:24} no trial succeeded; its knobs stay as they were")
    print(tune.TUNED)


@app.command("fit")
def fit_constants(results: ResultsOption = RESULTS) -> None:
    """Fit the systems' constants on Figure 12 and on 16 GPUs (minutes), simulate everything, and print the errors."""
    from experiments import agenda, analysis, errors, fit
    from experiments.tables.errors import by_line, by_system

    try:
        fit.main()
    except KeyboardInterrupt:
        _interrupted()
    unfit = _run(["all"], "reproduce", results, on="sim")
    loaded = [analysis.load(results, name) for name in agenda.simulations()]
    points = errors.points(record for one in loaded for record in one.simulated)
    print(by_line(points), by_system(points), sep="\n\n")
    _end(unfit)


@app.command("reproduce")
def reproduce(
    tier: TierOption = "reproduce",
    results: ResultsOption = RESULTS,
    cluster: ClusterOption = None,
    listen: ListenOption = LISTEN,
    secret_file: SecretOption = None,
    go_on: ContinueOption = False,
) -> None:
    """Simulate what can be, so that it is predicted; run all experiments and benchmarks that are missing; draw the
    figures, write the report.  With a cluster file: all experiments that the cluster allows, into results/cluster."""
    from experiments import bench, conduct

    if cluster is not None:
        unfit = _conduct(["all"], _tier(tier), results, cluster, listen, secret_file, go_on=go_on)
        for path in conduct.figures_and_report(results):
            print(path)
        _end(unfit)
        return
    unfit = _run(["all"], "reproduce" if tier == "paper" else _tier(tier), results, on="sim")
    unfit += _run(["all"], _tier(tier), results)
    try:
        unfit += bench.main(["all"], results / "raw", smoke=tier == "smoke", resume=True)
    except KeyboardInterrupt:
        _interrupted()
    draw_figures(results)
    write_report(results)
    _end(unfit)


@app.command("bench")
def run_benchmarks(
    names: Annotated[list[str] | None, typer.Argument(help="benchmarks; all if none is named")] = None,
) -> None:
    """Benchmarks with a bound, each a table and a record per launch."""
    from experiments import bench

    raise typer.Exit(bench.main(names or ["all"]))


@app.command("record-trace")
def record_trace(
    target: Annotated[str, typer.Argument(metavar="MODULE:FUNCTION", help="FUNCTION(device) returns (model, step)")],
    output: Annotated[Path, typer.Option(help="the workload file to write; its stem is the workload's name")],
    iterations: Annotated[int, typer.Option(help="iterations of which the medians are taken")] = 10,
    device: Annotated[str, typer.Option(help="what FUNCTION is given: cpu or cuda")] = "cpu",
) -> None:
    """Record your own PyTorch training as a workload that experiments can replay.

    MODULE is a module or a .py file; step() runs one iteration, forward and backward.
    """
    from experiments import trace
    from experiments.workloads import WorkloadError

    try:
        print(trace.record_to_file(target, output, iterations=iterations, device=device))
    except (trace.TraceError, WorkloadError, OSError) as error:
        _fail(error)


@app.command("figures")
def draw_figures(results: ResultsOption = RESULTS) -> None:
    """Draw all figures from records."""
    from experiments import figures

    for path in figures.draw_all(results):
        print(path)


@app.command("limits")
def print_limits(results: ResultsOption = RESULTS) -> None:
    """Print what limits the idea, in numbers: the tables of docs/limits.md."""
    from experiments import analysis
    from experiments.tables import limits

    print(limits.text(analysis.load(results, "fig9b")))


@app.command("schemes")
def print_schemes() -> None:
    """Compare the schemes of the literature: the tables of docs/schemes.md."""
    from experiments.tables import schemes, transports

    print(f"{schemes.text()}\n\n{transports.text()}")


@app.command("report")
def write_report(results: ResultsOption = RESULTS) -> None:
    """Write REPORT.md and report.html, drawing the figures first if there are none, and print the claims table."""
    from rich.console import Console
    from rich.table import Table

    from experiments import report

    if not (results / "figures").is_dir():
        draw_figures(results)
    path, verdicts = report.write(results)
    shown = Table("claim", "verdict", "because", title="Claims", show_lines=True)
    for one in verdicts:
        shown.add_row(one.claim.text, one.word, one.reason)
    Console().print(shown)
    print(path)
    print(path.with_name("report.html"))


@app.command("keep")
def keep_reference(results: ResultsOption = RESULTS) -> None:
    """Make the run in results/raw the committed reference run."""
    from experiments import reference

    try:
        for path in reference.keep(results):
            print(path)
    except reference.NoRunError as error:
        _fail(error)


if __name__ == "__main__":
    app()
