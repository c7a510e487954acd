"""Whether --results names a folder that can be read from or written to, said before anything runs."""

import os
from pathlib import Path


class FolderError(ValueError):
    """It cannot; the text says what to name instead."""


def to_write(results: Path) -> Path:
    """The same path: a folder that is there, or that can be made."""
    for part in (results, results / "raw", results / "figures"):
        if os.path.exists(part) and not part.is_dir():
            raise FolderError(f"--results {results}: {part} is no folder; name one for raw/ and figures/")
    there = next(part for part in (results, *results.absolute().parents) if os.path.exists(part))
    if not there.is_dir():
        raise FolderError(f"--results {results}: {there} is no folder, so none can be made in it; name another")
    if not os.access(there, os.W_OK | os.X_OK):
        raise FolderError(f"--results {results}: this user may not write into {there}; name another")
    return results


def to_read(results: Path) -> Path:
    """The same path: a folder that is there, since figures and reports come from records."""
    to_write(results)  # they are written beside them
    if not os.path.exists(results):
        raise FolderError(f"--results {results}: there is no such folder; name one with records in raw/ or reference/")
    return results
