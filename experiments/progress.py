"""What people see while experiments run: a bar with an estimate on a terminal, elsewhere one plain line per launch.

Launches are only told of once the calibration after them has judged them, a minute later perhaps; meanwhile plain
output says what is being done, at most every 10 s.

The estimate is the bound of what is left, scaled by how far the finished launches were from theirs: launches differ in
length by more than two, so an average over launches would mislead.
"""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, SpinnerColumn, TextColumn

from experiments import catalogue
from experiments.record import Case, Record
from experiments.spec import is_model

_QUIET_SECONDS = 10.0


def expected_seconds(case: Case) -> float:
    """A guess of a case's length before any was seen: start-up, computation, and twice a ring at the NIC's rate."""
    if not case.nic_bytes_per_s:
        return 1.0
    model = is_model(case.workload)
    computation = 0.0
    if model:
        tensors = catalogue.of_case(case.workload, case.nbytes, case.scale, case.dilation)
        computation = catalogue.computation_seconds(tensors)
    iterations = case.warmups + case.iterations
    return (2.0 if model else 8.0) + iterations * (2.0 * case.nbytes / case.nic_bytes_per_s + computation)


def outcome_text(record: Record) -> str:
    """How a launch ended, in a few words."""
    if record.error:
        first, *log = record.error.splitlines()
        return f"FAILED: {first}" + (f" ({log[-1].strip()})" if log else "")
    if not record.correct:
        error = record.oracle.max_error if record.oracle else float("nan")
        return f"WRONG SUM: largest error {error:g}"
    if not record.faithful:
        return f"not faithful ({record.fidelity.verdict}): kept, not used"
    return "ok"


class Display:
    """Progress over a list of cases."""

    def __init__(self, cases: list[Case], later_seconds: float, console: Console) -> None:
        self._console = console
        self._total = len(cases)
        self._finished = 0
        self._left = sum(map(expected_seconds, cases)) + later_seconds
        self._spent = self._guessed = 0.0
        self._told = time.monotonic()  # when the last line was printed
        self._bar: Progress | None = None
        if console.is_terminal:
            columns = (SpinnerColumn(), BarColumn(bar_width=24), MofNCompleteColumn(), TextColumn("{task.description}"))
            self._bar = Progress(*columns, console=console, transient=True)
            self._task = self._bar.add_task("", total=self._total)
            self._bar.start()

    def remaining_seconds(self) -> float:
        return self._left * (self._spent / self._guessed if self._guessed else 1.0)

    def _left_text(self) -> str:
        minutes = round(self.remaining_seconds() / 60)
        return f"about {minutes} min left" if minutes else "less than a minute left"

    def tell(self, case: Case, doing: str) -> None:
        """Show what a launch is doing right now; in plain output only after a silence."""
        if self._bar is None:
            if time.monotonic() > self._told + _QUIET_SECONDS:
                self.note(f"  {case.title}: {doing}")
        else:
            self._bar.update(self._task, description=f"{case.title}: {doing} ({self._left_text()})")

    def note(self, text: str) -> None:
        self._told = time.monotonic()
        self._console.print(text, highlight=False, markup=False, soft_wrap=True)

    def launched(self, record: Record, seconds: float, *, final: bool) -> None:
        """One line for a case of a finished launch; one that will be repeated does not count."""
        number = self._finished + 1
        said = f"{record.case.title} ... {outcome_text(record)} {seconds:.1f} s"
        self.note(f"[{number}/{self._total}, {self._left_text()}] {said}")
        if final:
            self._finished += 1
            guess = expected_seconds(record.case)
            self._left -= guess
            self._spent += seconds
            self._guessed += guess
            if self._bar:
                self._bar.update(self._task, completed=self._finished)

    def close(self) -> None:
        if self._bar:
            self._bar.stop()


@contextmanager
def display(cases: list[Case], later_seconds: float = 0.0) -> Iterator[Display]:
    """Progress for as long as the block runs."""
    shown = Display(cases, later_seconds, Console(file=sys.stdout))
    try:
        yield shown
    finally:
        shown.close()
