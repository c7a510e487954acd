"""The command line: `byteps launch`, `byteps bench`, `byteps plan`, `byteps topo`, `byteps doctor`."""

import os
import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from byteps.allocated import launch_allocated
from byteps.allocation import from_environment
from byteps.errors import BytePSError
from byteps.launcher import launch_local, launch_role, settings_from_environment
from byteps.units import parse_nbytes

app = typer.Typer(
    add_completion=False,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    help="A compact BytePS: sum gradients on every CPU of the cluster.",
)

cluster_app = typer.Typer(no_args_is_help=True, help="The file that describes a cluster.")
app.add_typer(cluster_app, name="cluster")


@app.callback()
def _commands() -> None:
    """Keeps `launch` a subcommand even while it is the only one."""


@app.command(context_settings={"ignore_unknown_options": True})
def launch(
    command: Annotated[list[str] | None, typer.Argument(help="The training program, after --.")] = None,
    workers: Annotated[int, typer.Option(help="Start a local job with this many workers.")] = 0,
    servers: Annotated[int, typer.Option(help="CPU machines of the job; 0: workers sum among themselves.")] = 0,
    local_size: Annotated[int, typer.Option(help="With --workers: so many are one machine and summed there.")] = 1,
    trace: Annotated[str, typer.Option(help="File for a trace, to open in ui.perfetto.dev.")] = "",
    trace_steps: Annotated[str, typer.Option(help="Steps to trace, such as 10:20; default: the first 20.")] = "",
) -> None:
    """Start a job: all roles on this machine (--workers), or this machine's role of a distributed one (DMLC_ROLE).
    Under srun and torchrun neither is needed.

    Local:        byteps launch --workers 4 --servers 2 -- python train.py
                  (with --local-size 2: two machines of two workers each)

    Distributed:  on each machine, set DMLC_ROLE (scheduler, server or worker), DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT,
    DMLC_NUM_WORKER, DMLC_NUM_SERVER, BYTEPS_JOB_SECRET, and on workers DMLC_WORKER_ID; then
    byteps launch -- python train.py

    Allocated:    srun byteps launch --servers 2 -- python train.py       (the last 2 processes are servers)
    """
    options = {"BYTEPS_TRACE": trace and os.path.abspath(trace), "BYTEPS_TRACE_STEPS": trace_steps}
    os.environ.update({name: value for name, value in options.items() if value})
    settings = settings_from_environment()
    command = command or []
    if workers < 0 or servers < 0:
        raise BytePSError(f"--workers {workers} --servers {servers}: use 1 or more workers and 0 or more servers")
    local = workers > 0
    allocation = None if local or "DMLC_ROLE" in os.environ else from_environment(os.environ)
    if allocation is None and not local and "DMLC_ROLE" not in os.environ:
        raise BytePSError("say --workers N for a local job, or set DMLC_ROLE and the other variables; see --help")
    if not command and (local or settings.role == "worker"):
        raise BytePSError("no program given; put it after --, as in: byteps launch --workers 4 -- python train.py")
    if local_size < 1 or workers % local_size or (local_size > 1 and not local):
        raise BytePSError(
            f"--local-size {local_size} with --workers {workers}: use a number that divides the workers; on a cluster, "
            "set BYTEPS_LOCAL_SIZE on every worker machine instead"
        )
    if local:
        settings = replace(
            settings,
            num_workers=workers // local_size,
            num_servers=servers,
            local_rank=0,
            local_size=local_size,
            local_reduction=local_size > 1,
        )
        code = launch_local(settings, command)
    elif allocation is not None:
        code = launch_allocated(settings, allocation, servers or settings.num_servers, command)
    else:
        code = launch_role(settings, command)
    raise typer.Exit(code)


@app.command()
def bench(
    least: Annotated[str, typer.Option("--min", help="Smallest tensor.")] = "4KiB",
    greatest: Annotated[str, typer.Option("--max", help="Largest tensor.")] = "256MiB",
    factor: Annotated[int, typer.Option(help="From one size to the next.")] = 4,
    iterations: Annotated[int, typer.Option(help="Timed calls per size; 0: as many as take half a second.")] = 0,
) -> None:
    """Time push_pull for every size, in a table like that of nccl-tests.

    byteps launch --workers 4 --servers 2 -- byteps bench

    Outside a job it starts a local one of 1 worker and 1 server.  Exit code 1 if a sum was wrong.
    """
    try:
        sizes = {"least": parse_nbytes(least), "greatest": parse_nbytes(greatest)}
    except ValueError as error:
        raise BytePSError(f"--min {least} --max {greatest}: {error}") from None
    settings = settings_from_environment()
    if "DMLC_NUM_WORKER" not in os.environ:
        typer.echo("# not in a job: 1 worker and 1 server here; see `byteps bench --help` for more of them")
        settings = replace(settings, num_workers=1, num_servers=1, force_distributed=True, local_reduction=False)
        words = ["--min", least, "--max", greatest, "--factor", str(factor), "--iterations", str(iterations)]
        raise typer.Exit(launch_local(settings, [sys.executable, "-m", "byteps", "bench", *words]))
    from byteps import bench as benchmark  # numpy, which `launch` does without

    raise typer.Exit(benchmark.run(settings, **sizes, factor=factor, iterations=iterations))


