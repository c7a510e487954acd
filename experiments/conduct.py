"""Conducts experiments on a cluster of hosts: waits for their agents, runs the cases that fit, and keeps the records.

    python -m experiments run fig12 --on cluster --cluster my.toml --secret-file secret

runs on any machine that all hosts can reach; on every host an agent (`scripts.agent`) connects to it.  Launches,
calibration, order and resuming are those of the emulated cluster (`experiments.run`).  A calibration informs: on real
hosts it voids nothing.  Records go to results/raw/NAME.cluster.jsonl; each names the site by what decides its cases
(`cluster.Ground`), and its machines as gpu0, gpu1, ..., cpu0, ... in the order of the cluster file, whatever they are
called there; its facts tell the hosts' own names.

A host that is lost fails the launch that needed it, and ends the run, unless it is told to go on: then with the cases
that need no lost host.  The same command resumes.
"""

import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import msgspec

from baselines.launch import ROOT
from byteps.handshake import parse_address
from byteps.hosts import Site, load_site
from byteps.units import format_rate
from experiments import agenda, analysis, cluster, knee, record, run, spec
from experiments.agenda import RunError
from experiments.cluster import Ground
from experiments.onsite import OnSite
from experiments.progress import Display, display
from experiments.record import Case, Record
from scripts.netns import LabError
from scripts.stage import Stage

LISTEN = "0.0.0.0:29300"  # below the ports of launches; whoever does not know the secret is turned away
SECRET = ROOT.parent / "run" / "secret"  # where a deployed suite has it
FIRST = ("fig12", "fig4", "fig15_16", "slow_nics", "gain", "sizes")  # as in the report; others follow by name
_CUDA_SECONDS = 120.0  # to import torch on a cold host
_HAS_CUDA = "import torch; print(torch.cuda.device_count() if torch.cuda.is_available() else 0)"


class LostHostError(RunError):
    """A host was lost, and the run with it; the text has a table of all."""


@dataclass(frozen=True, kw_only=True)
class Conductor:
    """What all experiments of a run share."""

    stage: OnSite
    ground: Ground
    raw: Path
    cap_bytes_per_s: float  # by tc, on every NIC; 0: none
    knee_per_core: float  # bytes/s; 0: not known
    go_on: bool  # without lost hosts

    def run(self, name: str, tier: spec.Tier, *, later_seconds: float = 0.0) -> int:
        """Run what is missing of an experiment; how many cases have no usable record.  LabError names a lost host."""
        experiment = agenda.load(name)
        path = self.raw / cluster.FILE.format(experiment.name)
        kept, bad = record.read(path)
        cases, left_out = cluster.cases_of(experiment, tier, self.ground)
        missing = [case for case in cases if not run.is_done(case, kept)]
        there, not_run = run.split(missing, cluster.not_run)
        with display(there, later_seconds) as show:
            for line in (*map(str, bad), *left_out):
                show.note(line)
            show.note(f"{experiment.name}, tier {tier}: {len(missing)} of {len(cases)} cases to run, records in {path}")

            def keep(one: Record) -> None:
                record.append(path, msgspec.structs.replace(one, congestion_control=self.stage.congestion_control))

            run.note_not_run(not_run, cluster.not_run, self.stage.provenance, kept, keep, show)
            self._launch(experiment, there, keep, show)
        kept, _ = record.read(path)
        return len([case for case in there if not run.is_done(case, kept)])

    def _launch(
        self, experiment: spec.Experiment, cases: list[Case], keep: Callable[[Record], None], show: Display
    ) -> None:
        """Those that need no lost host, and again those that are left when another one is lost."""
        attempted: set[str] = set()

        def kept(one: Record) -> None:
            attempted.add(one.case_hash)
            keep(one)

        while True:
            known = self.stage.lost
            if left := [case for case in cases if record.case_hash(case) not in attempted]:
                todo = cluster.without(left, known)
                if len(todo) < len(left):
                    show.note(f"left out: {len(left) - len(todo)} cases that need {self._own_names(known)}")
                try:
                    if todo:
                        self._run_on(spec.launches(experiment, todo), kept, show, known)
                    return
                except LabError as failure:
                    if not self.go_on or self.stage.lost == known:
                        raise
                    show.note(f"{failure}; going on without it")
            else:
                return

    def _run_on(
        self, groups: list[list[Case]], keep: Callable[[Record], None], show: Display, known: Mapping[str, str]
    ) -> None:
        def check() -> None:
            for name, reason in self.stage.lost.items():
                if name not in known:
                    raise LabError(f"lost host {self.stage.host(name)}: {reason}")

        run.run_on(
            self.stage, groups, self.raw / "logs", keep, show, check=check, facts_of=self._facts_of(self.stage.facts())
        )

    def _facts_of(self, told: Mapping[str, str]) -> Callable[[Case], dict[str, str]]:
        cores = [int(text) for text in re.findall(r"(?:^|; )(\d+)", told.get("host cores", ""))]
        nics = ", ".join(f"{name} {format_rate(rate)}" for name, rate in self.ground.rates.items())
        fastest = max(self.ground.rates.values())
        beyond = cluster.beyond_knee(fastest, min(cores), self.knee_per_core) if cores else ""
        if self.cap_bytes_per_s:
            nics += f"; all capped to {format_rate(self.cap_bytes_per_s)} by tc"
        facts = {"nics": nics} | ({cluster.BEYOND_KNEE: beyond} if beyond else {})
        return lambda _case: facts

    def _own_names(self, names: Mapping[str, str]) -> str:
        return ", ".join(self.stage.host(name) for name in names)


