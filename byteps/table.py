"""The table of tensors: numbers, cuts and owners, the same on every worker because the scheduler alone makes it.

Names are registered in batches, each sorted by name, so the order in which a worker happened to create its tensors
does not matter: same batches, same table.  A batch is placed as one whole, in the global order of its partitions
(tensor by tensor, offset by offset), so that every summation service ends within one partition of its share of the
batch.  Pure: no I/O, no clock, no randomness.
"""

from collections.abc import Iterable, Sequence
from typing import Literal

from byteps.assign import hash64, hash_slot, place
from byteps.partition import auto_partition_bytes, split
from byteps.wire import DTYPE_CODES, ITEM_NBYTES, TensorEntry, TensorSpec, make_key

Placement = Literal["exact", "hash"]


class TensorTable:
    """All tensors registered so far."""

    def __init__(
        self,
        *,
        shares: Sequence[float],
        processes: Sequence[int],
        num_workers: int,
        partition: int | Literal["auto"],
        placement: Placement,
        nic_bytes_per_s: float | None,
    ) -> None:
        """`shares` and number of summation `processes` by machine (Shares.all); owners are processes, by machine."""
        self._shares = [share / count for share, count in zip(shares, processes, strict=True) for _ in range(count)]
        self._processes = tuple(processes)
        self._num_workers = num_workers
        self._partition = partition
        self._placement = placement
        self._nic_bytes_per_s = nic_bytes_per_s
        self.entries: dict[str, TensorEntry] = {}
        self.names: list[str] = []  # by number

    def register(self, specs: Iterable[TensorSpec]) -> tuple[TensorEntry, ...]:
        """Number, cut and place the names that are new; they must agree with each other already."""
        new = {spec.name: spec for spec in specs if spec.name not in self.entries}
        batch = [new[name] for name in sorted(new)]
        if not batch:
            return ()
        if self._partition == "auto":  # fixed by the first registration
            self._partition = auto_partition_bytes(sum(spec.nbytes for spec in batch), self._nic_bytes_per_s)
        cuts = []
        for spec in batch:
            itemsize = ITEM_NBYTES[DTYPE_CODES[spec.dtype]]
            cuts.append((max(self._partition // itemsize, 1) * itemsize, split(spec.nbytes, itemsize, self._partition)))
        sizes = [nbytes for _, parts in cuts for _, nbytes in parts]
        first = len(self.names)
        if self._placement == "hash":
            counts = enumerate((len(parts) for _, parts in cuts), start=first)
            owners = [self._owner_by_hash(make_key(number, part)) for number, count in counts for part in range(count)]
        else:
            owners = place(sizes, self._shares)
        entries = []
        position = 0
        for index, (spec, (cut_nbytes, parts)) in enumerate(zip(batch, cuts, strict=True)):
            entries.append(
                TensorEntry(
                    spec=spec,
                    number=first + index,
                    cut_nbytes=cut_nbytes,
                    owners=tuple(owners[position : position + len(parts)]),
                )
            )
            position += len(parts)
            self.entries[spec.name] = entries[-1]
            self.names.append(spec.name)
        return tuple(entries)

    def _owner_by_hash(self, key: int) -> int:
        machine = hash_slot(key, self._num_workers, len(self._processes) - self._num_workers)
        # The low bits chose the machine; independent high bits choose among its processes.
        return sum(self._processes[:machine]) + (hash64(key) >> 40) % self._processes[machine]
