"""What a launch leaves behind: one JSON line with everything that analysis needs, and the rules for trusting it.

A *launch* is one start of fresh processes for one case.  Its record holds raw samples and raw counters; every derived
number (medians, goodput, ratios, verdicts) is computed later from records alone, so figures can be redrawn without
running anything.  A launch that failed is a record too, with the text of its error.

A record answers for a case (`done`) only if the case, the contender's version, the schema and a hash of the code that
the case exercises all agree and every check passed: the sum was exact, the links were as calibrated, and the machine
kept up.  `position` (where in its block the case ran) is kept in the record but is no part of the case's identity, so
that a contender added later does not make older measurements void.

Lines are appended with a single write to a file opened with O_APPEND: two runs that append at once do not mix bytes,
and a run that was killed leaves at most one truncated last line, which the reader reports and skips.  Besides the
appending and reading of such a file, this module does no I/O; it has no clock and no randomness.
"""

import hashlib
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import msgspec

SCHEMA_VERSION = 1

Provenance = Literal["paper", "theory", "simulated", "emulated", "measured"]
LATENCY_FACT = "latency_seconds"  # one way, between two idle machines
FidelityVerdict = Literal["good", "suspect", "cpu-bound", "links-off", "unknown"]


class RecordError(ValueError):
    """A record that this version cannot use; the text says what to do."""


class Case(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True):
    """One point of an experiment in one block: everything that decides what is executed."""

    experiment: str
    tier: str
    contender: str
    settings: dict[str, str]  # the contender's own knobs, e.g. {"partition": "auto"}
    n: int  # GPU machines (workers)
    k: int  # CPU machines (servers)
    nic_bytes_per_s: float  # shaped rate of every NIC, each way; 0 where no NIC is involved
    nbytes: int  # gradient bytes per worker, of what is sent here
    workload: str = "tensor"  # one tensor; "tensors:100": as many equal ones; else a model, e.g. "vgg16@fig4"
    scale: float = 1.0  # every tensor of the model was divided by this
    dilation: float = 1.0  # and its computation takes this many times as long
    warmups: int
    iterations: int  # timed iterations
    block: int
    position: int = 0  # order within the block; not part of the identity
    site: str = ""  # of a cluster of hosts: which one (`experiments.cluster.site_id`)
    # Of the machines that take part, where they differ: by gpu0, gpu1, ..., cpu0, ... in bytes/s each way
    nics: dict[str, float] = {}

    def __post_init__(self) -> None:
        if self.n < 1 or self.k < 0:
            raise ValueError(f"case has n = {self.n}, k = {self.k}: n must be at least 1 and k at least 0")
        if self.nbytes < 1 or self.iterations < 1 or self.warmups < 0:
            raise ValueError(
                f"case has nbytes = {self.nbytes}, iterations = {self.iterations}, warmups = {self.warmups}: "
                "sizes and timed iterations must be at least 1, warm-ups at least 0"
            )

    @property
    def title(self) -> str:
        """The case in a few words, for progress lines and errors."""
        knobs = "".join(f" {key}={value}" for key, value in sorted(self.settings.items()))
        machines = f" n={self.n} k={self.k}" if self.nic_bytes_per_s else ""
        workload = f" {self.workload}" if self.workload != "tensor" else ""
        return f"{self.experiment} {self.contender}{workload}{machines}{knobs} block={self.block}"


HEADER_BYTES = 66  # of a packet: 14 Ethernet, 20 IP, 32 TCP with timestamps


class NicCounters(msgspec.Struct, frozen=True, kw_only=True):
    """One host's NIC as the kernel counts it at one moment; a GSO packet is one packet with one header."""

    tx_bytes: int
    rx_bytes: int
    tx_packets: int
    rx_packets: int
    tx_wire_bytes: int  # with every header, from the shaper
    rx_wire_bytes: int
    dropped_packets: int


class NicBytes(msgspec.Struct, frozen=True, kw_only=True):
    """One host's NIC before and after the timed iterations."""

    before: NicCounters
    after: NicCounters

    @property
    def payload_sent(self) -> int:
        """Without packet headers: what the plan counts."""
        packets = self.after.tx_packets - self.before.tx_packets
        return self.after.tx_bytes - self.before.tx_bytes - HEADER_BYTES * packets

    @property
    def payload_received(self) -> int:
        packets = self.after.rx_packets - self.before.rx_packets
        return self.after.rx_bytes - self.before.rx_bytes - HEADER_BYTES * packets


class OracleCheck(msgspec.Struct, frozen=True, kw_only=True):
    """The sum against a float64 oracle, over all ranks and iterations, warm-ups included."""

    max_error: float
    tolerance: float
    checked: int  # results compared
    passed: bool


class Fidelity(msgspec.Struct, frozen=True, kw_only=True):
    """Did the machine keep up with the network it emulated?"""

    verdict: FidelityVerdict = "unknown"
    canary_p99_seconds: float = -1.0  # lateness of a 1 ms sleeper; -1 where it did not run
    runqueue_share: float = -1.0  # time the contender's processes waited for a core / wall time, worst process
    reason: str = ""


