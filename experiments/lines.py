"""What a line of a figure or a row of a table is called and how it looks: contender, strategy, and knobs.

    colour      the contender, the same everywhere
    line, fill  the strategy: solid and full as the contender is, else see `STRATEGIES`
    size        smaller for what is not the contender at its best: default knobs, or an intervention left out

`knobs` says that the other settings are the result of the tuning ("tuned"); then only those show that tuning never
chooses.  Without it they are part of the name, so that two settings are never taken for one line.
Pure: no I/O.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from baselines.contenders import CONTENDERS
from baselines.launch import Contender
from experiments.record import Case

UNKNOWN_COLOUR = "0.5"
OFFICIAL_PARTITION = "4096000"
PUSH_THEN_PULL = "push, then pull"
WITHOUT_CPU_MACHINES = "k = 0"
AS_MANY_CPU_MACHINES = "k = n"

LineStyle = str | tuple[float, tuple[float, ...]]


@dataclass(frozen=True, kw_only=True)
class Style:
    """How a strategy is drawn and called."""

    suffix: str
    linestyle: LineStyle
    fillstyle: str


STRATEGIES: Mapping[str, Style] = {
    "plain": Style(suffix="", linestyle="-", fillstyle="full"),
    "one-by-one": Style(suffix=", one by one", linestyle=(0, (1, 2.5)), fillstyle="bottom"),
    "fused": Style(suffix=", fused", linestyle="-.", fillstyle="left"),
    "scheduled": Style(suffix=" + ByteScheduler-like", linestyle=(0, (5, 2)), fillstyle="top"),
}

# Settings that are what a contender does anyway (here), and the words for those that deserve some.
_USUAL = {"partition": "auto", "credit": "auto", "wait": "poll", "keys": "16", "call": "pushpull", "strategy": "plain"}
_ALWAYS_NAMED = {
    ("partition", OFFICIAL_PARTITION): "4,096,000-byte partitions",
    ("wait", "spin"): "spinning",
    ("keys", "1"): "one key",
    ("call", "push+pull"): PUSH_THEN_PULL,
}
_NEVER_TUNED = frozenset({"wait", "call"})  # named beside tuned knobs too
# The last two are the CPU adder's axes, the two before them say which machines were simulated.
_NAMED_APART = frozenset({"strategy", "knobs", "machine", "local", "dtype", "cores"})


@dataclass(frozen=True, kw_only=True)
class Line:
    """The looks of one line."""

    contender: str
    strategy: str
    notes: tuple[str, ...]  # what else sets it apart from the contender at its best
    label: str
    colour: str
    marker: str
    linestyle: LineStyle
    fillstyle: str
    uses_k: bool

    @property
    def main(self) -> bool:
        """The contender as it is, at its best: what ratios and claims are about."""
        return self.strategy == "plain" and not self.notes

    def at(self, k_text: str) -> "Line":
        """The same line for one k, where k is no axis: `k_text` becomes part of its name."""
        looks: dict[str, Any] = (
            {"linestyle": (0, (3, 1.5)), "fillstyle": "right"} if k_text == WITHOUT_CPU_MACHINES else {}
        )
        return replace(self, label=f"{self.label}, {k_text}", **looks) if self.uses_k else self


def contender_of(name: str) -> Contender | None:
    """Nothing for one that this version does not know: its records are still shown."""
    return CONTENDERS.get(name)


def label_of(name: str) -> str:
    contender = contender_of(name)
    return contender.label if contender else name


def colour_of(name: str) -> str:
    contender = contender_of(name)
    return contender.colour if contender else UNKNOWN_COLOUR


def notes_of(settings: Mapping[str, str]) -> tuple[str, ...]:
    """What the settings change, in words, strategy apart."""
    knobs = settings.get("knobs", "")
    notes = []
    for key, value in sorted(settings.items()):
        if key in _NAMED_APART or _USUAL.get(key) == value:
            continue
        named = _ALWAYS_NAMED.get((key, value))
        if knobs != "tuned" or key in _NEVER_TUNED:
            notes.append(named or f"{key} {value}")
    return (f"{knobs} knobs", *notes) if knobs not in ("", "tuned") else tuple(notes)


def line_of(name: str, settings: Mapping[str, str]) -> Line:
    """The one place that names a line."""
    contender = contender_of(name)
    strategy = settings.get("strategy", "plain")
    style = STRATEGIES.get(strategy, Style(suffix=f", {strategy}", linestyle=":", fillstyle="full"))
    notes = notes_of(settings)
    return Line(
        contender=name,
        strategy=strategy,
        notes=notes,
        label=label_of(name) + style.suffix + "".join(f", {note}" for note in notes),
        colour=colour_of(name),
        marker=contender.marker if contender else "o",
        linestyle=style.linestyle,
        fillstyle=style.fillstyle,
        uses_k=contender.uses_k if contender else True,
    )


def naming(cases: Iterable[Case]) -> Callable[[Case], Line]:
    """How lines of these cases are named: where a contender ran with tuned knobs too, the others are its defaults."""
    tuned = {_family(case) for case in cases if case.settings.get("knobs") == "tuned"}

    def name(case: Case) -> Line:
        settings = case.settings
        if "knobs" not in settings and _family(case) in tuned:
            settings = {**settings, "knobs": "default"}
        return line_of(case.contender, settings)

    return name


def _family(case: Case) -> tuple[str, str, str]:
    return case.experiment, case.contender, case.settings.get("strategy", "plain")


def order_of(line: Line) -> tuple[int, int, str]:
    """The order in legends and tables: that of the table of contenders, then of the strategies."""
    names, strategies = list(CONTENDERS), list(STRATEGIES)
    return (
        names.index(line.contender) if line.contender in names else len(names),
        strategies.index(line.strategy) if line.strategy in strategies else len(strategies),
        line.label,
    )
