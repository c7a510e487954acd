"""Compressed sums in a real job; the checks are in programs/compressed.py."""

from jobs import launch

PARTITION = 1 << 20


def test_compressed_sums_have_the_bytes_and_the_values_of_their_codec():
    """With services on the workers' machines and on one of their own."""
    result = launch("compressed.py", str(PARTITION), workers=2, servers=1, BYTEPS_PARTITION_BYTES=str(PARTITION))
    assert result.code == 0, result.output
    assert result.output.count("right") == 2
