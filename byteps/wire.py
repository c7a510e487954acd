"""What travels: the binary frames between workers and summation services, and the control messages of the scheduler.

Data frames.  A frame is one 24-byte header, little endian, and its payload:

    kind u8 | dtype u8 | op u8 | flags u8 | members u16 | round u16 | key u64 | nbytes u64

PUSH and PULL carry one partition.  PUSH_BATCH and PULL_BATCH carry many small ones ("small tensors travel together"):
`round` holds their count, `nbytes` the length of the body, which is a table of such headers followed by the payloads
in the same order.  A key is `tensor number << 32 | partition index`, so 2^32 partitions of a tensor fit and no two
tensors meet.

A round is over when `members` workers (0: all) have pushed; rounds count modulo 2^16.  A PUSH of 0 bytes contributes
nothing, like zeros, and its worker still gets the answer; one with DECLINED gets an answer of 0 bytes.  So a broadcast
is one push with bytes, a reduce-scatter one tensor per rank that only this rank does not decline, and every byte
crosses the network once.

ADD is for weights that stay at the service (`staleness`): rounds are each worker's own, `members` is the staleness
bound plus 1 (0: none), and the answer goes to the worker that pushed, with the weights as they are then.

A tensor may have a codec (`byteps.codecs`).  Its partitions of more than SMALL bytes then travel encoded, with the flag
ENCODED and a prefix before the codec's bytes, from which the service learns all that it needs to know:

    codec u8 | 3 zeros | elements u32 | ratio f64 (0: the codec has none)

`dtype` is then the tensor's.  The answer is encoded in the same way.  A codec whose payloads add up like numbers is
no matter of the service: they travel as partitions of a float32 tensor, without flag and prefix.  Smaller partitions
(biases, the ends of tensors) travel as they are, together.

Control messages are msgpack-encoded msgspec structs behind a u32 length: typed on arrival, bounded, never unpickled.
Pure: no I/O.
"""

import enum
import struct
from typing import Final

import msgspec

from byteps.errors import BytePSError

PROTOCOL_VERSION: Final = 4
HEADER: Final = struct.Struct("<BBBBHHQQ")
HEADER_NBYTES: Final = HEADER.size
DECLINED: Final = 1
ENCODED: Final = 2
CODING: Final = struct.Struct("<BxxxId")
ROUNDS: Final = 1 << 16
MAX_MEMBERS: Final = (1 << 16) - 1
MAX_STALENESS: Final = MAX_MEMBERS - 1
MAX_CONTROL_NBYTES: Final = 64 << 20
MAX_PARTITION_NBYTES: Final = 1 << 30
# A batch gathers partitions of at most SMALL bytes until BATCH bytes or MAX_BATCH_COUNT entries are together.
SMALL_NBYTES: Final = 16 << 10
BATCH_NBYTES: Final = 64 << 10
MAX_BATCH_COUNT: Final = 2048
MAX_BATCH_BODY_NBYTES: Final = MAX_BATCH_COUNT * HEADER_NBYTES + BATCH_NBYTES + SMALL_NBYTES


class Kind(enum.IntEnum):
    """What a data frame is."""

    PUSH = 1
    PULL = 2
    PUSH_BATCH = 3
    PULL_BATCH = 4


class Op(enum.IntEnum):
    """What a round returns: the sum over its workers, the sum divided by their number (integers: floor), the one
    contribution that has bytes, bit by bit, or the newest weights, to which it was added."""

    SUM = 0
    AVERAGE = 1
    COPY = 2
    ADD = 3


# Wire codes of the element types; the position is the code and never changes.
DTYPES: Final = ("float32", "float64", "float16", "bfloat16", "int32", "int64", "uint8")
DTYPE_CODES: Final = {name: code for code, name in enumerate(DTYPES)}
ITEM_NBYTES: Final = (4, 8, 2, 2, 4, 8, 1)


class ProtocolError(BytePSError):
    """A peer sent something this protocol does not allow; the connection is closed."""


def make_key(number: int, part: int) -> int:
    return number << 32 | part


