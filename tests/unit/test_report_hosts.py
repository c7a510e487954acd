"""Records of the hosts of a cluster stand in the report beside those of the emulated one, and are never joined."""

import msgspec
import pytest
from synthetic import figure_12

from experiments import analysis, figures, record, report
from experiments.captions import read
from experiments.cluster import BEYOND_KNEE, FILE
from experiments.document import Table, markdown
from experiments.record import case_hash
from experiments.verdicts import claims_table

SITE = "measured: gpu 8x200Mbit; cpu 8x200Mbit"


@pytest.fixture(autouse=True)
def _made_up_records_count(monkeypatch):
    monkeypatch.setattr(analysis, "current_hashes", lambda _: None)
    monkeypatch.setattr(analysis, "_current_of", lambda *_: None)


def of_hosts(fraction, **changes):
    for one in figure_12(fraction, provenance="measured", **changes):
        case = msgspec.structs.replace(one.case, site=SITE)
        yield msgspec.structs.replace(one, case=case, case_hash=case_hash(case))


@pytest.fixture
def results(tmp_path):
    for one in figure_12(0.96):
        record.append(tmp_path / "raw" / "fig12.jsonl", one)
    return tmp_path


def keep(results, records):
    for one in records:
        record.append(results / "raw" / FILE.format("fig12"), one)


def claim_rows(results, claim):
    document, _ = report.compose(results)
    table = next(block for block in document.blocks if isinstance(block, Table) and block.header[0] == "claim")
    return [row for row in table.rows if row[0].startswith(claim)]


NEAR_OPTIMAL = "BytePS reaches 0.95"


def test_a_claim_has_a_verdict_for_each_kind_of_cluster(results):
    keep(results, of_hosts(0.90))
    emulated, measured = claim_rows(results, NEAR_OPTIMAL)
    assert emulated[2].startswith("emulated: k=0, k=1, k=2, k=4, k=8: 0.960")
    assert emulated[3] == "**reproduced**"
    assert measured[0].endswith("(on a real cluster)")
    assert measured[2].startswith("measured: k=0, k=1, k=2, k=4, k=8: 0.900")
    assert measured[3] == "**not reproduced**"
    assert emulated[1] == "0.90 to 0.96 of its optimum (Fig 12)"
    assert emulated[4] == "`python -m experiments run fig12`"


def test_without_hosts_nothing_is_said_of_them(results):
    assert len(claim_rows(results, NEAR_OPTIMAL)) == 1
    text = markdown(report.compose(results)[0])
    assert "On the hosts of a cluster" not in text
    assert "Never run on the hardware that it is for: Horovod with NCCL" in text


def test_hosts_have_tables_of_their_own(results):
    keep(results, of_hosts(0.90))
    text = markdown(report.compose(results)[0])
    here, hosts = text.index("\n## Figure 12"), text.index("### Figure 12: fraction of the optimum t_opt, on hosts")
    assert "0.900" in text[hosts : text.index("\n## ", hosts)]
    assert "0.960" not in text[hosts : text.index("\n## ", hosts)]
    assert "0.900" not in text[here : text.index("\n## ", here + 1)]
    assert SITE in text


def test_where_nics_are_faster_than_the_software_no_claim_is_judged_and_the_report_says_so(results):
    keep(results, of_hosts(0.5, facts={BEYOND_KNEE: "25 Gbit/s on 2 cores"}))
    assert len(claim_rows(results, NEAR_OPTIMAL)) == 1
    text = markdown(report.compose(results)[0])
    section = text[text.index("\n## What was not run, and why") :]
    assert "NICs faster than the software" in section[: section.index("\n## ", 1)]
    assert "[network] cap" in section


def test_figures_of_hosts_say_measured(results):
    keep(results, of_hosts(0.90))
    of_cluster = analysis.load(results, "fig12", sources=("cluster",))
    png = next(path for path in figures.draw(of_cluster, results / "cluster") if path.name == "fig12_goodput.png")
    caption = read(png)
    assert caption is not None
    text = " ".join(caption.lines)
    assert "Measured: 8 GPU machines" in text
    assert SITE in text
    assert "Emulated" not in text


def test_claims_without_a_word_of_the_paper_have_a_dash():
    _, verdicts = report.compose(report.CLAIMS.parent / "nowhere")
    rows = claims_table(verdicts, {}).rows
    assert {row[1] for row in rows} >= {"-", "276 Gbit/s on 32 cores (Fig 9b)"}
    assert any(row[4].endswith("--on sim`") for row in rows)
