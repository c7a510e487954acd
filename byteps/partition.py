"""Where a tensor is cut: partitions are what is queued, sent, summed and answered.

A partition is small enough for pushes and pulls to overlap and for the shares of the summation services to come out
right, and large enough for the cost per message to vanish.  P partitions in sequence finish at about t_opt * (1 + 1/P),
so a thousand of them cost a thousandth; a message shorter than a millisecond on the wire costs more than it gains.
A cut never divides an element.  Offsets are Python integers: neither sizes nor counts have a limit.
Pure: no I/O, no clock, no randomness.
"""

DEFAULT_PARTITION_BYTES = 4_096_000  # the official BytePS's default, and the upper limit of `auto`
MIN_AUTO_PARTITION_BYTES = 64 * 1024


def auto_partition_bytes(total_nbytes: int, nic_bytes_per_s: float | None) -> int:
    """clamp(max(M/1024, B * 1 ms), 64 KiB, 4,096,000) for M bytes in the first registration and a NIC of B bytes/s.

    Without a known NIC rate the official default stands: nothing says that the wire is slow enough for less.
    """
    if nic_bytes_per_s is None:
        return DEFAULT_PARTITION_BYTES
    wanted = max(total_nbytes // 1024, int(nic_bytes_per_s * 1e-3))
    return min(max(wanted, MIN_AUTO_PARTITION_BYTES), DEFAULT_PARTITION_BYTES)


def split(nbytes: int, itemsize: int, partition_bytes: int) -> list[tuple[int, int]]:
    """The partitions of a tensor as (offset, nbytes), in order; all but the last are of one size, none is empty.

    That size is `partition_bytes` rounded down to whole elements, but at least one element.
    """
    if itemsize < 1:
        raise ValueError(f"itemsize is {itemsize}; an element has at least 1 byte")
    if partition_bytes < 1:
        raise ValueError(f"partition_bytes is {partition_bytes}; use at least 1, such as {DEFAULT_PARTITION_BYTES}")
    if nbytes < 0 or nbytes % itemsize:
        raise ValueError(f"nbytes is {nbytes}; use a multiple of the {itemsize} bytes of an element, 0 or more")
    step = max(partition_bytes // itemsize, 1) * itemsize
    return [(offset, min(step, nbytes - offset)) for offset in range(0, nbytes, step)]