class Calibration(msgspec.Struct, frozen=True, kw_only=True):
    """All NICs at once, both ways: achieved / expected goodput of the flows."""

    least_fraction: float
    greatest_fraction: float
    seconds: float
    passed: bool


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One launch."""

    schema: int
    case: Case
    case_hash: str
    code_hash: str
    contender_version: str
    provenance: Provenance
    started_at: str  # UTC, ISO 8601
    startup_seconds: float = 0.0  # start of the processes until all are ready, apart from the samples
    warmup_seconds: list[float] = []
    seconds: list[float] = []  # per timed iteration: the maximum over ranks
    nics: dict[str, NicBytes] = {}
    oracle: OracleCheck | None = None
    cpu_seconds: float = 0.0  # of the contender's processes during the timed iterations
    cpu_seconds_by_host: dict[str, float] = {}
    idle_share: float = 0.0  # of the whole machine during the timed iterations
    fidelity: Fidelity = Fidelity()
    calibration_before: Calibration | None = None
    calibration_after: Calibration | None = None
    congestion_control: str = ""
    facts: dict[str, str] = {}  # what the contender says about itself, e.g. the partition size in force
    versions: dict[str, str] = {}
    git_commit: str = ""
    host: dict[str, str] = {}
    error: str = ""

    @property
    def correct(self) -> bool:
        """The launch ended and every sum was right; what is computed sums nothing."""
        computed = self.provenance in ("simulated", "theory")
        right = computed or (self.oracle is not None and self.oracle.passed)
        return not self.error and bool(self.seconds) and right

    @property
    def faithful(self) -> bool:
        """The numbers say something about the network and not about an overloaded machine."""
        return self.provenance != "emulated" or self.fidelity.verdict in ("good", "suspect")

    @property
    def verified(self) -> bool:
        """May enter figures, ratios and claims."""
        return self.correct and self.faithful


def canonical_json(value: object) -> bytes:
    """The one spelling of a value that hashes are taken of: sorted keys, no spaces."""
    return msgspec.json.encode(value, order="sorted")


def case_hash(case: Case) -> str:
    """Identity of a case: SHA-256 of its canonical JSON without `position` and without what equals its default.

    Records of before a field was added so keep their hash.  Defaults are left out here, by value: the encoder's
    `omit_defaults` compares objects, and a 1.0 that was read from a file is not the 1.0 of the class.
    """
    defaults = {
        field.name: field.default if field.default_factory is msgspec.NODEFAULT else field.default_factory()
        for field in msgspec.structs.fields(Case)
    }
    fields = {name: value for name, value in msgspec.to_builtins(case).items() if value != defaults[name]}
    fields.pop("position", None)
    return hashlib.sha256(canonical_json(fields)).hexdigest()


def code_hash(sources: Iterable[tuple[str, bytes]]) -> str:
    """Hash of named sources, independent of their order."""
    digest = hashlib.sha256()
    for name, content in sorted(sources):
        digest.update(f"{name}\0{len(content)}\0".encode())
        digest.update(content)
    return digest.hexdigest()


def done(record: Record, case: Case, *, contender_version: str, code: str) -> bool:
    """Does this record answer for that case, so that resuming may skip it?"""
    return record.verified and answers(record, case, contender_version=contender_version, code=code)


def answers(record: Record, case: Case, *, contender_version: str, code: str) -> bool:
    """Is it of that case and of the code as it is now, whatever came of it?"""
    return (
        record.schema == SCHEMA_VERSION
        and record.case_hash == case_hash(case)
        and record.contender_version == contender_version
        and record.code_hash == code
    )


def append(path: Path, record: Record) -> None:
    """Add one line in one write; repairs a truncated last line (of a killed run) by ending it first."""
    path.parent.mkdir(parents=True, exist_ok=True)
    line = msgspec.json.encode(record) + b"\n"
    handle = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
    try:
        size = os.fstat(handle).st_size
        if size and os.pread(handle, 1, size - 1) != b"\n":
            line = b"\n" + line
        view = memoryview(line)
        while view:
            view = view[os.write(handle, view) :]
        os.fsync(handle)
    finally:
        os.close(handle)


class BadLine(msgspec.Struct, frozen=True, kw_only=True):
    """A line that was skipped, where it is and why."""

    path: str
    line: int
    reason: str

    def __str__(self) -> str:
        return f"{self.path}:{self.line}: skipped, {self.reason}"


class _Head(msgspec.Struct):
    schema: int


def parse_line(line: bytes) -> Record:
    """One line to one record; a `RecordError` says why it cannot be used."""
    try:
        head = msgspec.json.decode(line, type=_Head)
    except msgspec.MsgspecError as error:
        raise RecordError(f"not a record: {error}") from error
    if head.schema != SCHEMA_VERSION:
        raise RecordError(
            f"record schema {head.schema}, this version reads schema {SCHEMA_VERSION}: "
            "use the version of the suite that wrote it, or move the file away and run again"
        )
    try:
        record = msgspec.json.decode(line, type=Record)
    except (msgspec.MsgspecError, ValueError) as error:
        raise RecordError(f"damaged record: {error}") from error
    if record.case_hash != case_hash(record.case):
        raise RecordError("damaged record: its case does not match its case hash")
    return record


def read(path: Path) -> tuple[list[Record], list[BadLine]]:
    """All usable records of a file, and a report of every line that was not."""
    records: list[Record] = []
    bad: list[BadLine] = []
    if not path.exists():
        return records, bad
    for number, line in enumerate(path.read_bytes().split(b"\n"), start=1):
        if not line.strip():
            continue
        try:
            records.append(parse_line(line))
        except RecordError as error:
            bad.append(BadLine(path=str(path), line=number, reason=str(error)))
    return records, bad


def latest(records: Iterable[Record]) -> list[Record]:
    """One record per case: the newest, except that a failure never displaces a verified one of the same code."""
    kept: dict[str, Record] = {}
    for record in records:
        old = kept.get(record.case_hash)
        if old and old.verified and not record.verified and old.code_hash == record.code_hash:
            continue
        kept[record.case_hash] = record
    return list(kept.values())
