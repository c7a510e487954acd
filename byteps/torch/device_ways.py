"""How the GPUs of this machine sum: as told, as planned for the machine as it is described, or by NCCL alone."""

from byteps.assign import paper_shares
from byteps.device_plan import Group, Way, first_gpus, scattered, ways_of
from byteps.planner import choose
from byteps.settings import Settings, SettingsError
from byteps.topology import load_topology


def chosen_ways(settings: Settings) -> tuple[tuple[Way, ...], str]:
    """What becomes of every gradient, the same on all workers of a machine, and a sentence that says it."""
    ranks = settings.local_size
    everyone = tuple(range(ranks))
    if settings.reduce_roots:
        roots = tuple(map(int, settings.reduce_roots.split(",")))
        given = Way(name="reduce-broadcast", share=1.0, groups=(Group(ranks=everyone, roots=roots),))
        return (given,), f"{ranks} GPUs sum at local ranks {settings.reduce_roots} (BYTEPS_REDUCE_ROOTS)"
    if size := settings.pcie_switch_size:
        groups = tuple(Group(ranks=g, roots=g) for g in (everyone[i : i + size] for i in range(0, ranks, size)))
        by_switch = Way(name="cpu-assisted", share=1.0, groups=groups)
        return (by_switch,), f"{ranks} GPUs sum by {size}, and CPUs their sums (BYTEPS_PCIE_SWITCH_SIZE)"
    if not settings.machine:
        return scattered(ranks), (
            f"{ranks} GPUs sum by NCCL alone, since it is not known what is between them; BYTEPS_MACHINE names a "
            "description, such as `byteps topo --toml` writes"
        )
    try:
        topology = first_gpus(load_topology(settings.machine), ranks)
        load = _network_load(settings.num_workers, settings.num_servers)
        plan = choose(topology, load, load).best.plan
        ways = ways_of(topology, plan.name, plan.roots)
    except (OSError, ValueError) as error:
        raise SettingsError(f"BYTEPS_MACHINE={settings.machine!r}: {error}") from None
    return ways, f"{ranks} GPUs sum by {plan.name}, planned for {topology.name}: {plan.reason}"


def _network_load(machines: int, servers: int) -> float:
    """What a machine sends, and receives, per byte of a gradient."""
    if machines < 2:
        return 0.0
    return 1.0 + (machines - 2) * paper_shares(machines, min(servers, machines)).gpu[0]