@app.command()
def plan(
    cluster: Annotated[Path, typer.Argument(help="TOML file of machines; see docs/planning.md.")],
    model: Annotated[str, typer.Option(help="Whose gradients: a model's name, or a size such as 500MB.")] = "1GB",
    output: Annotated[Path | None, typer.Option(help="Plan for BYTEPS_PLAN; default: CLUSTER.plan.json here.")] = None,
) -> None:
    """Who should sum what on this cluster, how long that takes, what limits it, and what one more CPU machine brings.

    Below it, every scheme of the literature that fits the cluster's network, simulated.

    byteps plan cluster.toml --model bert-large
    """
    from byteps.choose import of_cluster
    from byteps.cluster import load_cluster
    from byteps.plan import write_plan
    from byteps.plan_view import schemes, view
    from byteps.planning import forecast, gradient_nbytes
    from byteps.theory import TCP_PAYLOAD_FRACTION

    output = output or Path(f"{cluster.stem}.plan.json")
    if output.resolve() == cluster.resolve():
        raise BytePSError(f"--output {output} is the cluster's own file; give the plan another name")
    try:
        found = forecast(load_cluster(cluster), gradient_nbytes(model))
        write_plan(found.plan(cluster.name), output)
    except (ValueError, OSError) as error:
        raise BytePSError(error) from None
    typer.echo(view(found, f"{cluster.name}, {model}"))
    ranked = of_cluster(found.cluster, found.nbytes, fraction=TCP_PAYLOAD_FRACTION)
    typer.echo(f"\n{schemes(ranked)}" if ranked else "")
    typer.echo(f"\nwritten to {output}; for the scheduler: BYTEPS_PLAN={output}")


@app.command()
def topo(
    file: Annotated[str, typer.Option(help="TOML, NCCL's XML, what `nvidia-smi topo -m` prints, or a preset.")] = "",
    toml: Annotated[bool, typer.Option("--toml", help="Write it as TOML, to fill in what is unknown.")] = False,
) -> None:
    """Show the inside of this machine, or of a described one: CPUs, PCIe switches, GPUs, NICs, NVLinks, their rates."""
    from byteps.topology import load_topology
    from byteps.topology.detect import detect
    from byteps.topology.show import as_text, as_toml

    try:
        topology = load_topology(file) if file else detect()
    except ValueError as error:
        raise BytePSError(str(error)) from None
    typer.echo(as_toml(topology).rstrip() if toml else as_text(topology))


@app.command()
def doctor(
    as_json: Annotated[
        bool, typer.Option("--json", help="Facts and findings as JSON, for a report of a defect.")
    ] = False,
) -> None:
    """Check this machine, and say what each missing thing would disable and what to do.

    Exit code 1 if not even a job of numpy arrays on this machine can run, else 0: the rest disables only some uses.
    DMLC_* and BYTEPS_* variables are taken as a job's.  The JSON names this host, its addresses and its GPUs.
    """
    from byteps import doctor as judgement
    from byteps import doctor_view
    from byteps.examine import examine

    facts = examine(settings_from_environment(), Path.cwd())
    found = judgement.findings(facts)
    if as_json:
        typer.echo(doctor_view.as_json(facts, found))
    elif sys.stdout.isatty():
        doctor_view.show(found)
    else:
        typer.echo(doctor_view.as_text(found))
    raise typer.Exit(0 if judgement.fit(found) else 1)


@cluster_app.command("check")
def check_cluster(
    file: Annotated[Path, typer.Argument(help="TOML file of machines with addresses; see docs/cluster.md.")],
) -> None:
    """Check a cluster file without touching any machine, and show what would be done with each.

    byteps cluster check my.toml
    """
    from byteps.hosts import load_for_login
    from byteps.hosts_view import view

    try:
        typer.echo(view(load_for_login(file), file.name))
    except ValueError as error:
        raise BytePSError(error) from None


def main() -> None:
    """Errors of ours are one line, not a traceback."""
    try:
        app()
    except KeyboardInterrupt:
        sys.exit(130)
    except BytePSError as error:
        sys.stderr.write(f"byteps: {error}\n")
        sys.exit(2)
