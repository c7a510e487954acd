"""What parameters are called."""

import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")

from byteps.torch.names import name_parameters  # noqa: E402


def groups(*sizes: int) -> list[dict]:
    numbers = iter(range(1, 100))
    return [{"params": [torch.nn.Parameter(torch.empty(next(numbers))) for _ in range(size)]} for size in sizes]


def test_unnamed_parameters_go_by_their_place_which_is_theirs_alone():
    two = groups(2, 3)
    named = name_parameters(two, None)
    assert list(named) == [f"group {g}/parameter {i}" for g, count in enumerate((2, 3)) for i in range(count)]
    assert [id(p) for p in named.values()] == [id(p) for group in two for p in group["params"]]


def test_names_of_others_are_left_out_and_the_order_is_that_of_the_names():
    ((a, b, c),) = (group["params"] for group in groups(3))
    other = torch.empty(9)
    named = name_parameters([{"params": [a, b, c]}], [("c", c), ("other", other), ("a", a), ("b", b)])
    assert list(named) == ["c", "a", "b"]
    assert list(name_parameters([{"params": [a]}], {"a": a, "other": other})) == ["a"]


def test_a_shared_parameter_goes_by_its_first_name():
    ((a,),) = (group["params"] for group in groups(1))
    assert list(name_parameters([{"params": [a]}], [("embedding", a), ("head", a)])) == ["embedding"]


def test_parameters_without_a_name_are_listed_with_the_names_that_fit_nothing():
    (group,) = groups(7)
    with pytest.raises(ValueError, match="no name for 6 of the optimizer's 7 parameters") as caught:
        name_parameters([group], [("first", group["params"][0]), ("stranger", torch.empty(1))])
    text = str(caught.value)
    assert "group 0/parameter 1 (2,), " in text
    assert "and 1 more" in text
    assert "'stranger', which the optimizer does not have" in text


@pytest.mark.parametrize("wrong", [["weight"], [("a", 1)], [("a", torch.empty(1), 2)]])
def test_what_is_no_pair_of_name_and_parameter_is_refused(wrong):
    with pytest.raises(ValueError, match=r"pass model.named_parameters\(\)"):
        name_parameters(groups(1), wrong)


def test_a_name_that_two_parameters_have_is_refused():
    ((a, b),) = (group["params"] for group in groups(2))
    with pytest.raises(ValueError, match="the name 'weight' twice"):
        name_parameters([{"params": [a, b]}], [("weight", a), ("weight", b)])
