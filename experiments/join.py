"""Experiments inside an allocation, without a cluster file and without ssh: every node's process runs this.

    export BYTEPS_JOB_SECRET=$(openssl rand -hex 16)
    srun --ntasks-per-node=1 python -m experiments join run fig12 --tier smoke --servers 2

Rank 0 finds out which hosts there are (`experiments.rollcall`) and conducts (`experiments.conduct`); it and all others
become agents.  The first nodes are GPU machines, the last `--servers` nodes CPU machines.
"""

import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final, NoReturn

import typer

from byteps.allocation import Allocation, from_environment
from byteps.cluster import Cluster, Machine
from byteps.errors import BytePSError
from byteps.handshake import format_address
from byteps.hosts import Host, Site
from experiments.rollcall import Caller, JoinError, Role, RollCall, call, describe, secret_of

ROOT: Final = Path(__file__).resolve().parent.parent
RESULTS: Final = ROOT / "results"
_AGENT_END_SECONDS: Final = 30.0

app = typer.Typer(no_args_is_help=True, help="Inside srun or torchrun, one process per node.")
TierOption = Annotated[str, typer.Option(help="how much to run: smoke, reproduce, sweep or paper")]
ServersOption = Annotated[int, typer.Option(help="so many of the last nodes are CPU machines; -1: see --gpu-machines")]
GpuOption = Annotated[int, typer.Option(help="so many of the first nodes are GPU machines; -1: all, or see --servers")]
NicOption = Annotated[str, typer.Option(help="rate of every node's NIC, such as 25Gbit; left out: the kernel is asked")]
InterfaceOption = Annotated[str, typer.Option(help="NIC by name or network; left out: the one towards rank 0")]
ResultsOption = Annotated[Path, typer.Option(help="folder with raw/ records, on rank 0's node")]
ContinueOption = Annotated[bool, typer.Option("--continue", help="without hosts that were lost")]


@dataclass(frozen=True, kw_only=True)
class _Joined(Host):
    """A host of an allocation; nothing was deployed, so its suite lies anywhere."""

    root: str

    @property
    def suite(self) -> str:
        return self.root


def allocation(env: Mapping[str, str]) -> Allocation:
    """JoinError outside of srun and torchrun, and where there are several processes per node or one node."""
    found = from_environment(env)
    if found is None:
        raise JoinError(
            "no allocation here: start one process per node, with srun --ntasks-per-node=1 or "
            "torchrun --nproc-per-node=1 (or use a cluster file: run ... --cluster my.toml)"
        )
    if not found.one_per_node:
        raise JoinError(
            f"{found.source} started {found.local_size} processes on a node; one per node is needed: "
            "srun --ntasks-per-node=1, torchrun --nproc-per-node=1"
        )
    if found.size < 2:
        raise JoinError(f"{found.source} started 1 process; there is nothing to synchronise below 2 nodes")
    return found


def roles(size: int, *, servers: int, gpu_machines: int) -> list[str]:
    """The names of the nodes by rank: gpu0, gpu1, ..., cpu0, ...; JoinError if the numbers do not fit."""
    n = gpu_machines if gpu_machines >= 0 else size - max(servers, 0)
    k = size - n
    if n < 2 or k < 0 or servers not in (-1, k):
        raise JoinError(
            f"--gpu-machines {gpu_machines} --servers {servers}: {size} nodes are at least 2 GPU machines and the rest "
            "CPU machines; give one of the two numbers"
        )
    return [f"gpu{i}" for i in range(n)] + [f"cpu{i}" for i in range(k)]


def site_of(callers: Sequence[Caller], names: Sequence[str]) -> Site:
    """The hosts of all ranks, in order."""
    hosts = tuple(_host(caller, name) for caller, name in zip(callers, names, strict=True))
    machines = tuple(Machine(name=host.name, role=host.role, nic_bytes_per_s=host.nic_bytes_per_s) for host in hosts)
    return Site(
        hosts=hosts,
        known_hosts="",
        host_keys="reject",
        connect_seconds=0.0,
        provenance="measured",
        cap_bytes_per_s=0.0,
        cluster=Cluster(machines=machines),
    )


def _host(caller: Caller, name: str) -> _Joined:
    return _Joined(
        name=name,
        role="gpu" if name.startswith("gpu") else "cpu",
        address=caller.address,
        interfaces=(caller.interface,),
        nic_bytes_per_s=caller.nic_bytes_per_s,
        nics=(caller.nic_bytes_per_s,),
        gpus=int(name.startswith("gpu")),
        user="",
        port=0,
        key="",
        python=sys.executable,
        workdir="",
        environment="",
        peers_folder="",
        torch_index="",
        wheels="",
        peers=(),
        machine="",
        root=caller.suite,
    )


