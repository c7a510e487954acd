"""The backend "byteps" of torch.distributed: DDP, FSDP and scripts of their own run over BytePS unchanged.

    import byteps.torch
    torch.distributed.init_process_group("byteps")

in a program that `byteps launch` started, or any process of a job, whose ranks those of torch.distributed are.  Where
nobody has said where torch's own store is (MASTER_ADDR), rank 0 opens it on a free port and tells the others through
the job; also for process groups of other backends.  `init_method="byteps://"` does so in any case.
"""

import socket
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from typing import Any, Final

import numpy as np
import torch.distributed as dist
from torch._C._distributed_c10d import Store, TCPStore
from torch.distributed.rendezvous import _rendezvous_handlers, register_rendezvous_handler

from byteps import api
from byteps.errors import BytePSError
from byteps.interfaces import own_address
from byteps.launcher import in_job, settings_from_environment, torch_has_master
from byteps.session import Session, current, init, is_initialized
from byteps.torch.group import Group

_ADDRESS_NBYTES: Final = 256
_TIMEOUT: Final = timedelta(minutes=5)
Meeting = Iterator[tuple[Store, int, int]]


def register() -> None:
    """Make the backend and the rendezvous known to torch."""
    dist.Backend.register_backend("byteps", _create, extended_api=True, devices=["cpu", "cuda"])
    register_rendezvous_handler("byteps", _meet)  # type: ignore[no-untyped-call]
    by_variables = _rendezvous_handlers["env"]

    def meet(url: str, timeout: timedelta = _TIMEOUT, **options: Any) -> Meeting:
        job = not torch_has_master() and (is_initialized() or in_job())
        return _meet(url, timeout) if job else by_variables(url, timeout=timeout, **options)

    _rendezvous_handlers["env"] = meet


def _create(options: Any, _: Any) -> Group:
    """A process group of these ranks, for torch.distributed."""
    ranks = list(options.global_ranks_in_group)
    if not ranks:
        session = _join(options.group_rank, options.group_size)
        name = "world"
    else:
        session = _join(dist.get_rank(), dist.get_world_size())
        name = f"group {options.group_id} of rank {', '.join(map(str, ranks))}"
    # Groups that are made anew have new tensors: ranks call their creation in the same order.
    count = session.plugins.setdefault("process groups", Counter())
    count[name] += 1
    name = name if count[name] == 1 else f"{name} ({count[name]})"
    return Group(session, name, ranks or range(options.group_size), options.group_rank, options.timeout)


def _join(rank: int, size: int) -> Session:
    """The job's session, in which this process has the same rank as in torch.distributed."""
    settings = current().settings if is_initialized() else settings_from_environment()
    if settings.size != size:
        raise BytePSError(
            f"torch.distributed has {size} ranks, the BytePS job {settings.size} workers (DMLC_NUM_WORKER); "
            f"start the program with 'byteps launch --workers {size}', or tell every rank DMLC_NUM_WORKER={size} and "
            "where the scheduler is (DMLC_PS_ROOT_URI, DMLC_PS_ROOT_PORT)"
        )
    if not is_initialized():
        init(settings if settings.worker_id >= 0 else replace(settings, worker_id=rank))
    if current().rank != rank:
        raise BytePSError(
            f"this process is rank {rank} of torch.distributed and rank {current().rank} of the BytePS job; "
            f"set DMLC_WORKER_ID to RANK, or leave it out and call init_process_group before byteps.torch.init()"
        )
    return current()


def _meet(url: str, timeout: timedelta = _TIMEOUT, **_: Any) -> Meeting:
    """Rank 0 opens torch's store where the others reach it, and tells them through the job."""
    said = dict(pair.split("=") for pair in url.partition("?")[2].split("&") if pair)
    if "rank" in said and "world_size" in said:
        session = _join(int(said["rank"]), int(said["world_size"]))
    else:
        init()
        session = current()
    rank, size = session.rank, session.settings.size
    address = np.zeros(_ADDRESS_NBYTES, np.uint8)
    if rank == 0:
        host = own_address(session.settings, session.worker.local_host) if session.worker else "127.0.0.1"
        listener = socket.create_server((host, 0), family=socket.AF_INET6 if ":" in host else socket.AF_INET)
        port = listener.getsockname()[1]
        store = TCPStore(host, port, size, True, timeout, wait_for_workers=False, master_listen_fd=listener.detach())
        text = f"{host} {port}".encode()
        address[: len(text)] = np.frombuffer(text, np.uint8)
    host, port = api.broadcast(address, 0, "torch.distributed/store").tobytes().rstrip(b"\0").decode().split()
    if rank != 0:
        store = TCPStore(host, int(port), size, False, timeout)
    yield store, rank, size
