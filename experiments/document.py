"""A report as data: headings, paragraphs, lists, tables and pictures, built once and rendered as Markdown and as HTML.

Text is Markdown inside a line (`code`, **bold**, links); blocks are objects, so that no renderer parses a table.
Pure: no I/O.  `experiments.html` is the other renderer.
"""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Heading:
    """Of a section (level 2) or of a part of it (level 3)."""

    title: str
    level: int = 2


@dataclass(frozen=True, kw_only=True)
class Paragraph:
    text: str


@dataclass(frozen=True, kw_only=True)
class Items:
    """A list; numbered where other blocks refer to its numbers."""

    lines: tuple[str, ...]
    numbered: bool = False


@dataclass(frozen=True, kw_only=True)
class Table:
    """Rows of cells under a header; as text it is Markdown with aligned columns, and without rows it is false."""

    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def __bool__(self) -> bool:
        return bool(self.rows)

    def __str__(self) -> str:
        cells = [[cell.replace("|", "\\|").replace("\n", " ") for cell in row] for row in (self.header, *self.rows)]
        widths = [max(len(row[column]) for row in cells) for column in range(len(self.header))]
        lines = [f"| {' | '.join(map(str.ljust, row, widths))} |" for row in cells]
        lines.insert(1, "|" + "|".join("-" * (width + 2) for width in widths) + "|")
        return "\n".join(lines)


@dataclass(frozen=True, kw_only=True)
class Picture:
    """A figure with its caption."""

    file: Path  # a PNG file
    link: str  # the same, from where the report lies
    title: str
    caption: tuple[str, ...]  # groups of sentences

    @property
    def alt(self) -> str:
        """For who cannot see it: the title, and the first of what the caption says."""
        return ". ".join((self.title, *self.caption[:1])).replace("\n", " ")


Block = Heading | Paragraph | Items | Table | Picture


@dataclass(frozen=True, kw_only=True)
class Document:
    title: str
    blocks: tuple[Block, ...]

    @property
    def lead(self) -> int:
        """How many blocks stand before the first heading: they come before the table of contents."""
        return next((at for at, block in enumerate(self.blocks) if isinstance(block, Heading)), len(self.blocks))


def paragraphs(text: str) -> list[Block]:
    """A paragraph for each part between blank lines; lines inside a part are joined."""
    return [Paragraph(text=" ".join(part.split())) for part in text.strip().split("\n\n") if part.strip()]


def anchors(blocks: Iterable[Block]) -> list[str]:
    """A name for every heading, in their order: as Markdown viewers make it from the title, unique."""
    seen: Counter[str] = Counter()
    names = []
    for block in blocks:
        if isinstance(block, Heading):
            slug = re.sub(r"[^\w\- ]", "", block.title.lower()).replace(" ", "-")
            names.append(f"{slug}-{seen[slug]}" if seen[slug] else slug)
            seen[slug] += 1
    return names


def contents(blocks: Sequence[Block]) -> list[tuple[Heading, str]]:
    """Headings with their anchors."""
    headings = [block for block in blocks if isinstance(block, Heading)]
    return list(zip(headings, anchors(blocks), strict=True))


def markdown(document: Document) -> str:
    """The document as Markdown, with a table of contents."""
    toc = [f"{'  ' * (one.level - 2)}- [{one.title}](#{name})" for one, name in contents(document.blocks)]
    rendered = list(map(_markdown, document.blocks))
    parts = [f"# {document.title}", *rendered[: document.lead], "\n".join(toc), *rendered[document.lead :]]
    return "\n\n".join(filter(None, parts)) + "\n"


def _markdown(block: Block) -> str:
    match block:
        case Heading(title=title, level=level):
            return f"{'#' * level} {title}"
        case Paragraph(text=text):
            return text
        case Items(lines=lines, numbered=numbered):
            return "\n".join(f"{f'{index}.' if numbered else '-'} {line}" for index, line in enumerate(lines, start=1))
        case Picture(link=link, title=title, caption=caption):
            return "\n\n".join((f"![{title}]({link})", " ".join((f"*{title}.*", *caption))))
        case Table():
            return str(block)