@dataclass(frozen=True, kw_only=True)
class Options:
    """What the command line says; that of rank 0 counts, but for its own NIC."""

    names: Sequence[str]  # of experiments; ["all"]: what the tier runs
    tier: str
    servers: int
    gpu_machines: int
    nic: str
    interface: str
    results: Path
    go_on: bool


def main(options: Options, env: Mapping[str, str]) -> int:
    """This process's part; the exit code.  Ranks above 0 become their agent and do not return."""
    found = allocation(env)
    secret = secret_of(env, found.conductor, found.port)

    def about(address: str, conductor: str) -> Caller:
        return describe(
            found, address=address, conductor=conductor, suite=str(ROOT), nic=options.nic, interface=options.interface
        )

    if found.rank:
        role = call(found, secret, about)
        argv, _ = _agent(role, secret)
        os.chdir(ROOT)
        os.execv(argv[0], argv)
    with RollCall(found, secret) as calls:
        others = calls.callers()
        try:
            fleet_address = others[0].conductor
            callers = [about(fleet_address, fleet_address), *others]
            if problems := [caller.error for caller in callers if caller.error]:
                raise JoinError("; ".join(problems))
            names = roles(found.size, servers=options.servers, gpu_machines=options.gpu_machines)
        except JoinError as error:
            complaint = str(error)
            calls.answer(lambda rank: Role(name="", fleet="", error=complaint))
            raise
        listen = (fleet_address, found.port + 1)
        calls.answer(lambda rank: Role(name=names[rank], fleet=format_address(listen)))
    return _conduct(options, site_of(callers, names), listen, secret)


def _agent(role: Role, secret: bytes) -> tuple[list[str], int]:
    """The command that serves on this host, and the file descriptor it reads the secret from: no file is left."""
    fd = os.memfd_create("secret", 0)
    os.write(fd, secret)
    os.set_inheritable(fd, True)
    options = ["--conductor", role.fleet, "--name", role.name, "--secret-file", f"/proc/self/fd/{fd}"]
    return [sys.executable, "-m", "scripts.agent", *options], fd


def _conduct(options: Options, site: Site, listen: tuple[str, int], secret: bytes) -> int:
    from experiments import agenda, cluster, conduct  # pandas and more, which ranks above 0 do without

    tier = agenda.parse_tier(options.tier)
    names = list(options.names)
    if names == ["all"]:
        names = conduct.in_order(cluster.experiments_of(tier))
    argv, fd = _agent(Role(name=site.hosts[0].name, fleet=format_address(listen)), secret)
    agent = subprocess.Popen(argv, cwd=ROOT, pass_fds=[fd], start_new_session=True)
    os.close(fd)
    try:
        unfit = conduct.conduct(
            names, tier, site, listen=listen, secret=secret, results=options.results, go_on=options.go_on
        )
    finally:
        try:
            agent.wait(_AGENT_END_SECONDS)
        except subprocess.TimeoutExpired:
            agent.kill()
            agent.wait()
    if options.names == ["all"]:
        for path in conduct.figures_and_report(options.results):
            print(path)
    return unfit


@app.callback()
def _commands() -> None:
    """Keeps `run` a subcommand although it is the only one."""


@app.command("run")
def run_experiments(
    names: Annotated[list[str], typer.Argument(help="experiments, `all`, or .toml files of your own")],
    tier: TierOption = "reproduce",
    servers: ServersOption = -1,
    gpu_machines: GpuOption = -1,
    nic: NicOption = "",
    interface: InterfaceOption = "",
    results: ResultsOption = RESULTS,
    go_on: ContinueOption = False,
) -> None:
    """Run what is missing on the nodes of this allocation; after `all`, draw the figures and write the report."""
    from experiments.agenda import RunError
    from experiments.spec import SpecError
    from scripts.leftovers import LabError

    options = Options(
        names=names,
        tier=tier,
        servers=servers,
        gpu_machines=gpu_machines,
        nic=nic,
        interface=interface,
        results=results.resolve(),
        go_on=go_on,
    )
    signal.signal(signal.SIGTERM, _terminate)
    try:
        unfit = main(options, os.environ)
    except (BytePSError, RunError, SpecError, LabError, OSError) as error:
        print(f"experiments: {error}", file=sys.stderr)
        raise typer.Exit(1) from None
    except KeyboardInterrupt:
        print("experiments: interrupted; the same command resumes", file=sys.stderr)
        raise typer.Exit(130) from None
    if unfit:
        print(f"experiments: {unfit} launches left no usable record; repeat the command to try again", file=sys.stderr)
    raise typer.Exit(1 if unfit else 0)


def _terminate(_signal: int, _frame: object) -> NoReturn:
    raise KeyboardInterrupt
