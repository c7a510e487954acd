"""Tasks on the hosts of a cluster file: fab -r scripts TASK --cluster my.toml; see docs/cluster.md.

Each works on all hosts at once, ends with a table, and exits with 1 unless all is well on every host.
"""

import functools
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))  # fab puts this folder there, not the one above it

from fabric import task  # type: ignore[import-untyped]
from invoke.exceptions import Exit

from byteps.hosts import Site, load_for_login
from scripts import deploy as deploying
from scripts import detached
from scripts import fetch as fetching
from scripts import preflight as looking
from scripts import provision as provisioning
from scripts.detached import Order, RunFailed
from scripts.ssh import HostFailed

ROOT = deploying.ROOT
if isinstance(sys.stdout, io.TextIOWrapper):
    sys.stdout.reconfigure(line_buffering=True)  # progress is seen in a pipe, too
_HELP = {"cluster": "the cluster file; default: the environment's CLUSTER"}
_KEEPS = {**_HELP, "results": "the folder with raw/ records; default: results"}
Function = TypeVar("Function", bound=Callable[..., None])
_CONTINUE = {"continue_": "without the hosts that failed; the exit code is still 1"}


def _task(**options: Any) -> Callable[[Function], Function]:
    """Fabric's decorator with a type; Ctrl-C is exit code 130 and a word (Fabric: 1 and none)."""
    decorator: Callable[[Callable[..., None]], Function] = task(**options)

    def decorated(function: Function) -> Function:
        @functools.wraps(function)
        def interruptible(*arguments: Any, **keywords: Any) -> None:
            try:
                function(*arguments, **keywords)
            except KeyboardInterrupt:
                raise Exit("interrupted", code=130) from None

        return decorator(interruptible)

    return decorated


def _site(cluster: str) -> Site:
    file = cluster or os.environ.get("CLUSTER", "")
    if not file:
        raise Exit("no cluster file: --cluster my.toml, or CLUSTER=my.toml in the environment", code=2)
    try:
        return load_for_login(file)
    except ValueError as error:
        raise Exit(str(error), code=2) from None


def _folder(cluster: str, results: str) -> Path:
    """On this machine, for logs and what is fetched."""
    return _results(results) / "cluster" / Path(cluster or os.environ["CLUSTER"]).stem


def _results(results: str) -> Path:
    return Path(results).resolve() if results else ROOT / "results"


def _end(table: str, ok: bool) -> None:
    print(table, flush=True)
    if not ok:
        raise Exit(code=1)


@_task(help=_HELP)
def preflight(_: Any, cluster: str = "") -> None:
    """Look at all hosts: login, Python, disk, clock, interfaces, ports between all pairs, link rates, GPUs."""
    site = _site(cluster)
    _end(*looking.preflight(site))


@_task(help=_HELP)
def deploy(_: Any, cluster: str = "") -> None:
    """Send the repository's files to all hosts."""
    site = _site(cluster)
    table, failed = provisioning.deploy_all(site)
    _end(table, not failed)


@_task(help=_KEEPS)
def provision(_: Any, cluster: str = "", results: str = "") -> None:
    """Send the files, and install environments and peers, where they are missing."""
    site, folder = _site(cluster), _folder(cluster, results)
    table, failed = provisioning.provision(site, folder)
    _end(table, not failed)


def _order(site: Site, names: tuple[str, ...], tier: str, go_on: bool) -> Order:
    """What nobody could run ends here, before any host is asked; files of one's own are looked at there."""
    from experiments import agenda, cluster  # half a second, which the other tasks do without

    try:
        agenda.parse_tier(tier)
        cluster.ground_of(site)
        for name in names:
            if name != "all" and not name.endswith(".toml") and (reason := cluster.why_not(agenda.load(name))):
                raise agenda.RunError(f"not on a cluster: {reason}")
    except agenda.RunError as error:
        raise Exit(str(error), code=2) from None
    return Order(names=names, tier=tier, go_on=go_on)


def _run(site: Site, order: Order) -> bool:
    try:
        host = detached.start(site, order)
        return _follow(site, host.name)
    except RunFailed as error:
        print(error, flush=True)
        return False