def conduct(
    names: Sequence[str],
    tier: spec.Tier,
    site: Site,
    *,
    listen: tuple[str, int],
    secret: bytes,
    results: Path,
    go_on: bool = False,
) -> int:
    """Run what is missing of these experiments on the site; how many cases have no usable record.

    RunError if an experiment cannot run there, LostHostError if a host was lost.
    """
    from scripts.fleet import Fleet  # brings asyncio, which nothing else here needs

    for name in names:
        if reason := cluster.why_not(agenda.load(name)):
            raise RunError(f"not on a cluster: {reason}")
    cluster.ground_of(site)
    with Fleet(site, listen=listen, secret=secret, root=ROOT) as fleet:
        stage = OnSite(fleet, site)
        cuda = has_cuda(stage, [f"gpu{i}" for i in range(len(site.gpu_hosts))])
        conductor = Conductor(
            stage=stage,
            ground=cluster.ground_of(site, cuda=cuda),
            raw=results / "raw",
            cap_bytes_per_s=site.cap_bytes_per_s,
            knee_per_core=knee_per_core(results),
            go_on=go_on,
        )
        print(f"cluster: {conductor.ground}", flush=True)
        unfit = 0
        try:
            for name in names:
                unfit += conductor.run(name, tier)
        except LabError as failure:
            if not fleet.lost:
                raise
            raise LostHostError(f"{failure}\n{table(site, fleet.lost)}\nthe same command resumes") from None
        if fleet.lost:
            print(table(site, fleet.lost))
        return unfit


def table(site: Site, lost: Mapping[str, str]) -> str:
    """A line per host."""
    width = max(len(host.name) for host in site.hosts)
    return "\n".join(
        f"  {host.name:{width}}  " + (f"lost: {lost[host.name]}" if host.name in lost else "ok") for host in site.hosts
    )


def figures_and_report(results: Path) -> list[Path]:
    """Of the records of clusters alone, into results/cluster; what was written."""
    from experiments import document, figures, html, report

    folder = results / "cluster"
    loaded = [analysis.load(results, name, sources=("cluster",)) for name in agenda.experiments()]
    drawn = [path for one in loaded if one.records for path in figures.draw(one, folder / "figures")]
    found, _ = report.compose(results, sources=("cluster",), figures=folder / "figures")
    folder.mkdir(parents=True, exist_ok=True)
    written = {folder / "REPORT.md": document.markdown(found), folder / "report.html": html.html(found)}
    for path, text in written.items():
        path.write_text(text, encoding="utf-8")
    return [*drawn, *written]


def main(
    names: Sequence[str], tier: spec.Tier, file: Path, *, listen: str, secret_file: Path, results: Path, go_on: bool
) -> int:
    """`conduct`, from files."""
    try:
        site, address = load_site(file), parse_address(listen)
        secret = secret_file.read_bytes().strip()
    except (ValueError, OSError) as error:
        raise RunError(error) from None
    if not secret:
        raise RunError(f"{secret_file} is empty; it must hold the secret that the agents have")
    return conduct(names, tier, site, listen=address, secret=secret, results=results, go_on=go_on)


def in_order(names: Sequence[str]) -> list[str]:
    """As in the report."""
    return [name for name in FIRST if name in names] + [name for name in names if name not in FIRST]


def has_cuda(stage: Stage, hosts: Sequence[str]) -> bool:
    """Whether torch can use a GPU on every one of these hosts; they are asked side by side."""
    if not stage.facts().get("host gpus", "none").replace("none", "").strip():
        return False  # no nvidia-smi anywhere: torch need not be imported to know
    pipe = subprocess.PIPE
    asked = [stage.popen(host, [sys.executable, "-c", _HAS_CUDA], stdout=pipe, stderr=pipe) for host in hosts]
    found = []
    deadline = time.monotonic() + _CUDA_SECONDS
    for process in asked:
        try:
            output, _ = process.communicate(timeout=max(deadline - time.monotonic(), 0.1))
            found.append(process.returncode == 0 and output.strip().isdigit() and int(output) > 0)
        except subprocess.TimeoutExpired:
            process.end(signal.SIGKILL)
            process.communicate()
            found.append(False)
    return all(found)


def knee_per_core(results: Path) -> float:
    """Bytes/s of NIC that a core was seen to serve: the sweep's knee times its machines, over the cores they shared.

    0 without records of the sweep.
    """
    found = [one for one in analysis.load(results, knee.NAME).records if one.correct]
    if not found:
        return 0.0
    reached = knee.knee_bytes_per_s([(one.case.nic_bytes_per_s, knee.of_optimum(one)) for one in found])
    machines = found[0].case.n + found[0].case.k
    return reached * machines / int(found[0].host.get("cores", "1"))
