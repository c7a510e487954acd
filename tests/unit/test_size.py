"""What counts as a line of code."""

from pathlib import Path

from scripts import size

TEXT = '''"""A module.

Its docstring has three lines.
"""

# a comment
LIMIT = 3  # code with a comment
"""A string that stands alone is a docstring too."""


class One:
    """Of a class."""

    text = """two lines
of a value"""

    def value(
        self,  # why

        other: int,
    ) -> str:
        "of a function"
        return f"""{self.text}
""" + "x"
'''


def test_code_is_what_is_left_without_blanks_comments_and_docstrings(tmp_path: Path):
    file = tmp_path / "one.py"
    file.write_text(TEXT, encoding="utf-8")
    # LIMIT, class, two of text, def, self, other, the closing bracket, two of return
    assert (size.code_lines(file), size.all_lines(file)) == (10, TEXT.count("\n"))


def test_parts_are_counted_with_all_their_folders(tmp_path: Path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("part/a.py", "part/deep/b.py", "part/not.txt"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).write_text("x = 1\n\n", encoding="utf-8")
    assert size.main(["part"]) == 0
    assert capsys.readouterr().out.split() == ["part", "2", "lines", "of", "code,", "4", "lines", "in", "2", "files"]
