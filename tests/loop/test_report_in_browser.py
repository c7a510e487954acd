"""The report of the reference run in a headless browser: on a desk, on a phone, in the dark, on paper."""

import json
import os
import re
import shutil
import subprocess
from html import escape, unescape
from pathlib import Path

import pytest

from baselines.launch import ROOT
from experiments import report
from experiments.html import html

BROWSER = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None)
DESK, PHONE, SHEET = 1280, 390, 1032  # CSS pixels; a sheet is A4 across without its margins
SECONDS = 60.0

# Stands first in the page, so that no error is missed; the answer is read from an attribute of the page around it.
SCRIPT = """<script>
const errors = [];
window.addEventListener("error", event => errors.push(event.message || event.target.tagName), true);
window.addEventListener("load", () => {
  const boxes = [...document.querySelectorAll(".table")];
  const wide = box => box.scrollWidth > box.clientWidth + 1;
  parent.document.documentElement.dataset.found = JSON.stringify({
    errors,
    width: window.innerWidth,
    page: document.documentElement.scrollWidth,
    tables: document.querySelectorAll("table").length,
    boxes: boxes.length,
    wide: boxes.filter(wide).map(box => box.getAttribute("aria-label")),
    cut: boxes.filter(box => wide(box) && !["auto", "scroll"].includes(getComputedStyle(box).overflowX)).length,
    images: document.images.length,
    broken: [...document.images].filter(image => !image.complete || image.naturalWidth === 0).length,
    outside: [...document.images].filter(image => image.getBoundingClientRect().right > window.innerWidth).length,
    dead: [...document.querySelectorAll("a[href^='#']")].filter(
      link => !document.getElementById(decodeURIComponent(link.hash.slice(1)))).map(link => link.hash),
    background: getComputedStyle(document.body).backgroundColor,
    ink: getComputedStyle(document.body).color,
  });
});
</script>"""

pytestmark = pytest.mark.skipif(BROWSER is None, reason="no browser: install chromium to check the report in it")


@pytest.fixture(scope="module")
def page() -> str:
    folder = ROOT / "results" / "reference" / "figures"
    document, _ = report.compose(ROOT / "results", sources=("reference",), figures=folder)
    return html(document).replace("<head>", "<head>" + SCRIPT, 1)


def seen(page: str, tmp_path: Path, width: int, *options: str) -> dict:
    """What the page says of itself in a frame of this width: windows are 500 pixels wide at least."""
    frame = f'<iframe style="width: {width}px; height: 900px; border: 0" srcdoc="{escape(page)}"></iframe>'
    path = tmp_path / "report.html"
    path.write_text(f'<!DOCTYPE html><meta name="color-scheme" content="light dark">{frame}', encoding="utf-8")
    assert BROWSER is not None
    command = [BROWSER, "--headless", "--disable-gpu", "--no-first-run", f"--user-data-dir={tmp_path / 'profile'}"]
    command += ["--no-sandbox"] if os.geteuid() == 0 else []  # root has no other way
    command += ["--enable-logging=stderr", "--hide-scrollbars", "--window-size=1400,1000", *options]
    done = subprocess.run(
        [*command, "--dump-dom", path.as_uri()],
        capture_output=True,
        text=True,
        timeout=SECONDS,
        env={**os.environ, "HOME": str(tmp_path)},
    )
    match = re.search(r'data-found="([^"]*)"', done.stdout)
    assert match, done.stderr[-2000:]
    found = json.loads(unescape(match[1]))
    found["console"] = re.findall(r".*CONSOLE.*", done.stderr)
    return found


@pytest.mark.parametrize("width", [DESK, PHONE])
def test_nothing_is_broken_cut_or_outside_of_the_window(page: str, tmp_path: Path, width: int) -> None:
    found = seen(page, tmp_path, width)
    assert found["width"] == width
    assert found["errors"] == found["console"] == []
    assert found["images"] > 15
    assert found["broken"] == found["outside"] == 0
    assert found["tables"] == found["boxes"] > 20
    assert found["cut"] == 0
    assert found["page"] <= width  # tables scroll in their boxes, the page does not
    assert found["dead"] == []


def test_on_paper_no_table_is_wider_than_the_sheet(page: str, tmp_path: Path) -> None:
    found = seen(page.replace("@media print", "@media screen"), tmp_path, SHEET)
    assert found["wide"] == []
    assert found["page"] <= SHEET


def test_it_is_dark_where_the_reader_wants_it_dark(page: str, tmp_path: Path) -> None:
    def light(colour: str) -> float:
        return sum(map(float, re.findall(r"[\d.]+", colour)[:3])) / 3

    bright, dark = (
        seen(page, tmp_path, DESK, f"--blink-settings=preferredColorScheme={scheme}") for scheme in ("1", "0")
    )
    assert light(bright["ink"]) < 60 < 200 < light(bright["background"])
    assert light(dark["background"]) < 60 < 200 < light(dark["ink"])
