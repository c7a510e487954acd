"""A process group of torch.distributed whose collectives are rounds of the job's summation services.

An all-reduce is what BytePS is made for.  The others are rounds to which not everybody gives, or whose answer not
everybody takes (`byteps.wire`), so that no byte travels in vain.  With n ranks and M the bytes of the larger side, a
rank sends and receives

    all_reduce (SUM, AVG)   M, M             reduce_scatter (SUM, AVG)   M, M/n
    broadcast               M (root), M      all_gather                  M/n, M
    all_reduce (another operation, or a type that services do not add)   M, (n-1)M

The names are those that torch calls, from Python and from C++, old and new.  A rank here is one of the group.
"""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Final

import torch
import torch.distributed as dist

from byteps.errors import BytePSError
from byteps.session import Session
from byteps.torch.parts import Part, Rounds, Step
from byteps.torch.work import Work, opaque
from byteps.wire import Op

Tensor = torch.Tensor
Tensors = Sequence[Tensor]
# The declarations of torch describe its own binding, with overloads that nothing calls.
_ProcessGroup: Any = dist.ProcessGroup
_UNSET: Final = timedelta(0)


@opaque
class Group(_ProcessGroup):  # type: ignore[misc]
    """What torch.distributed calls."""

    def __init__(self, session: Session, name: str, ranks: Sequence[int], rank: int, timeout: timedelta) -> None:
        """`ranks` are those of the job, in the order of the group's, `rank` is this process's in the group."""
        super().__init__(rank, len(ranks))
        self._rounds = Rounds(session, name, ranks, rank)
        self._timeout = timeout
        self._group_name = self._group_desc = ""

    # torch keeps names in back ends written in C++, of which there is none here.

    def getBackendName(self) -> str:  # noqa: N802
        return "byteps"

    def _set_group_name(self, name: str) -> None:
        self._group_name = name

    def _set_group_desc(self, text: str) -> None:
        self._group_desc = text

    def getGroupName(self) -> str:  # noqa: N802
        return self._group_name

    def getGroupDesc(self) -> str:  # noqa: N802
        return self._group_desc

    group_name = property(getGroupName)
    group_desc = property(getGroupDesc)

    def set_timeout(self, timeout: timedelta) -> None:
        self._timeout = timeout

    def shutdown(self) -> None:
        """Nothing: the job is left at the end of the program, or by byteps.shutdown()."""

    abort = shutdown

    # ---- reductions ----

    def allreduce(self, tensors: Tensors, opts: Any = None) -> Work:
        steps = [self._rounds.reduced("all_reduce", _operation(opts), each, each) for each in tensors]
        return self._start("all_reduce", steps, tensors, opts)

    allreduce_coalesced = allreduce

    def reduce(self, tensors: Tensors, opts: Any) -> Work:
        root = opts.rootRank
        here = self._rounds.rank == root
        steps = [self._rounds.reduced("reduce", _operation(opts), t, t if here else None, root) for t in tensors]
        return self._start("reduce", steps, tensors, opts)

    def reduce_scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any = None) -> Work:
        steps = []
        for output, row in zip(outputs, inputs, strict=True):
            for taker, given in enumerate(self._rounds.row("reduce_scatter", row)):
                place = output if taker == self._rounds.rank else None
                steps.append(self._rounds.reduced("reduce_scatter", _operation(opts), given, place, taker))
        return self._start("reduce_scatter", steps, outputs, opts)

    def reduce_scatter_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        pairs = list(zip(outputs, inputs, strict=True))
        rows = [self._rounds.rows("reduce_scatter", large.contiguous(), small) for small, large in pairs]
        return self.reduce_scatter([output.view(-1) for output in outputs], rows, opts)

    def reduce_scatter_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        return self.reduce_scatter_single_coalesced([output], [input], opts)

    reduce_scatter_tensor_coalesced = reduce_scatter_single_coalesced
    _reduce_scatter_base = reduce_scatter_single

    def barrier(self, opts: Any = None) -> Work:
        one = torch.ones(1, dtype=torch.int64)
        return self._start("barrier", [Step([Part("barrier", Op.SUM, one, one)])], [], opts)

    # ---- copies ----

    def broadcast(self, tensors: Tensors, opts: Any) -> Work:
        steps = [self._rounds.copied("broadcast", opts.rootRank, None, each, each) for each in tensors]
        return self._start("broadcast", steps, tensors, opts)

    def allgather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        steps = [
            self._rounds.copied("all_gather", giver, None, given, place)
            for row, given in zip(outputs, inputs, strict=True)
            for giver, place in enumerate(self._rounds.row("all_gather", row))
        ]
        return self._start("all_gather", steps, [place for row in outputs for place in row], opts)

    def allgather_coalesced(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any = None) -> Work:
        return self.allgather(list(zip(*outputs, strict=True)), inputs, opts)

    def all_gather_single_coalesced(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        rows = [self._rounds.rows("all_gather", *pair) for pair in zip(outputs, inputs, strict=True)]
        return self.allgather(rows, [given.reshape(-1) for given in inputs], opts)

    def all_gather_single(self, output: Tensor, input: Tensor, opts: Any = None) -> Work:
        return self.all_gather_single_coalesced([output], [input], opts)

    allgather_into_tensor_coalesced = all_gather_single_coalesced
    _allgather_base = all_gather_single

    def gather(self, outputs: Sequence[Tensors], inputs: Tensors, opts: Any) -> Work:
        here = self._rounds.rank == opts.rootRank
        steps = []
        for index, given in enumerate(inputs):
            places = self._rounds.row("gather", outputs[index]) if here else [None] * self._rounds.size
            for giver, place in enumerate(places):
                steps.append(self._rounds.copied("gather", giver, opts.rootRank, given, place))
        return self._start("gather", steps, [place for row in outputs for place in row], opts)

    def scatter(self, outputs: Tensors, inputs: Sequence[Tensors], opts: Any) -> Work:
        here = self._rounds.rank == opts.rootRank
        steps = []
        for index, place in enumerate(outputs):
            all_given = self._rounds.row("scatter", inputs[index]) if here else [None] * self._rounds.size
            for taker, given in enumerate(all_given):
                steps.append(self._rounds.copied("scatter", opts.rootRank, taker, given, place))
        return self._start("scatter", steps, outputs, opts)

    def alltoall(self, outputs: Tensors, inputs: Tensors, opts: Any = None) -> Work:
        rank, steps = self._rounds.rank, []
        all_given, places = self._rounds.row("all_to_all", inputs), self._rounds.row("all_to_all", outputs)
        for other, (given, place) in enumerate(zip(all_given, places, strict=True)):
            steps.append(self._rounds.copied("all_to_all", rank, other, given, place))
            steps.append(self._rounds.copied("all_to_all", other, rank, given, place))
        return self._start("all_to_all", steps, outputs, opts)

    def all_to_all_single(
        self, output: Tensor, input: Tensor, output_sizes: Sequence[int], input_sizes: Sequence[int], opts: Any = None
    ) -> Work:
        size = self._rounds.size
        places = torch.split(output, list(output_sizes) or [output.shape[0] // size] * size)
        all_given = torch.split(input, list(input_sizes) or [input.shape[0] // size] * size)
        return self.alltoall(places, all_given, opts)

    alltoall_base = all_to_all_single

    def send(self, tensors: Tensors, to: int, tag: int) -> Work:
        steps = [self._rounds.copied(f"message {tag}", self._rounds.rank, to, each, None) for each in tensors]
        return self._start("send", steps, tensors, None)

    def recv(self, tensors: Tensors, giver: int, tag: int) -> Work:
        steps = [self._rounds.copied(f"message {tag}", giver, self._rounds.rank, None, each) for each in tensors]
        return self._start("recv", steps, tensors, None)

    def recv_anysource(self, tensors: Tensors, tag: int) -> Work:
        raise BytePSError("backend byteps cannot receive from any rank; name the sender: recv(tensor, src)")

    def _start(self, kind: str, steps: Sequence[Step], result: Tensors, opts: Any) -> Work:
        timeout = self._timeout if opts is None or opts.timeout <= _UNSET else opts.timeout
        return self._rounds.start(kind, steps, result, timeout)


def _operation(opts: Any) -> str:
    return "SUM" if opts is None else str(opts.reduceOp.op.name)
