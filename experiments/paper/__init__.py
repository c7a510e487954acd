"""The paper's own numbers, transcribed and cited; nothing here was measured by this project."""

from pathlib import Path

import msgspec

FOLDER = Path(__file__).resolve().parent


class Figure12(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Goodput in Gbit/s against k."""

    citation: str
    n: int
    nic_goodput_gbps: float
    k: list[int]
    optimal: list[float]
    byteps: list[float]
    allreduce: list[float]
    ps: list[float]


class Figure9b(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Throughput of the adder in Gbit/s."""

    citation: str
    cores: int
    nic_gbps: float
    fp16: float
    fp32: float


def fig12() -> Figure12:
    return msgspec.toml.decode((FOLDER / "fig12.toml").read_bytes(), type=Figure12)


def fig9b() -> Figure9b:
    return msgspec.toml.decode((FOLDER / "fig9b.toml").read_bytes(), type=Figure9b)
