"""The programs in docs/walkthrough.md run and do what the text says."""

import re
import sys
from types import ModuleType

import numpy as np
import pytest
from synthetic import figure_12, loaded

from baselines.contenders import CONTENDERS
from baselines.launch import ROOT, Launch, Machine
from baselines.session import Tensor

TEXT = (ROOT / "docs" / "walkthrough.md").read_text()


def program(title: str, place: int = 0) -> dict:
    """What the program number `place` of a section leaves."""
    section = TEXT.split(f"\n## {title}\n")[1].split("\n## ")[0]
    code = re.findall(r"```python\n(.*?)```", section, re.DOTALL)[place]
    names: dict = {"__name__": "walkthrough"}
    exec(compile(code, f"docs/walkthrough.md, {title}", "exec"), names)
    return names


def test_a_record_is_read(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(ROOT)
    assert program("Read a record")["one"].verified
    assert "fig12 byteps n=8 k=8" in capsys.readouterr().out


def test_the_figure_is_drawn_with_a_caption(tmp_path) -> None:
    from experiments import captions

    png, pdf = program("Add a figure")["launch_seconds"](loaded("fig12", figure_12()), tmp_path)
    caption = captions.read(png)
    assert caption is not None
    assert caption.title == "Time of one synchronisation"
    assert "Emulated: " in caption.lines[0]
    assert "2 per point" in caption.lines[0]
    assert pdf.stat().st_size > 1000


def test_the_contender_is_planned_with_looks_of_its_own() -> None:
    (naive,) = program("Add a contender", 1)["CONTENDERS"]
    assert naive.name not in CONTENDERS
    assert naive.nic_nbytes(4, 0, 100) == 300
    looks = {(one.colour, one.marker) for one in CONTENDERS.values()}
    assert (naive.colour, naive.marker) not in looks
    machines = tuple(Machine(host=f"gpu{rank}", address=f"10.0.0.{rank}", interface="eth0") for rank in range(2))
    launch = Launch(
        gpu_machines=machines,
        cpu_machines=(),
        scheduler=machines[0],
        nic_bytes_per_s=25e6,
        nbytes=100,
        settings={},
        secret="00",
    )
    assert [process.host for process in naive.plan(launch)] == ["gpu0", "gpu1"]


def test_the_adapter_sums(monkeypatch: pytest.MonkeyPatch) -> None:
    names = program("Add a contender", 0)

    class Done:
        def wait(self) -> None:
            pass

    def all_gather(there, own, *, async_op):  # another rank with the same gradient
        for one in there:
            one.copy_(own)
        return Done()

    fake = ModuleType("fake")
    fake.all_gather, fake.get_world_size = all_gather, lambda: 2  # type: ignore[attr-defined]
    monkeypatch.setitem(names["Session"].submit.__globals__, "dist", fake)
    session = names["Session"](sys.modules["torch"].device("cpu"))
    gradient = np.arange(4, dtype=np.float32)
    session.declare([Tensor(name="a", numel=4, dtype="float32")], [gradient])
    session.submit(0)
    assert session.wait(0).tolist() == [0.0, 2.0, 4.0, 6.0]