def _follow(site: Site, conductor: str) -> bool:
    try:
        code = detached.follow(site, site.host(conductor))
    except HostFailed as failure:
        print(f"{conductor} {failure.state}: {failure.reason}\n  do: {failure.todo}")
        return False
    table, ok = detached.finish(site)
    print(table)
    if code:
        how = f"with exit code {code}" if code > 0 else "without a word (killed?)"
        print(f"the conductor ended {how}; {'mend that' if code == 2 else 'the same command resumes'}")
    return ok and code == 0


@_task(
    positional=["figures"],
    help={**_HELP, **_CONTINUE, "figures": "such as fig12,fig4, or all", "tier": "smoke, reproduce or paper"},
)
def run(_: Any, figures: str, cluster: str = "", tier: str = "reproduce", continue_: bool = False) -> None:
    """Run experiments on the hosts, and follow them; Ctrl-C stops them, a lost connection does not."""
    site = _site(cluster)
    names = tuple(figures.replace(",", " ").split())
    if not _run(site, _order(site, names, tier, continue_)):
        raise Exit(code=1)


@_task(help=_HELP)
def attach(_: Any, cluster: str = "") -> None:
    """Follow a run that goes on, from its beginning."""
    site = _site(cluster)
    table, states, _ok = detached.status(site)
    host = detached.conductor_of(site, states)
    if host is None:
        raise Exit(f"{table}\nno run goes on; `fab run` starts one, `fab fetch` brings what earlier ones left", code=1)
    if not _follow(site, host.name):
        raise Exit(code=1)


@_task(help=_HELP)
def status(_: Any, cluster: str = "") -> None:
    """Show what runs on which host."""
    site = _site(cluster)
    table, _states, ok = detached.status(site)
    _end(table, ok)


@_task(help=_KEEPS)
def fetch(_: Any, cluster: str = "", results: str = "") -> None:
    """Bring records and logs here, into results/cluster, and new records into results/raw."""
    site, folder = _site(cluster), _folder(cluster, results)
    _end(*fetching.fetch(site, folder, _results(results) / "raw"))


@_task(help=_HELP)
def stop(_: Any, cluster: str = "") -> None:
    """End the run, and whatever it left running."""
    site = _site(cluster)
    _end(*detached.stop(site))


@_task(help={**_KEEPS, "all": "the suite and its environments, too; records are fetched first"})
def clean(_: Any, cluster: str = "", results: str = "", all: bool = False) -> None:
    """Stop, and remove the run's files from the hosts."""
    site, folder = _site(cluster), _folder(cluster, results)
    table, ok = detached.stop(site)
    print(table)
    if all and ok:
        table, ok = fetching.fetch(site, folder, _results(results) / "raw")
        print(table)
    if not ok:
        raise Exit("nothing was removed", code=1)
    _end(*fetching.clean(site, everything=all))


@_task(help={**_KEEPS, **_CONTINUE, "tier": "smoke, reproduce or paper"})
def reproduce(_: Any, cluster: str = "", tier: str = "reproduce", results: str = "", continue_: bool = False) -> None:
    """From nothing to the report: preflight, provision, all experiments that fit, fetch, figures; again resumes."""
    from experiments.conduct import figures_and_report

    site, folder = _site(cluster), _folder(cluster, results)
    order, ok = _order(site, ("all",), tier, continue_), True
    table, states, _answered = detached.status(site)
    conductor = detached.conductor_of(site, states)
    if conductor is not None and states[conductor.name].runs:
        print(f"{table}\na run goes on: following it")
        ok = _follow(site, conductor.name)
    else:
        table, ok = looking.preflight(site)
        print(table, flush=True)
        if not ok and not continue_:
            raise Exit("mend that, or --continue without these hosts", code=1)
        table, failed = provisioning.provision(site, folder)
        print(table, flush=True)
        if failed and not continue_:
            raise Exit("mend that, or --continue without these hosts", code=1)
        ok = _run(site, order) and ok and not failed
    table, fetched = fetching.fetch(site, folder, _results(results) / "raw")
    print(table)
    for path in figures_and_report(_results(results)):
        print(path)
    if not (ok and fetched):
        raise Exit(code=1)
