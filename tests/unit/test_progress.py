"""What people see while experiments run, without a terminal."""

import io
import time

from rich.console import Console

from experiments.progress import Display
from experiments.record import Case

CASE = Case(
    experiment="fig12", tier="smoke", contender="byteps", settings={}, n=2, k=0, nic_bytes_per_s=25e6, nbytes=1 << 20,
    warmups=1, iterations=1, block=0,
)  # fmt: skip


def test_a_long_silence_is_broken_by_what_is_being_done_and_a_short_one_is_not(monkeypatch):
    now = 1000.0
    monkeypatch.setattr(time, "monotonic", lambda: now)
    out = io.StringIO()
    show = Display([CASE], 0.0, Console(file=out, width=200))
    show.tell(CASE, "starting")
    assert out.getvalue() == ""
    now += 11.0
    show.tell(CASE, "calibrating")
    show.tell(CASE, "calibrating")
    assert out.getvalue() == f"  {CASE.title}: calibrating\n"


def test_less_than_a_minute_is_not_called_none(monkeypatch):
    show = Display([CASE], 0.0, Console(file=io.StringIO()))
    monkeypatch.setattr(show, "remaining_seconds", lambda: 20.0)
    assert show._left_text() == "less than a minute left"
    monkeypatch.setattr(show, "remaining_seconds", lambda: 100.0)
    assert show._left_text() == "about 2 min left"
