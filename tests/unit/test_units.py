import pytest
from hypothesis import given
from hypothesis import strategies as st

from byteps.units import format_nbytes, format_rate, parse_nbytes, parse_rate, parse_seconds


@given(st.integers(0, 2**70))
def test_a_bare_number_of_bytes_is_itself(nbytes):
    assert parse_nbytes(nbytes) == parse_nbytes(str(nbytes)) == parse_nbytes(f"{nbytes}B") == nbytes


@given(st.integers(1, 1023), st.sampled_from(["KiB", "MiB", "GiB", "TiB"]))
def test_binary_sizes_survive_printing_and_reading(number, unit):
    text = f"{number} {unit}"
    assert format_nbytes(parse_nbytes(text)) == text


@given(st.integers(0, 2**60))
def test_printed_sizes_are_right_to_a_twentieth(nbytes):
    assert parse_nbytes(format_nbytes(nbytes)) == pytest.approx(nbytes, rel=0.05)


@given(st.floats(0.125, 1e15))
def test_printed_rates_are_right_to_a_twentieth(bytes_per_s):
    assert parse_rate(format_rate(bytes_per_s)) == pytest.approx(bytes_per_s, rel=0.05)


@pytest.mark.parametrize(
    "text, nbytes",
    [("4MB", 4 * 10**6), ("4MiB", 2**22), ("4096000", 4_096_000), (" 64 KiB ", 65536), ("1.5kB", 1500), ("0", 0)],
)
def test_sizes(text, nbytes):
    assert parse_nbytes(text) == nbytes


@pytest.mark.parametrize(
    "text", ["abc", "-1", -1, "4mb?", "4mb", "4Mb", "4M", "", "MB", "1.5", "0.3B", "1e6", "nan", "٤", True, "4 MB 4"]
)
def test_what_is_not_a_size_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="4096000, 4MB") as caught:
        parse_nbytes(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "text, bytes_per_s",
    [
        ("25Gbit", 3.125e9),
        ("200Mbit", 25e6),
        ("25Gbit/s", 3.125e9),
        ("1.5Gbps", 187.5e6),
        ("8 bit", 1),
        ("9kbit", 1125),
    ],
)
def test_rates(text, bytes_per_s):
    assert parse_rate(text) == bytes_per_s


@pytest.mark.parametrize("text", ["25", 25, 25.0, "25G", "25GB", "25Gib", "0Gbit", "-1Gbit", "fast", "", "inf"])
def test_what_is_not_a_rate_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="25Gbit") as caught:
        parse_rate(text)
    assert repr(text) in str(caught.value)


@pytest.mark.parametrize(
    "text, seconds",
    [("30", 30), ("30s", 30), ("500ms", 0.5), ("2min", 120), ("2 h", 7200), ("0.25", 0.25), ("10us", 1e-5)],
)
def test_durations(text, seconds):
    assert parse_seconds(text) == seconds


@pytest.mark.parametrize("text", ["soon", "-1", "1m", "", "inf", "nan"])
def test_what_is_not_a_duration_is_refused_with_an_example(text):
    with pytest.raises(ValueError, match="500ms"):
        parse_seconds(text)


@pytest.mark.parametrize(
    "nbytes, text",
    [(0, "0 B"), (5, "5 B"), (1000, "1 kB"), (4_096_000, "4.1 MB"), (64 << 20, "64 MiB"), (999_960, "1 MB")],
)
def test_printed_sizes(nbytes, text):
    assert format_nbytes(nbytes) == text


@pytest.mark.parametrize("bytes_per_s, text", [(25e6, "200 Mbit/s"), (3.125e9, "25 Gbit/s"), (187.5e6, "1.5 Gbit/s")])
def test_printed_rates(bytes_per_s, text):
    assert format_rate(bytes_per_s) == text


@pytest.mark.parametrize("parse, unit", [(parse_nbytes, "B"), (parse_rate, "Gbit"), (parse_seconds, "s")])
def test_numbers_that_no_float_holds_are_refused(parse, unit):
    assert 0 < float(parse("9" * 24 + unit)) < float("inf")
    for digits in (25, 400, 5000):
        with pytest.raises(ValueError, match="is not a"):
            parse("9" * digits + unit)
