"""The same rate for every NIC: a token bucket by tc on what a host sends, put on for all contenders alike and removed.

Only what leaves is shaped, since a qdisc can only queue there; with every host capped, what arrives from one sender is
capped, too, and many to one may still arrive at the NIC's own rate.  A NIC that has a token bucket already (one of the
emulated cluster) gets that one back.  Any other discipline that somebody set on purpose is left alone, with an error.
"""

import json
import os
import shutil
import subprocess
from collections.abc import Sequence

from scripts.lab import shaping

_TOOL_SECONDS = 20.0
_BURST_BYTES = 128 * 1024  # a whole GSO packet and more: see `scripts.lab`


class CapError(RuntimeError):
    """A NIC cannot be capped; the text says what to do."""


def cap(device: str, bytes_per_s: float) -> list[str]:
    """Caps what the NIC sends; returns the arguments of tc that undo it."""
    undo = _undo(device)
    bucket = shaping(bytes_per_s)
    burst = max(bucket.burst_bytes, _BURST_BYTES)
    rate = f"{round(bytes_per_s * 8)}bit"
    limits = f"rate {rate} burst {burst} limit {bucket.limit_bytes}"
    tc(["qdisc", "replace", "dev", device, "root", "tbf", *limits.split()])
    return undo


def _undo(device: str) -> list[str]:
    root = next(
        (seen for seen in json.loads(_run(["tc", "-j", "qdisc", "show", "dev", device])) if seen.get("root")), None
    )
    if root is None or root["handle"] == "0:":  # the kernel's own choice, which comes back by itself
        return ["qdisc", "del", "dev", device, "root"]
    if root["kind"] == "tbf" and set(root["options"]) == {"rate", "burst", "lat"}:
        before = root["options"]
        burst = before["burst"] + round(before["rate"] * 1e-6)  # the kernel keeps whole microseconds, rounded down
        bucket = f"rate {before['rate'] * 8}bit burst {burst} latency {before['lat']}us"
        return ["qdisc", "replace", "dev", device, "root", "tbf", *bucket.split()]
    raise CapError(
        f"{device} has a queue discipline of its own, {root['kind']} {root['handle']}, which a cap would destroy; "
        f"remove it (tc qdisc del dev {device} root) or take `cap` out of [network]"
    )


def tc(arguments: Sequence[str]) -> None:
    """As root, or by sudo without a password; CapError says what is missing."""
    _run([*([] if os.geteuid() == 0 else ["sudo", "-n"]), "tc", *arguments])


def _run(argv: list[str]) -> str:
    if missing := [tool for tool in argv[:1] if shutil.which(tool) is None]:
        raise CapError(f"capping a NIC needs {missing[0]}, which is not here: install iproute2, and sudo for users")
    done = subprocess.run(argv, capture_output=True, text=True, timeout=_TOOL_SECONDS, check=False)
    if done.returncode != 0:
        raise CapError(
            f"{' '.join(argv)} failed: {done.stderr.strip()}; a cap needs the right to change NICs (CAP_NET_ADMIN): "
            "connect as root, or allow `sudo -n tc`, or take `cap` out of [network]"
        )
    return done.stdout
