"""`make figures` needs records and nothing else: no framework, no peer, no process, no socket."""

import subprocess
import sys
from pathlib import Path

import pytest
from synthetic import figure_12

from baselines.launch import ROOT
from experiments import record

PROGRAM = """
import socket, subprocess, sys
from pathlib import Path

FORBIDDEN = {"torch", "horovod", "mxnet", "mpi4py", "tensorflow"}

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in FORBIDDEN:
            raise AssertionError(f"figures must not import {name}")

def refuse(*_, **__):
    raise AssertionError("figures must not start or connect anything")

sys.meta_path.insert(0, Refuse())
import numpy as np
from experiments import analysis, figures
from experiments.figures import disciplines, winners

disciplines.simulated = lambda *_: 1.0  # seconds of simulation, which need nothing else either
figures.COMPUTED = tuple(one for one in figures.COMPUTED if not one.__name__.startswith("schemes"))  # these, too
winners.RATES, winners.DEMANDS = np.geomspace(10, 800, 5), np.geomspace(10, 10_000, 5)  # a coarse map is a map
analysis.current_hashes = lambda _: None  # made-up records count
subprocess.Popen.__init__ = refuse
socket.socket.connect = refuse
for path in figures.draw_all(Path(sys.argv[1])):
    print(path.name)
"""


@pytest.mark.timeout(200)
def test_all_figures_are_drawn_from_records_with_the_rest_of_the_world_out_of_reach(tmp_path: Path) -> None:
    for one in figure_12():
        record.append(tmp_path / "raw" / "fig12.jsonl", one)
    command = [sys.executable, "-c", PROGRAM, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=180)  # 15 s alone
    assert done.returncode == 0, done.stderr[-3000:]
    names = set(done.stdout.split())
    assert {"fig12_goodput.png", "fig12_goodput.pdf", "fig3_cluster.pdf", "limits_map.png", "scale_models.pdf"} <= names
    assert {name for name in names if name.endswith(".png")} == {
        name.replace(".pdf", ".png") for name in names if name.endswith(".pdf")
    }
    for name in names:
        content = (tmp_path / "figures" / name).read_bytes()
        if name.endswith(".pdf"):
            assert b"/Type3" not in content  # fonts are embedded as TrueType
