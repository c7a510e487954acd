"""Records of runs that never took place, for the tests of what is derived from records."""

import msgspec
from test_record import make_case, make_record

from byteps import theory
from experiments import analysis, catalogue, curves, local, record, traffic
from experiments.curves import Point
from experiments.record import Case, NicBytes, NicCounters, Record

RATE = 25e6  # 200 Mbit/s
PAYLOAD_RATE = RATE * theory.TCP_PAYLOAD_FRACTION
SLOW_NIC = 1.25e9  # 10 Gbit/s, of the cluster that a replay stands for
HOST = {"cores": "2", "cpu": "test", "memory_bytes": "1", "system": "test"}
NOT_INSTALLED = "not run: It is not installed; install it with: make it"
KS = (0, 1, 2, 4, 8)
MODELS = ("resnet50", "vgg16", "ugatit", "transformer_big", "bert_large", "gpt2")


def made_case(contender: str, **changes: object) -> Case:
    fields = {"contender": contender, "settings": {}, "tier": "reproduce", "n": 8, "k": 0, "nbytes": 2**24}
    return make_case(**{**fields, "nic_bytes_per_s": RATE, **changes})


def made(contender: str, seconds: float, **changes: object) -> Record:
    """A launch whose iterations all took that long; `record_` fields of the record, others of the case."""
    own = {key.removeprefix("record_"): value for key, value in changes.items() if key.startswith("record_")}
    case = made_case(contender, **{key: value for key, value in changes.items() if not key.startswith("record_")})
    cpu = {f"gpu{i}": seconds / 10 for i in range(case.n)}
    fields = {"seconds": [seconds] * 3, "host": HOST, "cpu_seconds_by_host": cpu, "warmup_seconds": [2 * seconds]}
    return make_record(case, **{**fields, **own})


def not_run(contender: str, **changes: object) -> Record:
    """What a contender leaves that is not installed."""
    return make_record(made_case(contender, **changes), seconds=[], oracle=None, error=NOT_INSTALLED)


def failed(contender: str, **changes: object) -> Record:
    return make_record(made_case(contender, **changes), seconds=[], oracle=None, error="worker 1 exited 1\nTraceback")


def loaded(experiment: str, records: list[Record], *expected: str) -> analysis.Loaded:
    return analysis.Loaded(
        experiment=experiment,
        tier="reproduce" if records else "",
        source="raw" if records else "none",
        records=records,
        attempts=records,
        bad=[],
        expected=expected,
    )


def counters(nbytes: int) -> NicCounters:
    """Of a NIC that sent and received that much payload."""
    packets = nbytes // 16384
    total = nbytes + packets * record.HEADER_BYTES
    return NicCounters(
        tx_bytes=total,
        rx_bytes=total,
        tx_packets=packets,
        rx_packets=packets,
        tx_wire_bytes=0,
        rx_wire_bytes=0,
        dropped_packets=0,
    )


def trained(case: Case, *, loss: float = 0.1, speeds: tuple[float, ...] = (8.0, 8.0, 8.0, 3.0)) -> Record:
    """A training whose loss falls from 4 in a straight line over 12 s and 80 steps."""
    curve = [
        Point(seconds=12.0 * part, epochs=9 * part, step=int(80 * part), loss=4 + (loss - 4) * part)
        for part in (0, 0.5, 1)
    ]
    facts = {
        curves.CURVE: msgspec.json.encode(curve).decode(),
        curves.SPEEDS: msgspec.json.encode(speeds).decode(),
        curves.STEPS: "[80, 80, 80, 80]",
    }
    nics = {f"gpu{rank}": NicBytes(before=counters(0), after=counters(80 << 14)) for rank in range(case.n)}
    return make_record(case, seconds=[12.0], facts=facts, nics=nics)


def summed_locally(case: Case) -> Record:
    """As fast as copies on this machine; on NICs every further worker costs 2 % of the time, and no bytes."""
    workers = local.local_size(case)
    if case.nic_bytes_per_s:
        nics = {f"gpu{rank}": NicBytes(before=counters(0), after=counters(30 << 20)) for rank in range(case.n)}
        return make_record(case, seconds=[0.5 + 0.01 * (workers - 1)], nics=nics)
    copied = local.moved_nbytes(workers, case.nbytes) / 2
    return make_record(case, seconds=[0.1], provenance="measured", facts={local.COPY: repr(copied / 0.1)})


def planned_nics(case: Case, factor: float = 1.0) -> dict[str, NicBytes]:
    """Counters as if BytePS's plan had been carried out `factor` times."""
    planned = traffic.planned_payload(make_record(case)) if case.contender == "byteps" else {}
    return {
        host: NicBytes(before=counters(0), after=counters(int(nbytes * case.iterations * factor)))
        for host, nbytes in planned.items()
    }


def figure_12(fraction: float = 0.96, blocks: int = 2, **changes: object) -> list[Record]:
    """A whole Figure 12 in which BytePS reaches `fraction` of the optimum and the ring 0.97 of its bound.

    `changes` are of the records.
    """
    result = []
    for block in range(blocks):
        for contender, k in [("byteps", k) for k in KS] + [("gloo-ring", 0)]:
            settings = {"partition": "auto"} if contender == "byteps" else {}
            bound = theory.byteps_seconds(2**26, 8, k, PAYLOAD_RATE)
            case = made_case(contender, settings=settings, k=k, nbytes=2**26, block=block)
            own = {f"record_{key}": value for key, value in {"nics": planned_nics(case), **changes}.items()}
            seconds = bound / (fraction if contender == "byteps" else 0.97)
            result.append(made(contender, seconds, settings=settings, k=k, nbytes=2**26, block=block, **own))
    return result


def replayed(
    contender: str, factor: float, model: str, *, real_nic: float = 0.0, scale: float = 256.0, **changes: object
) -> Record:
    """A replay that took `factor` times as long as its computation."""
    rate = float(changes.get("nic_bytes_per_s", RATE))  # type: ignore[arg-type]
    nbytes, dilation = catalogue.model_size(model, scale, rate, real_nic)
    fields = {"workload": model, "nbytes": nbytes, "scale": scale, "dilation": dilation, **changes}
    of_case = {key: value for key, value in fields.items() if not key.startswith("record_")}
    return made(contender, factor * analysis.linear_seconds(made_case(contender, **of_case)), **fields)
