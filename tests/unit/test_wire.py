import contextlib
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps.wire import (
    DECLINED,
    DTYPES,
    HEADER,
    HEADER_NBYTES,
    LENGTH,
    Declare,
    Failed,
    Goodbye,
    Heartbeat,
    Op,
    Plan,
    ProtocolError,
    Register,
    ServiceInfo,
    Table,
    TensorEntry,
    TensorSpec,
    Waiting,
    decode_message,
    encode_message,
    make_key,
)

SPECS = st.builds(
    TensorSpec,
    name=st.text(max_size=20),
    shape=st.lists(st.integers(0, 2**40), max_size=4).map(tuple),
    dtype=st.sampled_from(DTYPES),
    op=st.sampled_from(Op),
    members=st.lists(st.integers(0, 999), max_size=4).map(tuple),
    staleness=st.integers(-1, 999),
    codec=st.sampled_from(["", "onebit", "topk:0.01"]),
)
ENTRIES = st.builds(
    TensorEntry,
    spec=SPECS,
    number=st.integers(0, 2**31),
    cut_nbytes=st.integers(1, 2**30),
    owners=st.lists(st.integers(0, 200), max_size=9).map(tuple),
)
MESSAGES = st.one_of(
    st.builds(
        Register,
        role=st.sampled_from(["worker", "server", "service"]),
        num_workers=st.integers(1, 999),
        num_servers=st.integers(0, 999),
        version=st.text(max_size=9),
        rank=st.integers(-1, 999),
    ),
    st.builds(Declare, specs=st.lists(SPECS, max_size=3).map(tuple), barrier=st.booleans()),
    st.builds(Table, entries=st.lists(ENTRIES, max_size=3).map(tuple), barrier=st.booleans()),
    st.builds(Waiting, number=st.integers(0, 2**31), seconds=st.floats(0, 1e6), ready=st.tuples(st.integers(0, 99))),
    st.builds(Failed, kind=st.text(max_size=9), text=st.text()),
    st.builds(Goodbye, outstanding=st.integers(0, 99), error=st.text(max_size=9)),
    st.just(Heartbeat()),
    st.builds(
        Plan,
        rank=st.integers(-1, 99),
        num_workers=st.integers(1, 99),
        services=st.tuples(
            st.builds(ServiceInfo, name=st.text(), address=st.text(), share=st.floats(0, 1), worker=st.just(-1))
        ),
        job=st.text(max_size=9),
    ),
)


@given(MESSAGES)
def test_messages_survive_the_wire(message):
    data = encode_message(message)
    assert LENGTH.unpack(data[: LENGTH.size])[0] == len(data) - LENGTH.size
    assert decode_message(data[LENGTH.size :]) == message


@given(st.binary(max_size=200))
def test_garbage_is_a_protocol_error_and_nothing_else(data):
    with contextlib.suppress(ProtocolError):
        decode_message(data)


@given(MESSAGES, st.integers(0, 50))
def test_a_truncated_message_is_a_protocol_error(message, count):
    body = encode_message(message)[LENGTH.size :]
    if count < len(body):
        with pytest.raises(ProtocolError):
            decode_message(body[:count])


def test_the_header_is_24_bytes_little_endian_and_never_changes():
    assert HEADER_NBYTES == 24
    packed = HEADER.pack(1, 2, 1, DECLINED, 300, 7, make_key(3, 5), 2**33)
    assert packed == bytes([1, 2, 1, 1, 44, 1, 7, 0]) + struct.pack("<QQ", 3 << 32 | 5, 2**33)
    assert DTYPES == ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")


@given(*[st.integers(0, 2**31)] * 2, *[st.integers(0, 2**32 - 1)] * 2)
def test_no_two_partitions_share_a_key(number, other, part, another):
    assert (make_key(number, part) == make_key(other, another)) == ((number, part) == (other, another))


def test_sizes_are_64_bit():
    spec = TensorSpec(name="huge", shape=(2**20, 2**21), dtype="float64", op=Op.SUM)
    assert spec.nbytes == 2**44
    assert TensorSpec(name="scalar", shape=(), dtype="uint8", op=Op.SUM).nbytes == 1
    assert TensorSpec(name="empty", shape=(3, 0, 2), dtype="int64", op=Op.SUM).nbytes == 0
