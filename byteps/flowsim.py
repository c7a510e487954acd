"""How long a set of flows takes on a set of links: the moments at which something changes, and fluid flow in between.

A flow moves its bytes through all its links at once, at the rate that weighted max-min sharing gives it:  rate_f =
weight_f * level_f, where link l carries  sum_f loads_f[l] * rate_f <= capacity_l  and a flow's level is that of the
first of its links to fill up as all levels rise together (progressive filling).  A link whose level is the lowest on
the way of each of its flows is full, whatever happens elsewhere: levels elsewhere only rise as flows are settled.  So
all such links are settled in one sweep, and a few sweeps do, where one link at a time would need one for each.

Before a flow moves it waits: for the flows in `after`, for `release_seconds`, for its turn in its queue, and then
`startup_seconds`.  What happens at one moment happens as one: all ends, then all that they allow, so no result depends
on how flows and links are numbered or named, but for the tie-break that queues state.
Pure: no I/O, no clock, no randomness.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import islice
from typing import Final

import numpy as np
from numpy.typing import NDArray

_Floats = NDArray[np.float64]
_Indices = NDArray[np.intp]

_ROUNDING: Final = 1e-9  # relative: moments and amounts that differ by less are the same
_SAME_LEVEL: Final = 1e-12  # relative: such links are settled in one sweep; on others rounding leaves some room
_LEAST: Final = 1e-100  # of rates and weights; below, quotients leave the range of floats
_NAMED_IN_ERRORS: Final = 4


@dataclass(frozen=True, kw_only=True, slots=True)
class Flow:
    """So many bytes from one end of a route to the other, when their turn has come."""

    loads: Mapping[str, float]  # bytes on each link per byte of the flow: 1.0 on a plain route; none: moves at once
    nbytes: float
    weight: float = 1.0  # of its share of a link that is full
    startup_seconds: float = 0.0  # once its turn has come, before its bytes move; it keeps its turn meanwhile
    release_seconds: float = 0.0  # not before this moment
    after: tuple[int, ...] = ()  # indices of flows that must have ended
    queue: str = ""  # where it waits for its turn; "": nowhere
    order: float = 0.0  # in the queue, of those that could start: the smallest first, then the smallest index
    until: int | None = None  # the flow at whose end its credit comes back; None: its own end


@dataclass(frozen=True, kw_only=True, eq=False)
class Outcome:
    """When what happened."""

    start: _Floats  # by flow: its turn came; its start-up follows, then its bytes
    end: _Floats  # by flow
    carried: dict[str, float]  # bytes by link
    bottleneck: str  # the link with the most to carry for its capacity; "" where no link carries anything

    @property
    def seconds(self) -> float:
        return float(self.end.max(initial=0.0))


def simulate(flows: Sequence[Flow], links: Mapping[str, float], credits: Mapping[str, float] | None = None) -> Outcome:
    """What becomes of the flows on `links` (bytes/s of one direction, by name).

    A queue starts its next flow while nothing is in flight or less than its credit is: bytes of flows that have started
    and whose `until` has not ended.  A queue without an entry in `credits` has none: one flow after the other.
    """
    credits = credits or {}
    _check(flows, links, credits)
    fluid, turns = _Fluid(flows, links), _Turns(flows, credits)
    start, end = np.zeros(len(flows)), np.zeros(len(flows))
    timers = [(flow.release_seconds, index) for index, flow in enumerate(flows)]  # a heap of releases and start-ups
    heapq.heapify(timers)
    now, ended = 0.0, list[int]()
    while True:
        ready: list[int] = []  # to move
        same_until = now * (1 + _ROUNDING)
        while timers and timers[0][0] <= same_until:
            due, index = heapq.heappop(timers)
            now = max(now, due)  # nothing begins before its release, not even by a rounding
            if turns.started[index]:
                ready.append(index)
            else:
                turns.allow(index)
        while True:  # all that follows at this moment
            ended += [index for index in ready if fluid.instant[index]]
            fluid.add([index for index in ready if not fluid.instant[index]])
            end[ended] = now
            turns.end(ended)
            ended = []
            begun = turns.begin()
            if not begun:
                break
            start[begun] = now
            ready = [index for index in begun if not flows[index].startup_seconds]
            for index in begun:
                if flows[index].startup_seconds:
                    heapq.heappush(timers, (now + flows[index].startup_seconds, index))
        moment = min(fluid.next_end(now), timers[0][0] if timers else np.inf)
        if moment == np.inf:
            break
        ended = fluid.advance(moment - now, tolerance=moment * _ROUNDING)
        now = moment
    turns.check_all_started()
    carried = fluid.carried()
    load = {name: nbytes / links[name] for name, nbytes in carried.items() if nbytes}
    return Outcome(start=start, end=end, carried=carried, bottleneck=max(load, key=lambda name: load[name], default=""))


class _Fluid:
    """The flows that move, and how fast.  Arrays of all flows have one column each; short routes are padded with a
    link without a name that nothing fills."""

    def __init__(self, flows: Sequence[Flow], links: Mapping[str, float]) -> None:
        self._names = list(links)
        number = {name: index for index, name in enumerate(self._names)}
        self._capacity = np.array([*links.values(), np.inf])
        depth = max((len(flow.loads) for flow in flows), default=0)
        self._route = np.full((max(depth, 1), len(flows)), len(self._names), dtype=np.intp)
        self._loads = np.zeros(self._route.shape)
        for column, flow in enumerate(flows):
            for row, (name, load) in enumerate(flow.loads.items()):
                self._route[row, column] = number[name]
                self._loads[row, column] = load
        self._weight = np.array([flow.weight for flow in flows])
        self._nbytes = np.array([flow.nbytes for flow in flows], dtype=np.float64)
        # What a flow takes of each link per unit of level; links without a limit, and pads, count for nothing.
        limited = (self._loads > 0) & np.isfinite(self._capacity[self._route])
        self._claim = np.where(limited, self._loads * self._weight, 0.0)
        self._route_limited = np.where(limited, self._route, len(self._names))
        self.instant: list[bool] = ((self._nbytes == 0) | ~limited.any(axis=0)).tolist()
        self._moving, self._left, self._rate = np.empty(0, dtype=np.intp), np.empty(0), np.empty(0)
        self._changed = False  # whether rates are out of date

    def add(self, indices: list[int]) -> None:
        if indices:
            self._moving = np.append(self._moving, np.array(indices, dtype=np.intp))
            self._left = np.append(self._left, self._nbytes[indices])
            self._changed = True

    def next_end(self, now: float) -> float:
        """The moment of the next end if nothing else happens before; infinite if nothing moves."""
        if not self._moving.size:
            return np.inf
        if self._changed:
            level = _levels(self._route_limited[:, self._moving], self._claim[:, self._moving], self._capacity)
            self._rate = level * self._weight[self._moving]
            self._changed = False
        return now + float((self._left / self._rate).min())

    def advance(self, seconds: float, tolerance: float) -> list[int]:
        """Let time pass; the flows that end with it, or within the tolerance.

        Those that `next_end` named are always among them, even where the time left to them rounds to nothing."""
        done = self._left / self._rate <= seconds + tolerance
        self._left -= self._rate * seconds
        ended: list[int] = self._moving[done].tolist()
        if ended:
            self._moving, self._left, self._rate = self._moving[~done], self._left[~done], self._rate[~done]
            self._changed = True
        return ended

    def carried(self) -> dict[str, float]:
        nbytes = np.bincount(self._route.ravel(), (self._loads * self._nbytes).ravel(), minlength=len(self._capacity))
        return dict(zip(self._names, nbytes.tolist(), strict=False))  # without the pad, the last


def _levels(route: _Indices, claim: _Floats, capacity: _Floats) -> _Floats:
    """The level of each flow; column f of `route` has its links and of `claim` what it takes of each per level."""
    result = np.empty(route.shape[1])
    unsettled = np.arange(route.shape[1])
    room = capacity.copy()
    while True:
        claimed = np.bincount(route.ravel(), claim.ravel(), minlength=len(room))
        level = np.full(len(room), np.inf)
        np.divide(room, claimed, out=level, where=claimed > 0)
        levels = level[route]
        lowest = levels.min(axis=0)
        lower_elsewhere = np.zeros(len(room), dtype=bool)
        lower_elsewhere[route[levels > lowest * (1 + _SAME_LEVEL)]] = True
        settled = ~lower_elsewhere[route].all(axis=0)
        if settled.all():
            result[unsettled] = lowest
            return result
        result[unsettled[settled]] = lowest[settled]
        used = claim[:, settled] * lowest[settled]
        room -= np.bincount(route[:, settled].ravel(), used.ravel(), minlength=len(room))
        rest = ~settled
        route, claim, unsettled = route[:, rest], claim[:, rest], unsettled[rest]


@dataclass(eq=False, slots=True)
class _Queue:
    credit: float
    waiting: list[tuple[float, int]] = field(default_factory=list)  # a heap of (order, flow)
    in_flight: set[int] = field(default_factory=set)
    in_flight_bytes: float = 0.0

    @property
    def open(self) -> bool:
        return not self.in_flight or self.in_flight_bytes < self.credit * (1 - _ROUNDING)


class _Turns:
    """Which flows may start: dependencies and queues.  Knows neither links nor time."""

    def __init__(self, flows: Sequence[Flow], credits: Mapping[str, float]) -> None:
        self._flows = flows
        self._awaited = [1 + len(flow.after) for flow in flows]  # ends, and the release
        self._dependents: list[list[int]] = [[] for _ in flows]
        self._returns: list[list[int]] = [[] for _ in flows]  # by flow: whose credit comes back when it ends
        self._queues = {flow.queue: _Queue(credits.get(flow.queue, 0.0)) for flow in flows if flow.queue}
        for index, flow in enumerate(flows):
            for earlier in flow.after:
                self._dependents[earlier].append(index)
            if flow.queue:
                self._returns[index if flow.until is None else flow.until].append(index)
        self.started, self._ended = [False] * len(flows), [False] * len(flows)
        self._free: list[int] = []  # flows without a queue that may start now
        self._changed: dict[str, _Queue] = {}  # queues that may be able to start something, in an order

    def allow(self, index: int) -> None:
        """One thing less to wait for."""
        self._awaited[index] -= 1
        if self._awaited[index]:
            return
        flow = self._flows[index]
        if flow.queue:
            queue = self._changed[flow.queue] = self._queues[flow.queue]
            heapq.heappush(queue.waiting, (flow.order, index))
        else:
            self._free.append(index)

    def end(self, indices: Sequence[int]) -> None:
        for index in indices:
            self._ended[index] = True
            for dependent in self._dependents[index]:
                self.allow(dependent)
            for holder in self._returns[index]:
                flow = self._flows[holder]
                queue = self._queues[flow.queue]
                if holder in queue.in_flight:
                    queue.in_flight.remove(holder)
                    queue.in_flight_bytes -= flow.nbytes
                    self._changed[flow.queue] = queue

    def begin(self) -> list[int]:
        """The flows that start now.  Queues choose once nothing else can start that might offer them something."""
        begun, self._free = self._free, []
        if not begun:
            for queue in self._changed.values():
                while queue.waiting and queue.open:
                    _, index = heapq.heappop(queue.waiting)
                    begun.append(index)
                    flow = self._flows[index]
                    if flow.until is None or not self._ended[flow.until]:
                        queue.in_flight.add(index)
                        queue.in_flight_bytes += flow.nbytes
            self._changed = {}
        for index in begun:
            self.started[index] = True
        return begun

    def check_all_started(self) -> None:
        stuck = [index for index, started in enumerate(self.started) if not started]
        if stuck:
            named = "; ".join(self._reason(index) for index in stuck[:_NAMED_IN_ERRORS])
            more = "; ..." if len(stuck) > _NAMED_IN_ERRORS else ""
            raise ValueError(f"{len(stuck)} of {len(self._flows)} flows can never start: {named}{more}")

    def _reason(self, index: int) -> str:
        flow = self._flows[index]
        if self._awaited[index]:
            missing = [str(earlier) for earlier in flow.after if not self._ended[earlier]]
            return f"flow {index} waits for the end of flow {', '.join(missing[:_NAMED_IN_ERRORS])}"
        holder = min(self._queues[flow.queue].in_flight)
        until = self._flows[holder].until
        return f"flow {index} waits in queue {flow.queue!r} for the credit of flow {holder}, until flow {until} ends"


def _check(flows: Sequence[Flow], links: Mapping[str, float], credits: Mapping[str, float]) -> None:
    """ValueError for what cannot be simulated."""
    for queue, credit in credits.items():
        if not credit >= 0:
            raise ValueError(f"credit of queue {queue!r} is {credit}; use a number of 0 or more")
    for index, flow in enumerate(flows):
        for what in ("nbytes", "startup_seconds", "release_seconds"):
            if not 0 <= getattr(flow, what) < np.inf:
                raise ValueError(f"{what} of flow {index} is {getattr(flow, what)}; use a number of 0 or more")
        if not _LEAST < flow.weight < np.inf:
            raise ValueError(f"weight of flow {index} is {flow.weight}; use a number above {_LEAST:g}")
        for name, load in flow.loads.items():
            if name not in links:
                known = ", ".join(islice(links, _NAMED_IN_ERRORS))
                raise ValueError(f"flow {index} loads link {name!r}; the {len(links)} links are {known}, ...")
            if not 0 <= load < np.inf:
                raise ValueError(f"load of flow {index} on link {name!r} is {load}; use a number of 0 or more")
            if load and not links[name] > _LEAST:
                rate = f"{links[name]} bytes/s; use more than {_LEAST:g}"
                raise ValueError(f"link {name!r}, which flow {index} needs, has {rate}")
        for other in (*flow.after, *(() if flow.until is None else (flow.until,))):
            if not 0 <= other < len(flows):
                raise ValueError(f"flow {index} waits for flow {other}; there are flows 0 to {len(flows) - 1}")
