"""The emulated cluster simulated: the same cases, NICs that cost time, and nothing else but the latency of the lab.

    byteps        every machine and every partition, as the runtime cuts, places and orders them, with its credit and
                  connections weighted by what they carry (`lowering.ordered_weighted`)
    horovod, gloo-ring    a ring in lockstep
    mxnet-sync    its keys, each whole on one server, in turn; those of a worker for one server go one by one, and a key
                  comes back as soon as all workers' parts are in

Mean field would do for the ring alone: the others lose 1 to 40 % to partitions that are whole.
Pure: no I/O, no clock, no randomness.
"""

from byteps import lowering, partition, predict
from byteps.assign import paper_shares
from byteps.cluster import uniform_cluster
from byteps.flowsim import Outcome
from byteps.lowering import Lane, Partition, Tensor
from byteps.pipeline import default_credit_bytes
from byteps.predict import Kind, RingCosts
from byteps.theory import TCP_PAYLOAD_FRACTION
from experiments.record import Case
from experiments.traffic import partition_nbytes

KEYS = 16  # of MXNet for a tensor of 1 MiB or more (see `baselines.peers.mxnet`)


def simulate(case: Case, latency_seconds: float) -> Outcome:
    if case.workload == "tensor" and case.n > 1:
        match case.contender, *sorted(case.settings):
            case "byteps", "partition":
                return _byteps(case, latency_seconds)
            case ("gloo-ring" | "horovod",):
                return _ring(case, latency_seconds)
            case ("mxnet-sync",):
                return _mxnet(case, latency_seconds)
    raise ValueError(
        f"{case.title}: without a machine in its settings, simulated are byteps, gloo-ring, horovod and mxnet-sync as "
        "they are, with one tensor on 2 machines or more"
    )


def _rate(case: Case) -> float:
    return case.nic_bytes_per_s * TCP_PAYLOAD_FRACTION


def _byteps(case: Case, latency_seconds: float) -> Outcome:
    nbytes = partition_nbytes(case)
    shares = paper_shares(case.n, case.k).all
    partitions = lowering.cut([Tensor(nbytes=case.nbytes)], shares, nbytes)
    discipline = lowering.ordered_weighted(default_credit_bytes(nbytes, sum(share > 0 for share in shares)))
    return lowering.lower(
        uniform_cluster(case.n, case.k, _rate(case)), partitions, discipline, latency_seconds
    ).simulate()


def _ring(case: Case, latency_seconds: float) -> Outcome:
    plan, capacities = predict.bare(_rate(case))
    kind = Kind(name="gpu", count=case.n, own=0.0, plan=plan, capacities=capacities)
    loads = dict.fromkeys(("NIC0.out", "NIC0.in"), 2 * (case.n - 1) / case.n)
    return predict.ring(predict.transfer(case.nbytes, 1), kind, case.n, loads, RingCosts(step_seconds=latency_seconds))


def _mxnet(case: Case, latency_seconds: float) -> Outcome:
    servers = range(case.n, case.n + case.k) if case.k else range(case.n)
    sizes = [nbytes for _, nbytes in partition.split(case.nbytes, 4, -(-case.nbytes // KEYS))]
    partitions = [Partition(nbytes=nbytes, owner=servers[key % len(servers)]) for key, nbytes in enumerate(sizes)]
    cluster = uniform_cluster(case.n, case.k, _rate(case))
    return lowering.lower(cluster, partitions, lambda _owner, _share: Lane(), latency_seconds).simulate()
