"""What a file could have said instead: the part that msgspec's errors leave out.

Pure: no I/O, no clock, no randomness.
"""

import re

import msgspec
from msgspec import inspect

_STEP = re.compile(r"\.(\w+)|\[[^\]]*\]")


def expected(error: msgspec.ValidationError, kind: type) -> str:
    """For an error about a key or a choice: "; keys are a, b", "; use 1 or 2".  Else "": msgspec says it.

    `kind` is what was decoded; the error's text names the way to the place, such as $.gpu[0].rate.
    """
    text, _, way = str(error).partition(" - at `$")
    found = _plain(inspect.type_info(kind))
    for step in _STEP.finditer(way):
        found = _plain(_below(found, step[1]))
    if "field `" in text and isinstance(found, inspect.StructType):
        return f"; keys are {', '.join(field.encode_name for field in found.fields)}"
    if text.startswith("Invalid enum value") and isinstance(found, inspect.LiteralType):
        return f"; use {' or '.join(map(repr, found.values))}"
    return ""


def _below(kind: inspect.Type, key: str | None) -> inspect.Type:
    """What is under a key, or in a list."""
    if key is not None and isinstance(kind, inspect.StructType):
        return next((field.type for field in kind.fields if field.encode_name == key), inspect.AnyType())
    if key is None and isinstance(kind, inspect.ListType | inspect.VarTupleType):
        return kind.item_type
    return inspect.AnyType()


def _plain(kind: inspect.Type) -> inspect.Type:
    """Without annotations, and of X or None, X."""
    while isinstance(kind, inspect.Metadata | inspect.UnionType):
        if isinstance(kind, inspect.Metadata):
            kind = kind.type
        else:
            kind = next(one for one in kind.types if not isinstance(one, inspect.NoneType))
    return kind
