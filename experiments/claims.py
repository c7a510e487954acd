"""Claims, stated before the data, and the verdict that follows from it.

A claim names a metric, a threshold with direction and tolerance, and the parts it speaks of (one per k, say).  The
metric yields, for each part, one value per block.  With limit = threshold - tolerance for `at_least` (+ for `at_most`)
a part is

    rule `interval`:  reproduced       the whole interval over blocks lies on the right side of the limit
                      not reproduced   the whole interval lies on the wrong side
                      inconclusive     the limit lies inside it, or there is a single block and so no interval
    rule `every`:     reproduced if each value holds, else not reproduced (counts and checks have no noise)

and the claim is the worst of its parts: one part not reproduced decides; else one inconclusive or missing part does.
A claim about opponents that would be reproduced but was tested without one of those it names is inconclusive.
A claim about a bigger machine (`cores`) that is missed on a smaller one is *not testable here*, as is one that was
never attempted at its size.  One that was attempted and left no verified record is inconclusive.
Pure: no I/O except reading the claims file.
"""

from collections.abc import Iterable, Mapping
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal

import msgspec

from experiments.record import Provenance
from experiments.statistics import Interval, interval_over_blocks

NO_RECORD = "no verified record"
NO_LAUNCH = "no launch of this size"

VerdictWord = Literal["reproduced", "not reproduced", "inconclusive", "not testable here"]


class Claim(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One line of claims.toml; the fields are explained at its top."""

    id: str
    text: str
    metric: str
    direction: Literal["at_least", "at_most"]
    threshold: float
    tolerance: float
    provenance: Provenance
    paper: str = ""  # what the paper has for it
    against: Provenance | Literal[""] = ""  # what it is compared with, if records of that kind
    rule: Literal["interval", "every"]
    parts: list[str]
    experiments: list[str] = []  # empty: any
    contenders: list[str] = []  # those that must have taken part
    cores: int = 0
    n: int = 0  # 0: any
    nbytes: int = 0  # 0: any

    def __post_init__(self) -> None:
        if not self.parts:
            raise ValueError(f"claim {self.id}: parts is empty; name at least one")
        if self.tolerance < 0:
            raise ValueError(f"claim {self.id}: tolerance {self.tolerance} must not be negative")

    def parts_among(self, present: Iterable[str]) -> list[str]:
        """The parts that the claim speaks of; a pattern stands for all that fit, and for itself if none does."""
        found: list[str] = []
        for part in self.parts:
            fits = [name for name in present if fnmatchcase(name, part)] if "*" in part else []
            found += [name for name in fits or [part] if name not in found]
        return found

    @property
    def limit(self) -> float:
        return self.threshold - self.tolerance if self.direction == "at_least" else self.threshold + self.tolerance

    def holds(self, value: float) -> bool:
        return value >= self.limit if self.direction == "at_least" else value <= self.limit


class _ClaimsFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    claim: list[Claim]


class PartVerdict(msgspec.Struct, frozen=True, kw_only=True):
    """A claim's verdict for one part, with the numbers behind it."""

    part: str
    word: VerdictWord
    interval: Interval | None
    reason: str


class Verdict(msgspec.Struct, frozen=True, kw_only=True):
    """A claim's verdict."""

    claim: Claim
    word: VerdictWord
    parts: list[PartVerdict]

    @property
    def reason(self) -> str:
        """Why, in one line: the parts that decided."""
        deciding = [part for part in self.parts if part.word == self.word]
        by_reason: dict[str, list[str]] = {}
        for part in deciding:
            by_reason.setdefault(part.reason, []).append(part.part)
        return "; ".join(f"{', '.join(names)}: {reason}" for reason, names in by_reason.items())


def load_claims(path: Path) -> list[Claim]:
    """All claims of a file; identifiers must be unique."""
    try:
        claims = msgspec.toml.decode(path.read_bytes(), type=_ClaimsFile).claim
    except (msgspec.MsgspecError, ValueError) as error:
        raise ValueError(f"{path}: {error}") from error
    seen: set[str] = set()
    for claim in claims:
        if claim.id in seen:
            raise ValueError(f"{path}: claim id {claim.id!r} appears twice; ids must be unique")
        seen.add(claim.id)
    return claims


def _judge_part(claim: Claim, part: str, values: list[float], why_none: str, seed: int) -> PartVerdict:
    if not values:
        return PartVerdict(part=part, word="inconclusive", interval=None, reason=why_none)
    interval = interval_over_blocks(values, seed=seed)
    word: VerdictWord
    if claim.rule == "every":
        failed = [value for value in values if not claim.holds(value)]
        worst = (min if claim.direction == "at_least" else max)(values)
        word = "not reproduced" if failed else "reproduced"
        reason = f"worst of {len(values)}: {worst:.4g}"
    elif interval.low is None or interval.high is None:
        word = "inconclusive"
        reason = f"{interval.median:.3f} in a single block, no interval"
    else:
        ends = (claim.holds(interval.low), claim.holds(interval.high))
        word = "reproduced" if all(ends) else "inconclusive" if any(ends) else "not reproduced"
        reason = f"{interval}, {interval.blocks} blocks, coverage {interval.coverage:.0%}"
    return PartVerdict(part=part, word=word, interval=interval, reason=reason)


def judge(
    claim: Claim,
    values: Mapping[str, list[float]],
    *,
    cores: int,
    attempted: bool = False,
    absent: Mapping[str, str] | None = None,
    seed: int = 0,
) -> Verdict:
    """The verdict on a claim.

    `values` maps each part to one value per block, `cores` is the machine's number of cores, `attempted` says whether
    any launch of the claim's size was tried, successful or not, `absent` why a contender has no verified launch there.
    """
    reasons = absent or {}
    parts = [
        _judge_part(claim, part, list(values.get(part, [])), reasons.get(part, NO_RECORD), seed)
        for part in claim.parts_among(values)
    ]
    parts += [
        PartVerdict(part=f"without {name}", word="inconclusive", interval=None, reason=reasons[name])
        for name in claim.contenders
        if name in reasons
    ]
    words = [part.word for part in parts]
    word: VerdictWord
    if not attempted and not any(values.get(part.part) for part in parts):
        word = "not testable here"
        named = len(parts) - sum(name in reasons for name in claim.contenders)
        parts = [
            msgspec.structs.replace(part, word=word, reason=NO_LAUNCH if index < named else part.reason)
            for index, part in enumerate(parts)
        ]
    elif "not reproduced" in words:
        word = "not reproduced"
    elif "inconclusive" in words:
        word = "inconclusive"
    else:
        word = "reproduced"
    if claim.cores > cores and any(part.interval and not claim.holds(part.interval.median) for part in parts):
        note = f"; claimed for {claim.cores} cores, this machine has {cores}"
        parts = [
            msgspec.structs.replace(part, word="not testable here", reason=part.reason + note)
            for part in parts
            if part.word != "reproduced"
        ]
        word = "not testable here"
    return Verdict(claim=claim, word=word, parts=parts)
