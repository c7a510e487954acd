"""Sizes, rates and durations as people write them: the only place where bits, prefixes and units are known.

Inside the project a size is `nbytes`, a rate `bytes_per_s`, a duration `seconds`.  Prefixes mean what they say: "4MB"
is 4 * 10**6 bytes, "4MiB" is 2**22; "200Mbit" is 200 * 10**6 bits per second, as `tc` reads it: 25 * 10**6 bytes/s.
A rate without a unit is refused, since bits and bytes differ by 8; "4mb" is refused, since it could be either.
Pure: no I/O, no clock, no randomness.
"""

import re
from decimal import Decimal

_NUMBER_AND_UNIT = re.compile(r"\s*([0-9]{1,24}(?:\.[0-9]+)?)\s*([A-Za-z/]*)\s*")  # fits a float
_PREFIXES = {"": 1, "k": 10**3, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12}

_NBYTES = {"": 1}
_NBYTES |= {f"{prefix}B": factor for prefix, factor in _PREFIXES.items()}
_NBYTES |= {f"{prefix}iB": 2 ** (10 * power) for power, prefix in enumerate("KMGT", start=1)}
_BITS_PER_S = {f"{p}{unit}": factor for p, factor in _PREFIXES.items() for unit in ("bit", "bit/s", "bps")}
_SECONDS = {"": Decimal(1), "s": Decimal(1), "ms": Decimal("1e-3"), "us": Decimal("1e-6"), "min": Decimal(60)}
_SECONDS["h"] = Decimal(3600)


def parse_nbytes(text: str | int) -> int:
    """Bytes of "4MB", "64 KiB", "4096000" or 4096000."""
    number, unit = _number_and_unit(text)
    nbytes = number * _NBYTES[unit] if number is not None and unit in _NBYTES else None
    if nbytes is None or nbytes != nbytes.to_integral_value():
        raise ValueError(f"{text!r} is not a size: write whole bytes, such as 4096000, 4MB (4 * 10**6) or 4MiB (2**22)")
    return int(nbytes)


def parse_rate(text: str | int | float) -> float:
    """Bytes per second of "25Gbit", "200Mbit/s" or "1.5Gbps"."""
    number, unit = _number_and_unit(text)
    if not number or unit not in _BITS_PER_S:
        raise ValueError(f"{text!r} is not a rate: write bits per second with the unit, such as 25Gbit or 200Mbit")
    return float(number * _BITS_PER_S[unit] / 8)


def parse_seconds(text: str) -> float:
    """Seconds of "30", "30s", "500ms" or "2min"."""
    number, unit = _number_and_unit(text)
    if number is None or unit not in _SECONDS:
        raise ValueError(f"{text!r} is not a duration: write 0 or more seconds, such as 30, 30s, 500ms or 2min")
    return float(number * _SECONDS[unit])


def format_nbytes(nbytes: int | float) -> str:
    """ "64 MiB" where that is exact, else the nearest tenth of a decimal unit: "4.1 MB"."""
    for power, prefix in ((40, "TiB"), (30, "GiB"), (20, "MiB"), (10, "KiB")):
        if nbytes >= 2**power:
            if nbytes % 2**power == 0:
                return f"{int(nbytes) >> power} {prefix}"
            break
    return _scaled(nbytes, "B")


def format_rate(bytes_per_s: float) -> str:
    """ "200 Mbit/s"."""
    return _scaled(bytes_per_s * 8, "bit/s")


def _number_and_unit(text: str | int | float) -> tuple[Decimal | None, str]:
    match = _NUMBER_AND_UNIT.fullmatch(str(text))
    return (Decimal(match[1]), match[2]) if match else (None, "")


def _scaled(value: float, unit: str) -> str:
    prefixes = ["", "k", "M", "G", "T"]
    while round(value, 1) >= 1000 and len(prefixes) > 1:
        value /= 1000
        prefixes.pop(0)
    return f"{value:.1f}".removesuffix(".0") + f" {prefixes[0]}{unit}"
