"""One document, two renderings: both say the same, cells break no table, and the page needs nothing else."""

import base64
import re
from html.parser import HTMLParser
from pathlib import Path

import matplotlib.pyplot as plt
import pytest

from experiments import captions
from experiments.captions import Caption
from experiments.document import Document, Heading, Items, Paragraph, Picture, Table, anchors, markdown, paragraphs
from experiments.figures.sheet import PAGE, SMALL, Legend, sheet
from experiments.html import html


@pytest.fixture
def picture(tmp_path: Path) -> Picture:
    with sheet("Goodput against k") as page:
        page.panels[0].plot([0, 1], [1, 2])
        png, _ = page.save(tmp_path / "figures", "fig", ["Points: medians, bars: range.", "", "Crosses: é, the paper."])
    caption = captions.read(png)
    assert caption is not None
    return Picture(file=png, link="figures/fig.png", title=caption.title, caption=caption.lines)


@pytest.fixture
def document(picture: Picture) -> Document:
    table = Table(header=("claim", "verdict"), rows=(("a | b <script>alert(1)</script>", "**not reproduced**"),))
    blocks = (
        Paragraph(text="2 claims."),
        Heading(title="Claims, `all`"),
        table,
        Heading(title="Part", level=3),
        picture,
    )
    return Document(title="Report", blocks=(*blocks, Heading(title="Part"), Items(lines=("one", "two"), numbered=True)))


class Page(HTMLParser):
    """Tags with their attributes; raises if they do not nest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: list[tuple[str, dict[str, str | None]]] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))
        if tag not in ("meta", "link", "img", "br"):
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_captions_travel_inside_the_pictures(picture: Picture) -> None:
    assert (picture.title, picture.caption) == (
        "Goodput against k",
        ("Points: medians, bars: range.", "Crosses: é, the paper."),
    )
    assert b"Goodput against k" in picture.file.with_suffix(".pdf").read_bytes()


def test_a_picture_that_is_not_there_or_half_written_has_no_caption(picture: Picture, tmp_path: Path) -> None:
    assert captions.read(tmp_path / "none.png") is None
    half = tmp_path / "half.png"
    half.write_bytes(picture.file.read_bytes()[:1000])
    assert captions.read(half) is None


def test_a_picture_without_a_caption_is_called_by_its_name(tmp_path: Path) -> None:
    figure = plt.figure()
    figure.savefig(tmp_path / "bare.png")
    plt.close(figure)
    assert captions.read(tmp_path / "bare.png") == Caption(title="bare", lines=())


def test_bars_and_lines_in_cells_do_not_break_a_markdown_table() -> None:
    table = Table(header=("a", "b"), rows=(("x | y", "first\nsecond"),))
    assert str(table).splitlines()[2] == r"| x \| y | first second |"
    assert not Table(header=("a",), rows=())


def test_both_renderings_have_every_block_in_order(document: Document) -> None:
    texts = ("2 claims.", "all", "not reproduced", "Part", "Goodput against k", "one", "two")
    for text in (markdown(document), html(document)):
        body = text[text.index("</nav>") if "</nav>" in text else text.index("## ") :]  # after the table of contents
        places = [body.index(one) for one in texts[1:]]
        assert places == sorted(places)
        assert text.index(texts[0]) < text.index("Claims")


def test_links_of_the_contents_lead_to_headings_and_names_are_unique(document: Document) -> None:
    assert anchors(document.blocks) == ["claims-all", "part", "part-1"]
    tags = Page(html(document)).seen
    names = [attributes["id"] for _, attributes in tags if "id" in attributes]
    links = {str(attributes["href"]) for tag, attributes in tags if tag == "a"}
    assert links == {f"#{name}" for name in names}
    assert len(names) == len(set(names)) == 3


def test_the_page_needs_nothing_from_outside_and_runs_nothing(document: Document, picture: Picture) -> None:
    page = html(document)
    tags = Page(page).seen
    assert "script" not in {tag for tag, _ in tags}
    assert "&lt;script&gt;" in page
    assert not re.search(r"url\(|@import|https?://", page)
    (image,) = (attributes for tag, attributes in tags if tag == "img")
    prefix = "data:image/png;base64,"
    assert str(image["src"]).startswith(prefix)
    assert base64.b64decode(str(image["src"])[len(prefix) :]) == picture.file.read_bytes()
    assert image["alt"] == "Goodput against k. Points: medians, bars: range."


def test_tables_scroll_in_a_box_that_keys_reach_and_verdicts_have_a_colour(document: Document) -> None:
    tags = Page(html(document)).seen
    (box,) = (attributes for tag, attributes in tags if attributes.get("class") == "table")
    assert box["tabindex"] == "0"
    assert box["aria-label"] == "Table: claim, verdict"
    assert any("verdict bad" in (attributes.get("class") or "") for tag, attributes in tags if tag == "td")


def test_paragraphs_are_parted_at_blank_lines() -> None:
    assert paragraphs("a\nb\n\nc\n") == [Paragraph(text="a b"), Paragraph(text="c")]
    assert paragraphs("") == []


def test_a_legend_has_no_section_whose_name_stands_alone_at_the_foot_of_a_column() -> None:
    legend = Legend()
    contenders = [f"contender {i}" for i in range(5)]
    for section, labels in (("Theory", ["optimum"]), ("Emulated", contenders), ("Paper", ["x"])):
        for label in labels:
            legend.add(section, label, color="black")
    for num_columns in (1, 2, 3, 4):
        columns = legend._columns(num_columns, 30)
        assert len(columns) <= num_columns
        assert len({len(column) for column in columns}) == 1
        for column in columns:
            shown = [is_title for _, label, is_title in column if label]
            assert not shown[-1]


def test_figures_are_as_wide_as_a_page_of_a_paper_and_have_no_smaller_letters(tmp_path: Path) -> None:
    with sheet("wide", columns=2, width=PAGE) as page:
        page.legend.add("Theory", "a line with a long name that is broken", color="black")
        page.panels[0].set_ylabel("a label that is longer than the panel is high")
        page.save(tmp_path, "wide", ["said"])
        assert page.figure.get_size_inches()[0] == PAGE
        sizes = {text.get_fontsize() for text in page.figure.findobj(plt.Text) if text.get_text()}
        assert min(sizes) >= SMALL
        assert "\n" in page.panels[0].get_ylabel()
