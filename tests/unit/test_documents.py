"""README and docs tell the truth: every path, make target and command that they name exists."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from byteps.settings import UNSUPPORTED, Settings, read_settings

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = ("byteps", "baselines", "experiments", "scripts", "tests", "docs", "examples", "results")
# Made by a run, not committed.
MADE = ("results/raw", "results/figures", "results/REPORT.md", "results/smoke")


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
