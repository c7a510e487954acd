"""The paper's own numbers, transcribed and cited; nothing here was measured by this project."""

from datetime import date, timedelta
from pathlib import Path
from typing import TypeVar

import msgspec

FOLDER = Path(__file__).resolve().parent
TITLES = {
    "resnet50": "ResNet-50",
    "vgg16": "VGG-16",
    "ugatit": "UGATIT",
    "transformer_big": "Transformer (big)",
    "bert_large": "BERT-large",
    "gpt2": "GPT-2",
}


class _Figure(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    citation: str


class Figure3(_Figure, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A cluster day by day, in percent."""

    first_day: date
    distributed: list[float]
    cpu_utilisation: list[float]

    @property
    def days(self) -> list[date]:
        return [self.first_day + timedelta(days=index) for index in range(len(self.distributed))]

    @property
    def idle_nics(self) -> list[float]:
        """GPU machines whose NIC no job uses: those that run no distributed job."""
        return [100.0 - share for share in self.distributed]


class Figure4(_Figure, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Images per second of VGG-16 against k."""

    n: int
    k: list[int]
    linear: float
    byteps: list[float]
    allreduce: list[float]
    allreduce_bytescheduler: list[float]
    ps: list[float]
    ps_bytescheduler: list[float]


class Figure9a(_Figure, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Training speed of VGG-16 with the optimiser on the CPU, relative to that without."""

    cores: int
    nic_gbps: float
    cpu: dict[str, float]
    mkl: dict[str, float]


class Figure9b(_Figure, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Throughput of the adder in Gbit/s."""

    cores: int
    nic_gbps: float
    fp16: float
    fp32: float


class Figure12(_Figure, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Goodput in Gbit/s against k."""

    n: int
    nic_goodput_gbps: float
    k: list[int]
    optimal: list[float]
    byteps: list[float]
    allreduce: list[float]
    ps: list[float]


class Figure13(_Figure, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speed of training over all-reduce's, against k: by kind of machine (as `byteps.machine` names it) and model."""

    n: int
    gpus_per_machine: int
    k: list[int]
    speedup: dict[str, dict[str, list[float]]]


class Figure14(_Figure, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Speed of training over all-reduce's at k = 0: by kind of machine, model, and way to sum inside a machine."""

    n: int
    gpus_per_machine: int
    speedup: dict[str, dict[str, dict[str, float]]]


class Training(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A model of Figures 15 and 16: units per second for each number of GPUs."""

    unit: str
    framework: str
    linear: list[float]
    allreduce: list[float]
    byteps_k0: list[float]
    byteps_kn: list[float]
    ps: list[float] = []  # empty: the paper has no parameter server for this framework


class Figures15And16(_Figure, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Training throughput against the number of machines."""

    gpus_per_machine: int
    gpus: list[int]
    model: dict[str, Training]

    @property
    def machines(self) -> list[int]:
        return [gpus // self.gpus_per_machine for gpus in self.gpus]


_T = TypeVar("_T", bound=_Figure)


def _read(name: str, kind: type[_T]) -> _T:
    return msgspec.toml.decode((FOLDER / f"{name}.toml").read_bytes(), type=kind)


def fig3() -> Figure3:
    return _read("fig3", Figure3)


def fig4() -> Figure4:
    return _read("fig4", Figure4)


def fig9a() -> Figure9a:
    return _read("fig9a", Figure9a)


def fig9b() -> Figure9b:
    return _read("fig9b", Figure9b)


def fig12() -> Figure12:
    return _read("fig12", Figure12)


def fig13() -> Figure13:
    return _read("fig13", Figure13)


def fig14() -> Figure14:
    return _read("fig14", Figure14)


def fig15_16() -> Figures15And16:
    return _read("fig15_16", Figures15And16)
