"""Does the emulated network carry what its NICs promise?  Asked before and after every block of runs.

All NICs at once and both ways: every host sends to the next one on a ring and receives from the one before it.  A flow
between NICs of different rates gets the lower rate; the ring is ordered by rate, so that as many NICs as possible have
an equal neighbour on both sides.  Expected is the payload TCP leaves of the rate (`LabSpec.expected_bytes_per_s`).

The verdict only admits a run, it never corrects one: below 0.97 the machine is too slow or too busy for the rates
asked for, above 1.005 the shaping does not hold.  A real network (`scripts.fleet`) has wider bounds.
"""

import argparse
import math
import os
import select
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from byteps.units import format_rate, parse_rate
from scripts.lab import LabSpec, overload, star
from scripts.netns import Lab, LabError
from scripts.process import Process

EMULATED = (0.97, 1.005)  # lowest and highest ratio of goodput to expected
MEASURED = (0.5, math.inf)  # of a real network, where a calibration only informs

_RAMP_SECONDS = 0.5
_START_SECONDS = 20.0
_LINKLOAD = Path(__file__).with_name("linkload.py")


@dataclass(frozen=True, kw_only=True)
class Flow:
    """What `src` sent and `dst` received, in payload bytes per second."""

    src: str
    dst: str
    bytes_per_s: float
    expected_bytes_per_s: float

    @property
    def ratio(self) -> float:
        return self.bytes_per_s / self.expected_bytes_per_s


@dataclass(frozen=True, kw_only=True)
class Calibration:
    """One flow per host: its NIC's transmit side is the flow with it as `src`, the receive side the one as `dst`."""

    seconds: float
    flows: tuple[Flow, ...]
    bounds: tuple[float, float] = EMULATED

    @property
    def faithful(self) -> bool:
        lowest, highest = self.bounds
        return all(lowest <= flow.ratio <= highest for flow in self.flows)

    @property
    def worst(self) -> Flow:
        """The flow furthest from what was expected."""
        return max(self.flows, key=lambda flow: abs(flow.ratio - 1))

    def describe(self) -> str:
        low, high = min(flow.ratio for flow in self.flows), max(flow.ratio for flow in self.flows)
        text = f"{len(self.flows)} NICs both ways at once: {low:.3f} to {high:.3f} of the expected goodput"
        if self.faithful:
            return f"{text}, faithful"
        worst, (lowest, highest) = self.worst, self.bounds
        remedy = (
            "stop other load on this machine or use slower NICs" if highest < math.inf else "state the NICs' real rates"
        )
        return (
            f"{text}, not faithful: {worst.src} -> {worst.dst} got {format_rate(worst.bytes_per_s)} of "
            f"{format_rate(worst.expected_bytes_per_s)}, allowed is {lowest} to {highest} of it; {remedy}"
        )


def ring(spec: LabSpec) -> list[tuple[str, str]]:
    """Sender and receiver of each flow, neighbours in order of their rates."""
    return ring_of({host.name: host.nic_bytes_per_s for host in spec.hosts})


def ring_of(nic_bytes_per_s: Mapping[str, float]) -> list[tuple[str, str]]:
    if len(nic_bytes_per_s) < 2:
        raise ValueError("calibration needs at least 2 hosts, since one host has nobody to send to")
    names = sorted(nic_bytes_per_s, key=lambda name: nic_bytes_per_s[name])
    return list(zip(names, [*names[1:], names[0]], strict=True))


def calibrate(lab: Lab, *, seconds: float = 2.0) -> Calibration:
    """Measures all NICs of an otherwise idle lab for `seconds`, after a ramp of half a second."""
    spec = lab.spec
    if spec.nics == 1:
        rates = {host.name: host.nic_bytes_per_s for host in spec.hosts}
        addresses = {name: spec.address(name) for name in spec.names}
        return measure(lab.popen, addresses, rates, ring_of(rates), seconds=seconds, bounds=EMULATED)
    switches: dict[int, dict[str, float]] = {}  # by switch: the rates of its NICs, "HOST NUMBER"
    addresses = {}
    for index, host in enumerate(spec.hosts):
        for nic in range(spec.nics):
            switches.setdefault(spec.switch_of(index, nic), {})[f"{host.name} {nic}"] = host.nic_bytes_per_s
            addresses[f"{host.name} {nic}"] = spec.address(host.name, nic)
    flows = [flow for rates in switches.values() for flow in ring_of(rates)]
    rates = {name: rate for found in switches.values() for name, rate in found.items()}

    def popen(name: str, argv: Sequence[str], **options: Any) -> Process:
        return lab.popen(name.partition(" ")[0], argv, **options)

    return measure(popen, addresses, rates, flows, seconds=seconds, bounds=EMULATED)


