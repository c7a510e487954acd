"""A fleet across emulated NICs: every host by its own address, the same cap for all, and none of it left."""

import json
import os
import signal
import subprocess
from pathlib import Path
from typing import Any

import pytest

from scripts.lab import star
from scripts.netns import Lab

ROOT = Path(__file__).resolve().parents[2]
SECONDS = 60.0
PYTHON = str(ROOT / ".venv/bin/python")
RATE = 25e6  # of the NICs; the cap is half of it

# Runs on host a: conducts a and b, and prints what it sees as JSON.
CONDUCTOR = """
import json, sys
from dataclasses import dataclass
from pathlib import Path
from scripts.fleet import Fleet

@dataclass(frozen=True)
class Host:
    name: str
    address: str
    interfaces: tuple = ()
    nics: tuple = (25e6,)
    suite: str = sys.argv[2]

@dataclass(frozen=True)
class Site:
    hosts: tuple
    provenance: str = "emulated"
    cap_bytes_per_s: float = 12.5e6

def tell(**what):
    print(json.dumps(what), flush=True)

a, b = sys.argv[3:]
site = Site((Host("a", a), Host("b", b, ("10.77.0.0/16",))))
with Fleet(site, listen=(a, 29300), secret=b"x", root=Path(sys.argv[1]), tell=lambda _: None) as fleet:
    before = fleet.all_counters()
    capped = fleet.calibrate(1.0)
    sent = (fleet.all_counters()["b"] - before["b"]).tx_bytes
    tell(nics=[fleet.interface(name) for name in "ab"], capped=[flow.bytes_per_s for flow in capped.flows],
         faithful=capped.faithful, text=capped.describe(), sent=sent, one_way=fleet.one_way_seconds())
    sys.stdin.readline()
    tell(left=fleet.names)
    fleet.uncap()
    tell(uncapped="yes")
    sys.stdin.readline()
    fleet.cap(12.5e6)
"""


def tbf(lab: Lab, host: str) -> dict[str, Any]:
    answer = subprocess.run(
        ["tc", "-n", lab.namespace(host), "-j", "qdisc", "show", "dev", "eth0"],
        capture_output=True, check=True, timeout=SECONDS,
    )  # fmt: skip
    return {key: value for key, value in json.loads(answer.stdout)[0]["options"].items() if key in ("rate", "burst")}


@pytest.fixture
def secret(tmp_path: Path) -> str:
    (tmp_path / "secret").write_bytes(b"x\n")
    return str(tmp_path / "secret")


def test_every_nic_is_capped_for_a_run_and_has_its_own_rate_again_after_it(secret: str, tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    with Lab(star({"a": RATE, "b": RATE})) as lab, (tmp_path / "log").open("wb") as log:
        addresses = [lab.spec.address(name) for name in "ab"]
        before = {name: tbf(lab, name) for name in "ab"}
        agent = [PYTHON, "-m", "scripts.agent", "--conductor", f"{addresses[0]}:29300"]
        agents = [
            lab.popen(
                name,
                [*agent, "--name", name, "--secret-file", secret],
                cwd=ROOT,
                stdout=log,
                stderr=log,
            )
            for name in "ab"
        ]
        command = [PYTHON, "-c", CONDUCTOR, str(ROOT), str(ROOT), *addresses]
        conductor = lab.popen("a", command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        assert conductor.stdin is not None
        assert conductor.stdout is not None
        with conductor.stdin as say, conductor.stdout as heard:
            seen = json.loads(heard.readline() or (tmp_path / "log").read_text())
            assert seen["nics"] == ["eth0", "eth0"]
            assert seen["faithful"], seen["text"]
            assert all(0.4 * RATE < rate < 0.5 * RATE for rate in seen["capped"])
            assert seen["sent"] > 0.4 * RATE
            assert 1e-6 < seen["one_way"] < 50e-3
            assert {tbf(lab, name)["rate"] for name in "ab"} == {RATE / 2}
            helper = Path(f"/proc/{agents[1].pid}/task/{agents[1].pid}/children").read_text().split()[0]
            os.kill(int(helper), signal.SIGKILL)
            assert agents[1].wait(SECONDS) == 128 + signal.SIGKILL
            assert tbf(lab, "b") == before["b"]  # its guardian did it
            say.write(b"go on\n")
            say.flush()
            assert json.loads(heard.readline()) == {"left": ["a"]}
            assert json.loads(heard.readline()) == {"uncapped": "yes"}
            assert tbf(lab, "a") == before["a"]
            say.write(b"go on\n")
        assert conductor.wait(SECONDS) == 0
        assert agents[0].wait(SECONDS) == 0, (tmp_path / "log").read_text()
        assert tbf(lab, "a") == before["a"]
        assert lab.pids() == []


def test_a_discipline_that_somebody_set_on_purpose_is_left_alone_and_a_cap_needs_the_right(tmp_path: Path) -> None:
    cap = "from scripts import caps\ntry: caps.cap('eth0', 1e6)\nexcept caps.CapError as error: print(error)"
    with Lab(star({"a": RATE, "b": RATE})) as lab:
        subprocess.run(
            ["tc", "-n", lab.namespace("a"), "qdisc", "replace", "dev", "eth0", "root", "handle", "7:", "pfifo"],
            check=True,
            timeout=SECONDS,
        )
        told = lab.popen("a", [PYTHON, "-c", cap], cwd=ROOT, stdout=subprocess.PIPE).communicate(timeout=SECONDS)[0]
        assert b"eth0 has a queue discipline of its own, pfifo 7:" in told
        weak = ["/usr/bin/setpriv", "--bounding-set=-net_admin", "--inh-caps=-net_admin", PYTHON, "-c", cap]
        told = lab.popen("b", weak, cwd=ROOT, stdout=subprocess.PIPE).communicate(timeout=SECONDS)[0]
        assert b"Operation not permitted" in told
        assert b"a cap needs the right to change NICs (CAP_NET_ADMIN)" in told
