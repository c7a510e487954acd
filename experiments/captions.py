"""Title and caption of a figure, kept inside the picture's file: a picture that is copied still says what it shows.

PNG files have them as the text chunks Title and Description, PDF files as Title and Subject.
"""

from dataclasses import dataclass
from pathlib import Path

from PIL import Image


@dataclass(frozen=True, kw_only=True)
class Caption:
    """What a figure shows, where it comes from, and how to read it."""

    title: str
    lines: tuple[str, ...]  # groups of sentences


def metadata(caption: Caption, suffix: str) -> dict[str, str | None]:
    """For matplotlib; without anything that differs between two drawings of the same records."""
    text = "\n".join(caption.lines)
    if suffix == ".png":
        return {"Title": caption.title, "Description": text, "Software": None}
    return {"Title": caption.title, "Subject": text, "CreationDate": None}


def read(picture: Path) -> Caption | None:
    """Of a PNG file; None where there is none, or only part of one.  Without a caption, its name is its title."""
    try:
        with Image.open(picture) as image:
            image.load()  # text chunks may follow the pixels
            texts = {key: str(value) for key, value in getattr(image, "text", {}).items()}
    except OSError:  # of Pillow's errors, too
        return None
    lines = tuple(filter(None, texts.get("Description", "").split("\n")))
    return Caption(title=texts.get("Title", picture.stem), lines=lines)
