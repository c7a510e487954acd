"""`byteps launch` inside an allocation: srun or torchrun started this process and says which one of how many it is.

Every process is a worker, but for the last `servers` ones.  Rank 0's launcher runs the job's scheduler, too, and stays
until that has ended, since other workers may need it longer; on all other ranks the role replaces the launcher.
"""

import os
import signal
import sys
from collections.abc import Sequence
from dataclasses import replace
from types import FrameType

from byteps.allocation import Allocation
from byteps.errors import BytePSError
from byteps.launcher import Job, launch_role, torch_environment
from byteps.settings import Settings


def place(settings: Settings, allocation: Allocation, servers: int) -> Settings:
    """This process's settings; an address or port of the scheduler that was set is kept."""
    workers = allocation.size - servers
    if workers < 1:
        raise BytePSError(
            f"--servers {servers}: {allocation.source} started {allocation.size} processes, "
            "of which at least 1 has to be a worker"
        )
    default = Settings()
    each = allocation.local_size
    # The workers of a node are summed there if all nodes have as many.
    together = settings.local_reduction and each > 1 and allocation.size % each == workers % each == 0
    if together and allocation.rank != allocation.node * each + allocation.local_rank:
        raise BytePSError(
            f"{allocation.source} has rank {allocation.rank} as number {allocation.local_rank} of node "
            f"{allocation.node}, {each} processes each; the workers of a node are summed together, which takes ranks "
            "in the order of nodes (srun --distribution=block), or BYTEPS_LOCAL_REDUCTION=0"
        )
    settings = replace(
        settings,
        num_workers=workers // each if together else workers,
        num_servers=servers,
        root_host=settings.root_host if settings.root_host != default.root_host else allocation.conductor,
        root_port=settings.root_port if settings.root_port != default.root_port else allocation.port,
        local_rank=allocation.local_rank,
        local_size=allocation.local_size,
        local_reduction=together,
    )
    if allocation.rank >= workers:
        return replace(settings, role="server", server_id=allocation.rank - workers)
    return replace(settings, role="worker", worker_id=allocation.rank // each if together else allocation.rank)


def launch_allocated(settings: Settings, allocation: Allocation, servers: int, command: Sequence[str]) -> int:
    """Run this process's role, on rank 0 with the scheduler; the exit code."""
    settings = place(settings, allocation, servers)
    own = settings.to_environment() | torch_environment(settings)
    if allocation.rank or not settings.distributed:
        os.environ.update(own)
        return launch_role(settings, command)
    job = Job()
    previous = {number: signal.signal(number, _interrupted) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        scheduler = replace(settings, role="scheduler", worker_id=-1).to_environment()
        job.start("scheduler", [sys.executable, "-m", "byteps.role"], scheduler)
        job.start("worker 0", command, own)
        return job.run(awaited=("worker", "scheduler"))
    except OSError as error:
        print(f"byteps launch: cannot start {error.filename!r}: {error.strerror}", file=sys.stderr)
        return 127
    except KeyboardInterrupt:
        print("byteps launch: interrupted; ending worker 0 and the scheduler", file=sys.stderr, flush=True)
        return 130
    finally:
        job.close()
        for number, handler in previous.items():
            signal.signal(number, handler)


def _interrupted(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
