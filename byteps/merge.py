"""Which gradients to send together: the merge rule of MG-WFBP (Shi, Chu and Li, INFOCOM 2019; TPDS 2021).

An all-reduce of s bytes takes a + b s seconds.  Sending every gradient when it is ready (wait-free back-propagation)
pays a for each of them; sending one of everything hides nothing behind the backward pass.  The rule goes through the
gradients in the order in which they are ready and puts one off to be sent with the next where the next is ready before
this one could have been sent alone with any gain: its transfer would begin later than that, or wait less than a.
Pure: no I/O, no clock, no randomness.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True, kw_only=True)
class AlphaBeta:
    """What an all-reduce costs."""

    startup_seconds: float  # a
    seconds_per_byte: float  # b

    def seconds(self, nbytes: float) -> float:
        return self.startup_seconds + self.seconds_per_byte * nbytes


def fitted(times: Sequence[tuple[float, float]]) -> AlphaBeta:
    """From (bytes, seconds), neither term below 0: least squares of relative errors, so that small tensors count."""
    nbytes, seconds = np.asarray(times, dtype=float).reshape(-1, 2).T
    if len(set(nbytes.tolist())) < 2 or not (seconds > 0).all():
        raise ValueError(f"times of {sorted(set(nbytes.tolist()))} bytes; give at least two sizes, all times above 0")
    terms = np.stack([1 / seconds, nbytes / seconds], axis=1)
    units = np.array([1.0, nbytes.max()])  # of the same magnitude, or the smaller one is taken for nothing
    both = np.linalg.lstsq(terms / units, np.ones(seconds.size), rcond=None)[0] / units
    if (both < 0).any():  # the other one alone
        left = int(both[0] < 0)
        both = np.zeros(2)
        both[left] = terms[:, left].sum() / (terms[:, left] ** 2).sum()
    return AlphaBeta(startup_seconds=float(both[0]), seconds_per_byte=float(both[1]))


@dataclass(frozen=True, kw_only=True)
class Gradient:
    """One tensor of the backward pass."""

    nbytes: float
    ready_seconds: float


def merged(gradients: Sequence[Gradient], cost: AlphaBeta) -> list[list[int]]:
    """Groups of indices, each sent as one when its last is ready; gradients come in the order of readiness."""
    groups: list[list[int]] = []
    open_group: list[int] = []
    free = 0.0  # when the network has sent all groups so far
    for index, gradient in enumerate(gradients):
        if index and gradient.ready_seconds < gradients[index - 1].ready_seconds:
            raise ValueError(f"gradient {index} is ready before gradient {index - 1}; give them in order of readiness")
        open_group.append(index)
        starts = max(free, gradient.ready_seconds)
        nbytes = sum(gradients[member].nbytes for member in open_group)
        following = gradients[index + 1].ready_seconds if index + 1 < len(gradients) else None
        if following is not None and following < starts + cost.startup_seconds:
            continue  # by then it would not have sent a byte, or would save less than the start-up
        free = starts + cost.seconds(nbytes)
        groups.append(open_group)
        open_group = []
    return groups


def exposed_seconds(gradients: Sequence[Gradient], groups: Sequence[Sequence[int]], cost: AlphaBeta) -> float:
    """How long the synchronisation goes on after the backward pass, groups one after the other."""
    free = 0.0
    for group in groups:
        ready = max(gradients[index].ready_seconds for index in group)
        free = max(free, ready) + cost.seconds(sum(gradients[index].nbytes for index in group))
    return free - max((gradient.ready_seconds for gradient in gradients), default=0.0)
