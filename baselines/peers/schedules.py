"""The schemes of the literature as contenders: schedules (`byteps.schedules`), run by our executor.

Setting `scheme` chooses one (`byteps.schedules.catalogue`): "ring", "mesh", "relayed-mesh", "tree:16", "torus:2x4",
"halving-doubling", "hierarchical:2x4" with `schedule`; "servers", "byteps", "inside:..." with `schedule-servers`, whose
further nodes run on the CPU machines; one that has no part in a schedule does not run.  Setting `network` says how
hosts are wired: "star", or "bcube:3x2", whose hosts relay for each other.
The executor shares the transport with BytePS and nothing else: chunks are whole, no credit, no priorities.
"""

import json
import sys

from baselines.launch import DRIVER, Contender, Launch, Process, driver_argv
from byteps.schedules.catalogue import USE_SERVERS, build
from byteps.version import VERSION


def plan(launch: Launch, *, default: str, with_servers: bool) -> list[Process]:
    """A driver on every GPU machine and, for schemes that have them, a node on every CPU machine."""
    scheme = launch.settings.get("scheme", default)
    n, k = len(launch.gpu_machines), len(launch.cpu_machines) if with_servers else 0
    if (scheme.partition(":")[0] in USE_SERVERS) != with_servers:
        other = "schedule" if with_servers else "schedule-servers"
        raise ValueError(f"scheme {scheme!r} belongs to the contender {other!r}")
    schedule = build(scheme, n, k)
    busy = {node for one in schedule.rounds for node in one.src.tolist() + one.dst.tolist()}
    machines = (*launch.gpu_machines, *launch.cpu_machines)[: schedule.num_nodes]
    told = {
        **launch.settings,
        "scheme": scheme,
        "n": str(n),
        "k": str(k),
        "secret": launch.secret,
        "network": launch.settings.get("network", "star"),
        "addresses": json.dumps(
            [[(address, launch.port + node) for address in machine.addresses] for node, machine in enumerate(machines)]
        ),
    }
    servers = [
        Process(
            host=machine.host,
            name=f"node {node}",
            argv=(sys.executable, "-m", "baselines.executor", "--settings", json.dumps({**told, "node": str(node)})),
            env={},
        )
        for node, machine in enumerate(machines[n:], start=n)
        if node in busy
    ]
    return [
        *servers,
        *(
            Process(
                host=machine.host,
                name=f"worker {rank}",
                argv=driver_argv("schedule_adapter", rank, launch, told),
                env={"OMP_NUM_THREADS": "1"},
                rank=rank,
            )
            for rank, machine in enumerate(launch.gpu_machines)
        ),
    ]


_SOURCES = (
    *DRIVER,
    "baselines/peers/schedules.py",
    "baselines/adapters/schedule_adapter.py",
    "baselines/executor.py",
    "baselines/wiring.py",
    "byteps/network.py",
    "byteps/schedule.py",
    "byteps/schedule_part.py",
    "byteps/schedules/*.py",
    "byteps/strategy.py",
    "byteps/machine*.py",
    "byteps/machines/*.toml",
    "byteps/net.py",
    "byteps/kernels.py",
    "byteps/handshake.py",
)

CONTENDERS = (
    Contender(
        name="schedule",
        label="Our executor",
        colour="#4C72B0",
        marker="X",
        uses_k=False,
        version=lambda: VERSION,
        sources=_SOURCES,
        plan=lambda launch: plan(launch, default="ring", with_servers=False),
    ),
    Contender(
        name="schedule-servers",
        label="Our executor, with servers",
        colour="#8172B3",
        marker="P",
        uses_k=True,
        version=lambda: VERSION,
        sources=_SOURCES,
        plan=lambda launch: plan(launch, default="byteps", with_servers=True),
    ),
)