def measure(
    popen: Callable[..., Process],
    addresses: Mapping[str, str],
    nic_bytes_per_s: Mapping[str, float],
    flows: Sequence[tuple[str, str]],
    *,
    seconds: float,
    bounds: tuple[float, float],
) -> Calibration:
    """The same by `popen` of a stage, whose hosts need not share a clock; a flow is a sender and a receiver."""
    load = [sys.executable, "-I", "-S", str(_LINKLOAD)]
    pipe = subprocess.PIPE
    peers: dict[str, Process] = {}
    try:
        for name, address in addresses.items():
            peers[name] = popen(name, [*load, address], stdin=pipe, stdout=pipe, stderr=pipe)
        ports = {name: _line(name, peer) for name, peer in peers.items()}
        answers = {}
        for src, dst in flows:
            _tell(peers[src], f"{addresses[dst]} {ports[dst]} {_RAMP_SECONDS} {seconds}\n")
        for name, peer in peers.items():
            output, error = peer.communicate(timeout=seconds + _START_SECONDS)
            if peer.returncode != 0 or not output:
                raise LabError(f"calibration failed on {name}: {error.decode().strip() or peer.returncode}")
            answers[name] = output
    finally:
        for peer in peers.values():
            peer.kill()
            peer.wait(timeout=_START_SECONDS)
            for stream in (peer.stdin, peer.stdout, peer.stderr):
                if stream is not None:
                    stream.close()
    return Calibration(
        seconds=seconds,
        flows=tuple(_flow(nic_bytes_per_s, src, dst, answers[dst]) for src, dst in flows),
        bounds=bounds,
    )


def _flow(nic_bytes_per_s: Mapping[str, float], src: str, dst: str, answer: bytes) -> Flow:
    from byteps.theory import TCP_PAYLOAD_FRACTION  # here, because it brings numpy, and an agent has no need of it

    nbytes, interval = answer.split()
    return Flow(
        src=src,
        dst=dst,
        bytes_per_s=int(nbytes) / float(interval) if float(interval) > 0 else 0.0,
        expected_bytes_per_s=min(nic_bytes_per_s[src], nic_bytes_per_s[dst]) * TCP_PAYLOAD_FRACTION,
    )


def _line(name: str, peer: Process) -> int:
    """The port that the peer prints first."""
    assert peer.stdout is not None
    assert peer.stderr is not None
    ready, _, _ = select.select([peer.stdout], [], [], _START_SECONDS)
    line = peer.stdout.readline() if ready else b""
    if not line:
        peer.kill()
        raise LabError(f"calibration did not start on {name}: {peer.stderr.read().decode().strip() or 'no answer'}")
    return int(line)


def _tell(peer: Process, line: str) -> None:
    assert peer.stdin is not None
    peer.stdin.write(line.encode())
    peer.stdin.flush()


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m scripts.calibrate", description="Can this machine carry a lab?")
    parser.add_argument("--hosts", type=int, default=8, help="number of hosts (default 8)")
    parser.add_argument("--rate", default="200Mbit", help="rate of every NIC (default 200Mbit)")
    options = parser.parse_args(argv)
    try:
        rate = parse_rate(options.rate)
        spec = star({f"host{i}": rate for i in range(options.hosts)})
        if reason := overload(spec, os.cpu_count() or 1):
            raise LabError(reason)
        with Lab(spec) as lab:
            calibration = calibrate(lab)
    except (LabError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    for flow in calibration.flows:
        print(f"{flow.src:>8} -> {flow.dst:<8} {format_rate(flow.bytes_per_s):>12}  {flow.ratio:.3f}")
    print(calibration.describe())
    return 0 if calibration.faithful else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
