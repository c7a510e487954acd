import json
import re
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps.assign import Shares
from byteps.plan import LocalStrategy, Plan, PlannedMachine, load_plan, parse_plan, write_plan


def machine(name: str, share: float, **fields: Any) -> PlannedMachine:
    return PlannedMachine(**{"name": name, "share": share, "nics_bytes_per_s": (12.5e9,)} | fields)


def plan(gpu: tuple[PlannedMachine, ...], cpu: tuple[PlannedMachine, ...], **fields: Any) -> Plan:
    values = {"cluster": "my.toml", "partition_bytes": 65536, "predicted_seconds": 0.25, "n": len(gpu), "k": len(cpu)}
    return Plan(**values | {"gpu_machines": gpu, "cpu_machines": cpu} | fields)


INSIDE = LocalStrategy(name="reduce-broadcast", roots=("GPU2", "GPU3"), reason="the NIC's switch is free of copies")
PLAN = plan(
    (machine("a", 0.5, local=INSIDE, nics_bytes_per_s=(12.5e9, 3.125e9)), machine("b", 0.0)), (machine("c", 0.5),)
)


@given(st.lists(st.floats(0.01, 1), min_size=1, max_size=9), st.lists(st.floats(0.01, 1), max_size=9))
def test_what_is_written_is_read_again_exactly(tmp_path_factory, gpu, cpu):
    total = sum(gpu + cpu)
    ours = plan(
        tuple(machine(f"gpu{i}", share / total) for i, share in enumerate(gpu)),
        tuple(machine(f"cpu{i}", share / total) for i, share in enumerate(cpu)),
    )
    path = tmp_path_factory.mktemp("plan") / "plan.json"
    write_plan(ours, path)
    assert load_plan(path) == ours


def test_a_plan_is_read_by_people_too(tmp_path):
    write_plan(PLAN, tmp_path / "plan.json")
    lines = (tmp_path / "plan.json").read_text().splitlines()
    assert lines[1:5] == ['  "schema": 1,', '  "cluster": "my.toml",', '  "n": 2,', '  "k": 1,']
    assert '      "share": 0.5,' in lines
    assert load_plan(tmp_path / "plan.json").gpu_machines[0].local == INSIDE


def test_its_shares_are_in_the_runtimes_order_and_say_where_they_are_from():
    assert PLAN.shares == Shares(gpu=(0.5, 0.0), cpu=(0.5,), notice="shares are those planned for my.toml")


def edited(change: Callable[[dict[str, Any]], object]) -> str:
    values = json.loads(msgspec.json.encode(PLAN))
    change(values)
    return json.dumps(values)


@pytest.mark.parametrize(
    "change, text",
    [
        (lambda p: p.update(schema=2), "2 - at `$.schema`"),
        (lambda p: p.update(n=3), "n is 3, but gpu_machines has 2"),
        (lambda p: p.update(k=0), "k is 0, but cpu_machines has 1"),
        (lambda p: p.update(n=0, gpu_machines=[]), "gpu_machines is empty"),
        (lambda p: p.update(partition_bytes=63), "partition_bytes is 63; use 64 to 1073741824"),
        (lambda p: p.update(predicted_seconds=-1), "predicted_seconds is -1.0; use 0 or more"),
        (lambda p: p.update(shares=[1]), "unknown field `shares`"),
        (lambda p: p.pop("cluster"), "missing required field `cluster`"),
        (lambda p: p["gpu_machines"][1].update(name="c"), "name 'c' is used 2 times"),
        (
            lambda p: p["gpu_machines"][1].update(share=-0.1),
            "share of 'b' is -0.1; use a fraction from 0 to 1 - at `$.gpu",
        ),
        (lambda p: p["gpu_machines"][1].update(share=2e-6), "share sums to 1.000002 over all machines"),
        (lambda p: p["cpu_machines"][0].update(share="half"), "got `str` - at `$.cpu_machines[0].share`"),
        (lambda p: p["cpu_machines"][0].update(nics_bytes_per_s=[1.0, 0.0]), "of 'c' is [1.0, 0.0]; give each NIC's"),
        (lambda p: p["cpu_machines"][0].update(nics_bytes_per_s=[]), "nics_bytes_per_s of 'c' is []"),
        (lambda p: p["gpu_machines"][0]["local"].update(root="GPU0"), "unknown field `root`"),
    ],
)
def test_errors_name_the_file_the_key_and_the_value(change, text):
    with pytest.raises(ValueError, match=rf"^my-plan\.json: .*{re.escape(text)}"):
        parse_plan(edited(change), "my-plan.json")


def test_shares_may_be_rounded_by_hand():
    rounded = edited(lambda p: p["gpu_machines"][1].update(share=9e-7))
    assert parse_plan(rounded, "my-plan.json").shares.gpu == (0.5, 9e-7)


@pytest.mark.parametrize("text", [b"", b"n = 2", b'{"schema": 1', b"\xff\xfe"])
def test_what_is_no_json_is_an_error_of_that_file(tmp_path, text):
    path = tmp_path / "plan.json"
    path.write_bytes(text)
    with pytest.raises(ValueError, match=f"^{path}: "):
        load_plan(path)


@pytest.mark.parametrize("share", [float("nan"), -0.5, 1.5])
def test_a_wrong_plan_cannot_be_made_either(share):
    with pytest.raises(ValueError, match="share of 'a' is"):
        machine("a", share)
