"""MXNet's KVStore over ps-lite: a scheduler, servers that sum, and workers.

Its servers run where the cluster has CPU machines, else one on every GPU machine beside the worker; they are processes
of the same Python package, told their role by variables.  Three contenders share the plan:

    mxnet-sync    dist_sync without an optimizer: a pull returns the sum of this round
    mxnet-p3      the same with its priority store: slices, sent in order of priority
    mxnet-async   dist_async with an optimizer that adds: a pull returns what has arrived so far

Settings: `keys` and `split` (a tensor of `split` bytes or more is handed over as `keys` keys; keys = 1 is MXNet left
alone), `bigarray` (elements from which a key is spread over all servers), `slice` (elements, P3), `watermark` (messages
per connection that ZeroMQ takes before it makes P3's priority queue wait), `threads`, `call`
("pushpull", as Gluon's trainer calls it, or "push+pull", all that the MXNet 1.5 of the paper had).
P3 slices by itself, and the slices go to the servers in turn: several keys per tensor would give every key a short last
slice, and with 4 slices a key and 4 servers all the short ones to one server.  Its priorities need a low `watermark`:
with ZeroMQ's own, 1000, the queue is always empty.  10 is what MXNet's launcher sets when asked for P3.
"""

from baselines.environments import Environment
from baselines.launch import DRIVER, Contender, Launch, Machine, Process, driver_argv, server_nbytes

ENVIRONMENT = Environment(name="mxnet", label="MXNet", distribution="mxnet", version_wanted="1.9.1")
CALLS = ("pushpull", "push+pull")
P3 = "p3"
_DEFAULTS = {
    "keys": "16",
    "split": "1MiB",
    "bigarray": "1000000",
    "slice": "40000",
    "watermark": "10",
    "threads": "1",
    "call": CALLS[0],
}
# A message costs the same however small a replay's tensors are: slices are not scaled below 4 KiB.
LEAST_SLICE_NUMEL = 1024
_SERVE = "import mxnet"  # in a process that is no worker, the import is the service and returns when the job is over


def knobs(launch: Launch, van: str) -> dict[str, str]:
    """All settings, checked, as plain numbers; what is not set has MXNet's own default, or ours for keys and split."""
    defaults = {**_DEFAULTS, "keys": "1"} if van == P3 else _DEFAULTS
    known = {name: launch.settings.get(name, default) for name, default in defaults.items()}
    for name in ("keys", "bigarray", "slice", "watermark", "threads"):
        if not known[name].isdigit() or int(known[name]) < 1:
            raise ValueError(f"mxnet: {name} = {known[name]!r}; it takes a whole number of at least 1")
    known |= {name: str(launch.knob(name, _DEFAULTS[name])) for name in ("split", "bigarray")}
    slice_numel = launch.knob("slice", _DEFAULTS["slice"])
    known["slice"] = str(min(max(slice_numel, LEAST_SLICE_NUMEL), int(known["slice"])))
    if known["call"] not in CALLS:
        raise ValueError(f"mxnet: call = {known['call']!r}; it takes one of {', '.join(CALLS)}")
    return known


def plan(launch: Launch, *, store: str, van: str) -> list[Process]:
    """The processes of a job; `store` is the KVStore's type, `van` its transport ("" or P3)."""
    values = knobs(launch, van)

    def role(name: str, machine: Machine) -> dict[str, str]:
        return {
            "DMLC_ROLE": name,
            "DMLC_PS_ROOT_URI": launch.scheduler.address,
            "DMLC_PS_ROOT_PORT": str(launch.port),
            "DMLC_NUM_SERVER": str(len(launch.servers)),
            "DMLC_NUM_WORKER": str(len(launch.gpu_machines)),
            "DMLC_NODE_HOST": machine.address,  # left alone, it takes the first interface that it finds
            "MXNET_KVSTORE_BIGARRAY_BOUND": values["bigarray"],
            "MXNET_KVSTORE_SLICE_THRESHOLD": values["slice"],
            "OMP_NUM_THREADS": values["threads"],
            "OMP_WAIT_POLICY": "PASSIVE",  # idle threads would spin on cores that the machines share
            "MXNET_CPU_WORKER_NTHREADS": values["threads"],
            **({"DMLC_PS_VAN_TYPE": van, "DMLC_PS_WATER_MARK": values["watermark"]} if van == P3 else {}),
        }

    def service(name: str, kind: str, machine: Machine) -> Process:
        argv = (ENVIRONMENT.python, "-c", _SERVE)
        return Process(host=machine.host, name=name, argv=argv, env=role(kind, machine))

    settings = {**launch.settings, **values, "store": store}
    return [
        service("scheduler", "scheduler", launch.scheduler),
        *(service(f"server {index}", "server", machine) for index, machine in enumerate(launch.servers)),
        *(
            Process(
                host=machine.host,
                name=f"worker {rank}",
                argv=driver_argv("mxnet_adapter", rank, launch, settings, python=ENVIRONMENT.python),
                env=role("worker", machine),
                rank=rank,
            )
            for rank, machine in enumerate(launch.gpu_machines)
        ),
    ]


def _contender(name: str, label: str, colour: str, marker: str, *, store: str, van: str = "") -> Contender:
    return Contender(
        name=name,
        label=label,
        colour=colour,
        marker=marker,
        uses_k=True,
        version=ENVIRONMENT.version,
        sources=(
            *DRIVER,
            "baselines/environments.py",
            "baselines/peers/mxnet.py",
            "baselines/adapters/mxnet_adapter.py",
            "scripts/install_mxnet.sh",
        ),
        plan=lambda launch: plan(launch, store=store, van=van),
        missing=ENVIRONMENT.missing,
        # To check asynchronous sums every worker pulls once more (`settle`), which the counters of the NIC include.
        nic_nbytes=None if store == "dist_async" else server_nbytes,
    )


CONTENDERS = (
    _contender("mxnet-sync", "MXNet PS", "#56B4E9", "P", store="dist_sync"),
    _contender("mxnet-p3", "MXNet PS + P3", "#E69F00", "X", store="dist_sync", van=P3),
    _contender("mxnet-async", "MXNet PS async", "#999999", "h", store="dist_async"),
)
