"""How long the code is, per part: lines of code (without blank lines, comments and docstrings), and lines in all.

    python scripts/size.py byteps experiments

A string that stands alone as a statement counts as a docstring, wherever it is.  Needs nothing but Python.
"""

import sys
import tokenize
from collections.abc import Iterator
from pathlib import Path

# Tokens that are not code, and those after which a statement begins.
_LAYOUT = (tokenize.NL, tokenize.NEWLINE, tokenize.INDENT, tokenize.DEDENT, tokenize.ENCODING, tokenize.ENDMARKER)


def statements(file: Path) -> Iterator[list[tokenize.TokenInfo]]:
    """The tokens of each logical line, without comments and layout."""
    found: list[tokenize.TokenInfo] = []
    with file.open("rb") as lines:
        for token in tokenize.tokenize(lines.readline):
            if token.type == tokenize.NEWLINE:
                yield found
                found = []
            elif token.type not in (*_LAYOUT, tokenize.COMMENT):
                found.append(token)


def code_lines(file: Path) -> int:
    """Lines that hold code."""
    lines: set[int] = set()
    for tokens in statements(file):
        if any(token.type != tokenize.STRING for token in tokens):
            lines.update(line for token in tokens for line in range(token.start[0], token.end[0] + 1))
    return len(lines)


def all_lines(file: Path) -> int:
    return len(file.read_bytes().splitlines())


def main(parts: list[str]) -> int:
    for part in parts:
        files = sorted(Path(part).rglob("*.py"))
        code, lines = sum(map(code_lines, files)), sum(map(all_lines, files))
        print(f"{part:<12} {code:6d} lines of code, {lines:6d} lines in {len(files)} files")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
