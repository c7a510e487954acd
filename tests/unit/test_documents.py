"""README and docs tell the truth: every path, make target and command that they name exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from byteps import cli
from byteps.settings import UNSUPPORTED, Settings, read_settings
from experiments import agenda, claims, spec
from experiments.__main__ import app as experiments_app

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
ARTIFACT = ROOT / "docs" / "ARTIFACT.md"
FOLDERS = ("byteps", "baselines", "experiments", "scripts", "tests", "docs", "examples", "results")
# Made by runs, not committed.
RUNS = ("results/raw", "results/figures", "results/smoke", "results/cluster")
MADE = (*RUNS, "results/REPORT.md", "results/report.html")


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_path_named_exists(document: Path) -> None:
    text = document.read_text()
    named = set(re.findall(r"`((?:{})/[\w./*-]*)`".format("|".join(FOLDERS)), text))
    named |= {link for link in re.findall(r"\]\(([^)#:]+)\)", text) if not link.startswith("http")}
    missing = []
    for name in named:
        if name.startswith(MADE):
            continue
        base = ROOT if name.split("/")[0] in FOLDERS else document.parent
        if not list(base.glob(name)):
            missing.append(name)
    assert not missing


def test_every_make_target_named_exists() -> None:
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for document in DOCUMENTS:
        text = document.read_text()
        named = set(re.findall(r"(?:`|^ {4})make (?:[A-Z_]+=\S+ )*([a-z]+)", text, re.MULTILINE))
        assert named <= targets, document.name


def test_every_variable_named_is_known() -> None:
    for document in DOCUMENTS:
        for name in set(re.findall(r"\b(?:BYTEPS|DMLC)_[A-Z_]*[A-Z]\b", document.read_text())):
            if document.name == "baselines.md":  # of other programs
                assert any(name in path.read_text() for path in (ROOT / "baselines").rglob("*.py")), name
                continue
            _, warnings = read_settings({name: ""})
            assert not any("is not a variable" in warning for warning in warnings), (document.name, name)
            assert name not in UNSUPPORTED, (document.name, name)


def test_every_variable_is_documented() -> None:
    text = (ROOT / "docs" / "running.md").read_text()
    names = {entry.metadata["name"] for entry in Settings.__dataclass_fields__.values()}
    # The launcher alone sets these two.
    assert {name for name in names if name not in text} <= {"BYTEPS_LOCAL_RANK", "BYTEPS_LOCAL_SIZE"}


def artifact_rows(heads: int) -> list[list[str]]:
    """The cells of the rows of ARTIFACT.md's tables that have so many columns; without headings."""
    lines = ARTIFACT.read_text().splitlines()
    rows = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("|")]
    return [row for row in rows if len(row) == heads and not set("".join(row)) <= {"-"}]


def test_the_artifact_appendix_names_every_claim_with_a_figure_and_the_verdict_of_the_committed_run() -> None:
    known = {claim.id: claim for claim in claims.load_claims(ROOT / "experiments" / "claims.toml")}
    report = (ROOT / "results" / "reference" / "REPORT.md").read_text()
    rows = [row for row in artifact_rows(6) if re.fullmatch(r"C[0-9]+", row[0])]
    assert [row[0] for row in rows] == [f"C{number}" for number in range(1, len(rows) + 1)]
    assert {row[1].strip("`") for row in rows} == known.keys()
    for _, identifier, _, figure, experiment, verdict in rows:
        claim = known[identifier.strip("`")]
        assert not claim.experiments or experiment in claim.experiments, identifier
        assert (ROOT / "results" / "reference" / "figures" / f"{figure}.png").is_file(), identifier
        judged = re.search(re.escape(claim.text) + r" *(?:\|[^|\n]*){2}\| \*\*([a-z ]+)\*\*", report)
        assert verdict == (judged[1] if judged else "not judged yet"), identifier
    missed = re.search(r"\*\*The misses above\*\*: ([C0-9, and]+)\.", ARTIFACT.read_text())
    assert missed is not None
    assert re.findall(r"C[0-9]+", missed[1]) == [row[0] for row in rows if row[5] == "not reproduced"]


def test_the_artifact_appendix_has_the_launches_that_experiments_have() -> None:
    emulated = [row for row in artifact_rows(8) if row[3].isdecimal()]
    simulated = [row for row in artifact_rows(6) if row[2].endswith("--on sim`")]
    found = {(row[0], row[2], int(row[3])) for row in (*emulated, *simulated)}
    expected = set()
    for names, load, option in (
        (agenda.of_tier("reproduce"), agenda.load, ""),
        (agenda.simulations_of_tier("reproduce"), agenda.load_simulation, " --on sim"),
    ):
        for name in names:
            launches = spec.launches(load(name), agenda.cases_of(load(name), "reproduce"))
            expected.add((f"`{name}`", f"`python -m experiments run {name}{option}`", len(launches)))
    assert found == expected


def test_every_command_of_ours_exists() -> None:
    apps = {"byteps": cli.app, "python -m experiments": experiments_app}
    for document in DOCUMENTS:
        for program, app in apps.items():
            known = {one.name or getattr(one.callback, "__name__", "") for one in app.registered_commands}
            known |= {one.name for one in app.registered_groups}
            text = document.read_text()
            named = set(re.findall(r"(?:`|^ {4}|/bin/)" + program + r" ([a-z][a-z-]+)", text, re.MULTILINE))
            assert named <= known, (document.name, program)


def test_next_to_the_official_package_import_says_so(tmp_path: Path) -> None:
    metadata = tmp_path / "byteps-0.2.5.dist-info" / "METADATA"
    metadata.parent.mkdir()
    metadata.write_text("Metadata-Version: 2.1\nName: byteps\nVersion: 0.2.5\n")
    code = f"import sys; sys.path.append({str(tmp_path)!r}); import byteps"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, timeout=60)
    assert done.returncode == 1
    assert "the official byteps 0.2.5 is installed in this environment" in done.stderr
    assert "pip uninstall byteps" in done.stderr


def test_the_program_in_the_readme_runs() -> None:
    program = re.findall(r"```python\n(.*?)```", (ROOT / "README.md").read_text(), re.DOTALL)[0]
    command = [sys.executable, "-m", "byteps", "launch", "--workers", "2", "--", sys.executable, "-c", program]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=90)
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.count("tensor([0.5000, 0.5000, 0.5000, 0.5000]) tensor([1., 1., 1., 1.])") == 2