class TensorSpec(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A tensor as its worker declares it; identity is the name."""

    name: str
    shape: tuple[int, ...]
    dtype: str
    op: Op
    members: tuple[int, ...] = ()  # the ranks that take part in it; none: all
    staleness: int = -1  # op ADD: how many clocks a worker may be ahead of the slowest; -1: any number
    codec: str = ""  # its spelling (`byteps.codecs`); none: numbers travel as they are

    @property
    def numel(self) -> int:
        count = 1
        for extent in self.shape:
            count *= extent
        return count

    @property
    def nbytes(self) -> int:
        return self.numel * ITEM_NBYTES[DTYPE_CODES[self.dtype]]

    def describe(self) -> str:
        of = f" of rank {', '.join(map(str, self.members))}" if self.members else ""
        within = f" within {self.staleness} clocks" if self.staleness >= 0 else ""
        by = f" by codec {self.codec}" if self.codec else ""
        return f"shape {self.shape} {self.dtype} {self.op.name.lower()}{of}{within}{by}"


class TensorEntry(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A registered tensor: its number, how it is cut, and which summation service owns each partition."""

    spec: TensorSpec
    number: int
    cut_nbytes: int
    owners: tuple[int, ...]


class ServiceInfo(msgspec.Struct, frozen=True, kw_only=True, array_like=True):
    """A summation service: what to call it, where it listens, and the worker whose machine it shares (or -1)."""

    name: str
    address: str
    share: float
    worker: int


# ---- to the scheduler ----


class Register(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """First message on a control connection."""

    role: str  # "worker" | "server" | "service" (the summation service of a worker's machine)
    num_workers: int
    num_servers: int
    version: str
    rank: int = -1  # worker: the wanted machine or -1; service: its machine; server: the wanted number or -1
    local_rank: int = 0  # worker: which of those of its machine; 0 alone sends gradients
    local_size: int = 1  # worker: how many of a machine are summed there
    machine: str = ""  # the same for all processes of one server machine
    process: int = 0  # which of `processes` summation processes of that machine this is
    processes: int = 1
    address: str = ""  # where it listens for workers
    nic_bytes_per_s: float = 0.0  # 0: unknown
    local: bool = False  # the address is a loopback address


class Ready(msgspec.Struct, frozen=True, tag=True):
    """This worker is connected to every summation service."""


class Declare(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """New names of this worker.  A barrier waits for the same name set from every worker."""

    specs: tuple[TensorSpec, ...]
    barrier: bool


class Lost(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A data connection to `peer` ended without goodbye."""

    peer: str


class Waiting(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A summation service waits for contributions: tensor number, seconds so far, machines that have contributed.

    From a worker: inside its machine, with the tensor's name and the ranks that have contributed there.
    """

    number: int = -1
    name: str = ""
    seconds: float
    ready: tuple[int, ...]


class Violation(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A peer broke the protocol; final for the job."""

    text: str


class Goodbye(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A leave: in order, or with tensors still under way, or because of an exception that ended the program."""

    outstanding: int
    error: str = ""


class Heartbeat(msgspec.Struct, frozen=True, tag=True):
    """Still alive; both ways."""


# ---- from the scheduler ----


class StartServices(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """To a worker: your machine is `rank`; start its summation service, it has a share."""

    rank: int


class Plan(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The job: which machine you are, and all summation services in placement order."""

    rank: int
    num_workers: int  # machines
    local_size: int = 1  # workers of each, summed there
    services: tuple[ServiceInfo, ...]
    job: str


class Go(msgspec.Struct, frozen=True, tag=True):
    """Everybody is connected."""


class Table(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Newly registered tensors; `barrier` says that it also releases a declare()."""

    entries: tuple[TensorEntry, ...]
    barrier: bool


class Notice(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A line for the user."""

    text: str


class Departed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """To the services: this worker left in order; nothing can be summed any more."""

    rank: int


class Failed(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The job is over; `kind` is a key of errors.KINDS."""

    kind: str
    text: str


class Finish(msgspec.Struct, frozen=True, tag=True):
    """Every worker said goodbye."""


# ---- on a data connection, after authentication ----


class Hello(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Which worker of which job this connection belongs to."""

    rank: int
    job: str


Message = (
    Register
    | Ready
    | Declare
    | Lost
    | Waiting
    | Violation
    | Goodbye
    | Heartbeat
    | StartServices
    | Plan
    | Go
    | Table
    | Notice
    | Departed
    | Failed
    | Finish
    | Hello
)
_DECODER: Final = msgspec.msgpack.Decoder(Message)
_ENCODER: Final = msgspec.msgpack.Encoder()
LENGTH: Final = struct.Struct("<I")


def encode_message(message: Message) -> bytes:
    """Length and body, ready to send."""
    body = _ENCODER.encode(message)
    return LENGTH.pack(len(body)) + body


def decode_message(body: bytes | bytearray | memoryview) -> Message:
    """The typed message, or ProtocolError."""
    try:
        return _DECODER.decode(body)
    except (msgspec.DecodeError, msgspec.ValidationError) as error:
        raise ProtocolError(f"not a control message of protocol {PROTOCOL_VERSION}: {error}") from None
