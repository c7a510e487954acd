from typing import Annotated, Literal

import msgspec
import pytest

from byteps.expected import expected


class Inner(msgspec.Struct, forbid_unknown_fields=True):
    a: int = 0
    word: Literal["x", "y"] = "x"


class Outer(msgspec.Struct, forbid_unknown_fields=True):
    inner: Inner
    many: tuple[Inner, ...] = ()
    maybe: Inner | None = None
    number: Annotated[Literal[1, 2], msgspec.Meta(description="one or two")] = 1
    table: dict[str, Inner] = {}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"innner": {}}', "; keys are inner, many, maybe, number, table"),
        ("{}", "; keys are inner, many, maybe, number, table"),
        ('{"inner": {"b": 1}}', "; keys are a, word"),
        ('{"inner": {}, "many": [{}, {"b": 1}]}', "; keys are a, word"),
        ('{"inner": {}, "maybe": {"b": 1}}', "; keys are a, word"),
        ('{"inner": {"word": "z"}}', "; use 'x' or 'y'"),
        ('{"inner": {}, "number": 3}', "; use 1 or 2"),
        ('{"inner": {"a": "x"}}', ""),  # msgspec: Expected `int`, got `str`
        ('{"inner": {}, "table": {"k": {"b": 1}}}', ""),  # not followed into mappings
        ("[]", ""),
    ],
)
def test_what_could_have_been_said_is_named(text, said):
    with pytest.raises(msgspec.ValidationError) as caught:
        msgspec.json.decode(text, type=Outer)
    assert expected(caught.value, Outer) == said
