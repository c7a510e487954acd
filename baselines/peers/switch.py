"""In-network aggregation as a contender (DAIET, SwitchML): workers send integers to a switch, which sends back sums.

The switch is `baselines.switch`, a process in the switch itself, so it is emulated only, and fast enough for NICs of 25
to 50 Mbit/s.  Settings: `block` (bytes of integers in a datagram, 4 per element; IP cuts what is longer than a frame),
`pool` (slots; "auto": 20 ms of the NIC's rate, as far as the switch's socket holds one pool of every worker), `timeout`
("auto": twice the time of a pool of datagrams, and 20 ms),
`loss` (the probability that a datagram that arrives, at the switch or at a worker, is taken for lost) and its `seed`.
"""

import json
import sys

from baselines.launch import DRIVER, SWITCH, Contender, Launch, Process, driver_argv
from byteps.units import parse_nbytes, parse_seconds
from byteps.version import VERSION

BLOCK = "8KiB"
POOL_SECONDS = 0.02
LEAST_POOL, MOST_POOL = 8, 64  # the most is half of what a port's queue of 1 MiB holds
MOST_AT_SWITCH = 256  # datagrams of all workers; with the kernel's overhead, 4 MiB (32 of 16 workers: 5 % were lost)
MOST_BLOCK_NBYTES = 60_000  # a datagram has at most 65,507 bytes
_TIMEOUT_SECONDS = 0.02


def knobs(launch: Launch) -> dict[str, str]:
    """The settings, checked, as plain numbers: `block` in elements, `timeout` in seconds."""
    settings = launch.settings
    nbytes = parse_nbytes(settings.get("block", BLOCK))
    if not 4 <= nbytes <= MOST_BLOCK_NBYTES or nbytes % 4:
        raise ValueError(f"switch-sum: block = {nbytes} bytes; multiples of 4 up to {MOST_BLOCK_NBYTES} are allowed")
    auto = round(launch.nic_bytes_per_s * POOL_SECONDS / nbytes)
    chosen = settings.get("pool", "auto")
    most = min(MOST_POOL, MOST_AT_SWITCH // len(launch.gpu_machines))
    pool = max(min(auto, most), LEAST_POOL) if chosen == "auto" else int(chosen)
    loss = float(settings.get("loss", "0"))
    if pool < 1 or not 0 <= loss < 1:
        raise ValueError(f"switch-sum: pool = {pool}, loss = {loss}; a pool has at least 1 slot, loss is in 0 to 1")
    rate = launch.nic_bytes_per_s
    late = _TIMEOUT_SECONDS + (2 * pool * nbytes / rate if rate else _TIMEOUT_SECONDS)
    given = settings.get("timeout", "auto")
    return {
        **settings,
        "block": str(nbytes // 4),
        "pool": str(pool),
        "timeout": f"{late if given == 'auto' else parse_seconds(given):.4g}",
        "loss": f"{loss:g}",
        "seed": settings.get("seed", "0"),
    }


def plan(launch: Launch) -> list[Process]:
    """A driver on every GPU machine and, for more than one, the switch."""
    n = len(launch.gpu_machines)
    told = {
        **knobs(launch),
        "n": str(n),
        "switch": launch.switch_address,
        "port": str(launch.port),
        "secret": launch.secret,
    }
    argv = (sys.executable, "-m", "baselines.switch", "--settings", json.dumps(told, sort_keys=True))
    switch = [Process(host=SWITCH, name="switch", argv=argv, env={"OMP_NUM_THREADS": "1"})] if n > 1 else []
    return [
        *switch,
        *(
            Process(
                host=machine.host,
                name=f"worker {rank}",
                argv=driver_argv("switch_adapter", rank, launch, told),
                env={"OMP_NUM_THREADS": "1"},
                rank=rank,
            )
            for rank, machine in enumerate(launch.gpu_machines)
        ),
    ]


CONTENDERS = (
    Contender(
        name="switch-sum",
        label="A switch that sums",
        colour="#117733",
        marker="h",
        uses_k=False,
        uses_switch=True,
        only_emulated="no host of a cluster is a switch: a process in an emulated one plays it",
        version=lambda: VERSION,
        sources=(
            *DRIVER,
            "baselines/peers/switch.py",
            "baselines/adapters/switch_adapter.py",
            "baselines/switch*.py",
            "byteps/aggregation.py",
            "byteps/handshake.py",
        ),
        plan=plan,
    ),
)
