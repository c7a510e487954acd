"""The emulated network of a case, as far as its settings say: wiring, congestion control, and queues of the switch.

    network      "star", "bcube:3x2" or "fat-tree:4" (`baselines.wiring`), or "inside": the links of machines
                 (`experiments.inside`)
    congestion   "cubic" if left out; any that the kernel has: the routes' own, so that contenders have no say in it
    queue        what a port of the switch holds before it drops, such as "256KiB"; left out: by its rate

They are properties of a network and not of a contender, which gets nothing but the network.
"""

import dataclasses
import socket

from baselines.wiring import fat_tree_ports
from byteps.units import parse_nbytes
from experiments.record import Case
from scripts.fat_tree_lab import why_no_fat_tree
from scripts.lab import CONGESTION_CONTROL, LabSpec


def network_of(case: Case) -> tuple[str, ...]:
    """What cases must have in common to run on one network."""
    return wiring_of(case), congestion_control_of(case), case.settings.get("queue", "")


def wiring_of(case: Case) -> str:
    return case.settings.get("network", "star")


def congestion_control_of(case: Case) -> str:
    return case.settings.get("congestion", CONGESTION_CONTROL)


def applied(spec: LabSpec, case: Case) -> LabSpec:
    """The lab with what the case asks for."""
    queue = case.settings.get("queue", "")
    return dataclasses.replace(
        spec,
        congestion_control=congestion_control_of(case),
        queue_bytes=parse_nbytes(queue) if queue else spec.queue_bytes,
    )


def one_after_the_other(cases: list[Case]) -> list[Case]:
    """As few networks after each other as blocks allow; from block to block another one is first."""
    seen = list(dict.fromkeys(map(network_of, cases)))
    return sorted(
        cases,
        key=lambda case: (case.nic_bytes_per_s, case.block, (seen.index(network_of(case)) - case.block) % len(seen)),
    )


def impossible(cases: list[Case]) -> dict[str, list[Case]]:
    """By reason: the cases whose network this machine cannot emulate."""
    reasons = {control: why_no_congestion_control(control) for control in {congestion_control_of(one) for one in cases}}
    no_fat_tree = why_no_fat_tree()
    found: dict[str, list[Case]] = {}
    for case in cases:
        if reason := reasons[congestion_control_of(case)] or (no_fat_tree if fat_tree_ports(wiring_of(case)) else ""):
            found.setdefault(reason, []).append(case)
    return found


def why_no_congestion_control(name: str) -> str:
    """Why this kernel cannot use it, and what to do; "" if it can.  A kernel may load a module to answer."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as sock:
        try:
            sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_CONGESTION, name.encode())
        except PermissionError:
            return ""  # it is there; routes are made by root
        except OSError:
            return f"this kernel has no congestion control {name}; as root: modprobe tcp_{name}"
    return ""
