"""Names of calls that have none: the same on every rank, and few."""

from hypothesis import given
from hypothesis import strategies as st

from byteps.torch.streams import UNDER_WAY, Streams
from byteps.wire import Op, TensorSpec

CALLS = st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from([(2,), (3,), (2, 1)])), max_size=60)


def named(streams: Streams, stream: str, shape: tuple[int, ...], dtype: str = "float32") -> TensorSpec:
    return streams.name(stream, shape, dtype, Op.SUM, ())


@given(CALLS)
def test_a_name_has_one_shape_and_every_kind_has_few_names(calls):
    streams = Streams("world")
    specs = [named(streams, stream, shape) for stream, shape in calls]
    assert {(spec.name, spec.shape) for spec in specs} == {
        (s.name, s.shape) for s in {spec.name: spec for spec in specs}.values()
    }
    for kind in set(calls):
        names = [spec.name for call, spec in zip(calls, specs, strict=True) if call == kind]
        assert len(set(names)) == min(len(names), UNDER_WAY)
        assert all(name == names[index % UNDER_WAY] for index, name in enumerate(names))


@given(CALLS, CALLS)
def test_streams_do_not_depend_on_one_another(calls, others):
    """A rank that takes part in more than another names what they share alike."""
    alone, among = Streams("world"), Streams("world")
    mine = [named(alone, stream, shape) for stream, shape in calls]
    mixed = []
    for call, other in zip(calls, [*others, *calls], strict=False):
        named(among, "c", other[1])
        mixed.append(named(among, *call))
    assert mine == mixed


def test_ranks_whose_shapes_differ_at_a_place_give_one_name_two_shapes():
    one, two = Streams("world"), Streams("world")
    for streams in (one, two):
        named(streams, "all_reduce", (5,))
    assert named(one, "all_reduce", (6,)).name == named(two, "all_reduce", (7,)).name == "world: all_reduce #2"


def test_groups_kinds_types_and_members_are_told_apart():
    streams = Streams("world")
    specs = [
        named(streams, "all_reduce", (5,)),
        named(Streams("other"), "all_reduce", (5,)),
        named(streams, "broadcast", (5,)),
        named(streams, "all_reduce", (5,), "float64"),
        streams.name("all_reduce", (5,), "float32", Op.AVERAGE, ()),
        streams.name("all_reduce", (5,), "float32", Op.SUM, (0, 1)),
    ]
    assert len({spec.name for spec in specs}) == len(specs)
