"""How a tensor lies in the memory that the workers of a machine share, what of it each adds up, and what travels.

Every worker has a slot, into which it copies its contribution; beside them is room for the result:

    slot 0 | slot 1 | ... | result | wide

All add up at the same time, each the same elements of all slots (reduce-scatter in shared memory), into the result.
The network takes the machine's sum from there and puts the answer there.  With n machines of L workers each:

    sum         the slots' sum travels as a sum
    average     of floats: the slots' sum divided by L travels as an average over n machines; of integers, whose floor
                is right only once, the sum travels, as int64 (`wide`) where the type is narrower, and is divided by
                n L at the end
    copy        the one contribution, which the machine that has it does not fetch again

16-bit floats are added up in fp32, as in the summation services, and rounded twice in all: what leaves the machine, so
that it stays as small as one worker's gradient, and the services' answer.
Pure: no I/O.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import msgspec

from byteps.wire import DTYPE_CODES, ITEM_NBYTES, Op, TensorSpec

PAGE_NBYTES: Final = 4096
_ALIGNED_NBYTES: Final = 64  # a cache line: two workers never write the same one
_NARROW: Final = ("uint8", "int32")
_INTEGERS: Final = (*_NARROW, "int64")


def refusal(spec: TensorSpec) -> str:
    """Why the workers of a machine cannot sum it together; empty if they can."""
    what = ""
    if spec.op is Op.ADD:
        what = "is changed by every worker on its own (asynchronous training, shared arrays)"
    elif spec.members:
        what = f"is of rank {', '.join(map(str, spec.members))} only"
    return what and (
        f"tensor {spec.name!r} {what}, but the workers of a machine are summed together here; start without "
        "--local-size, or with BYTEPS_LOCAL_REDUCTION=0: then every worker counts as a machine of its own"
    )


def divides_at_the_end(spec: TensorSpec) -> bool:
    """Whether the sum over all workers is divided by their number only when it is complete."""
    return spec.op is Op.AVERAGE and spec.dtype in _INTEGERS


def travelling(spec: TensorSpec) -> TensorSpec:
    """What the machine's sum is to the network."""
    if not divides_at_the_end(spec):
        return spec
    how = "summed as int64" if spec.dtype in _NARROW else "summed"
    return msgspec.structs.replace(spec, name=f"{spec.name} ({how})", dtype="int64", op=Op.SUM)


def part(numel: int, itemsize: int, index: int, count: int) -> tuple[int, int]:
    """The elements that worker `index` of `count` adds up: first, and behind the last."""
    step = max(_ALIGNED_NBYTES // itemsize, 1)
    blocks = -(-numel // step)
    return min(blocks * index // count * step, numel), min(blocks * (index + 1) // count * step, numel)


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where in its piece of shared memory a tensor has what, in bytes."""

    nbytes: int
    slots: int
    stride: int  # from one slot to the next
    wide_nbytes: int  # 0: the result is as wide as a slot

    def slot(self, index: int) -> slice:
        return slice(index * self.stride, index * self.stride + self.nbytes)

    @property
    def result(self) -> slice:
        return self.slot(self.slots)

    @property
    def wide(self) -> slice:
        """What travels, which is the result itself unless that is too narrow for it."""
        start = (self.slots + 1) * self.stride
        return slice(start, start + self.wide_nbytes) if self.wide_nbytes else self.result

    @property
    def total_nbytes(self) -> int:
        return (self.slots + 1) * self.stride + _aligned(self.wide_nbytes, self.alignment)

    @property
    def alignment(self) -> int:
        return PAGE_NBYTES if self.stride % PAGE_NBYTES == 0 else _ALIGNED_NBYTES


def layout(spec: TensorSpec, slots: int, *, by_page: bool = False) -> Layout:
    """`by_page`: no page has parts of two slots, so that each can be registered with a GPU."""
    wide = travelling(spec)
    return Layout(
        nbytes=spec.nbytes,
        slots=slots,
        stride=_aligned(spec.nbytes, PAGE_NBYTES if by_page else _ALIGNED_NBYTES),
        wide_nbytes=wide.nbytes if wide.dtype != spec.dtype else 0,
    )


def itemsize(spec: TensorSpec) -> int:
    return ITEM_NBYTES[DTYPE_CODES[spec.dtype]]


def _aligned(nbytes: int, step: int) -> int:
    return -(-nbytes // step) * step


def ranks_of(machines: Sequence[int], local_size: int) -> tuple[int, ...]:
    """The workers of these machines."""
    return tuple(machine * local_size + local for machine in machines for local in range(local_size))
