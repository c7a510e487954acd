"""The benchmark of codecs, small: its records are checked, and its table judges every rate."""

from pathlib import Path

import pytest

from byteps import codecs as library
from experiments import codecs


def test_a_launch_of_every_codec_is_checked_and_judged(tmp_path: Path) -> None:
    told: list[str] = []
    wanted = codecs.cases(blocks=1, iterations=1, nbytes=5_000_000, tier="smoke")
    records = codecs.execute(wanted, tmp_path, told.append)
    assert {one.case.settings["codec"] for one in records} == set(codecs.CODECS)
    assert all(one.verified for one in records)
    assert len(told) == len(records)
    rows = {row.what: row for row in codecs.rows(records)}
    assert all(row.values for row in rows.values())
    for codec in codecs.CODECS:
        assert rows[f"{codec}: push"].bound == pytest.approx(1.25)
        fewer = rows[f"{codec}: fewer bytes than float32"]
        promised = 2.0 if codec == "fp16" else 5_000_000 / library.get(codec).nbytes(1_250_000)
        assert fewer.median == pytest.approx(promised, rel=0.02), "headers and prefixes are less than 2 %"
        assert fewer.verdict in ("met", "")


def test_the_order_moves_on_from_block_to_block() -> None:
    made = codecs.cases(blocks=2)
    assert [case.settings["codec"] for case in made if case.position == 0] == list(codecs.CODECS[:2])
