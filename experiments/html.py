"""A document as one HTML file: pictures and style are inside, so that it is read without a network.

Inline Markdown is rendered by markdown-it-py, which escapes everything else.  There is no script in the page.
"""

import base64
from collections.abc import Sequence
from html import escape
from pathlib import Path

from markdown_it import MarkdownIt

from experiments.document import Block, Document, Heading, Items, Paragraph, Picture, Table, anchors, contents

STYLE = Path(__file__).parent / "report.css"
VERDICTS = {
    "reproduced": "good",
    "met": "good",
    "not reproduced": "bad",
    "not met": "bad",
    "inconclusive": "open",
    "not testable here": "open",
}
_INLINE = MarkdownIt("commonmark", {"html": False})


def html(document: Document) -> str:
    """The whole page."""
    names = iter(anchors(document.blocks))
    rendered = [_block(block, next(names) if isinstance(block, Heading) else "") for block in document.blocks]
    lead = document.lead
    body = "\n".join((*rendered[:lead], _contents(document), *rendered[lead:]))
    return f"""<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<link rel="icon" href="data:,">
<title>{escape(document.title)}</title>
<style>
{STYLE.read_text(encoding="utf-8")}</style>
</head>
<body>
<main>
<h1>{_text(document.title)}</h1>
{body}
</main>
</body>
</html>
"""


def _text(markdown: str) -> str:
    return str(_INLINE.renderInline(markdown))


def _contents(document: Document) -> str:
    """Sections, each with its parts below it."""
    sections: list[tuple[str, list[str]]] = []
    for heading, name in contents(document.blocks):
        link = f'<a href="#{escape(name)}">{_text(heading.title)}</a>'
        if heading.level > 2 and sections:
            sections[-1][1].append(link)
        else:
            sections.append((link, []))
    links = _list([f"{link}{_list(parts)}" for link, parts in sections])
    return f'<nav aria-label="Contents"><details open><summary>Contents</summary>{links}</details></nav>'


def _list(items: Sequence[str], tag: str = "ul") -> str:
    """Of rendered items; nothing without any."""
    return f"<{tag}>{''.join(f'<li>{item}</li>' for item in items)}</{tag}>" if items else ""


def _block(block: Block, anchor: str) -> str:
    match block:
        case Heading(title=title, level=level):
            link = f'<a class="anchor" href="#{escape(anchor)}" aria-label="Link to this section">#</a>'
            return f'<h{level} id="{escape(anchor)}">{_text(title)} {link}</h{level}>'
        case Paragraph(text=text):
            return f"<p>{_text(text)}</p>"
        case Items(lines=lines, numbered=numbered):
            return _list([_text(line) for line in lines], "ol" if numbered else "ul")
        case Picture():
            return _picture(block)
        case Table():
            return _table(block)


def _picture(block: Picture) -> str:
    content = block.file.read_bytes()
    width, height = (int.from_bytes(content[at : at + 4]) for at in (16, 20))  # of a PNG file's header
    data = base64.b64encode(content).decode("ascii")
    caption = f"<strong>{_text(block.title)}.</strong> {' '.join(map(_text, block.caption))}"
    size = "page" if width > 2 * height or width > 1000 else "column"
    return (
        f'<figure class="{size}"><img alt="{escape(block.alt)}" width="{width}" height="{height}" '
        f'src="data:image/png;base64,{data}"><figcaption>{caption}</figcaption></figure>'
    )


def _table(block: Table) -> str:
    """In a box of its own, which scrolls where the table is wider; it takes the focus, so that keys scroll it too."""
    header = "".join(f'<th scope="col">{_text(cell)}</th>' for cell in block.header)
    rows = "".join(f"<tr>{''.join(map(_cell, row))}</tr>" for row in block.rows)
    name = escape(", ".join(filter(None, block.header)))
    return (
        f'<div class="table" role="region" tabindex="0" aria-label="Table: {name}"><table><thead><tr>{header}</tr>'
        f"</thead><tbody>{rows}</tbody></table></div>"
    )


def _cell(text: str) -> str:
    kind = VERDICTS.get(text.strip("*"))
    width = ["wide"] if len(text) > 60 else ["middle"] if len(text) > 20 else []
    classes = " ".join([*([f"verdict {kind}"] if kind else []), *width])
    return f'<td class="{classes}">{_text(text)}</td>' if classes else f"<td>{_text(text)}</td>"
