"""Every public name of Horovod's torch API and of the official plug-in: works, or is refused as the docs say."""

import inspect
import re
import subprocess
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="torch is not installed")

import byteps.torch as bps
from byteps.errors import StallError

ROOT = Path(__file__).resolve().parents[2]
# dir(horovod.torch) of 0.28.1, without what it imports for itself (check_extension, functions, mpi_lib_v2).
HOROVOD = """
Adasum Average Compression DistributedOptimizer HorovodInternalError Max Min ProcessSet Product Sum SyncBatchNorm
add_process_set allgather allgather_async allgather_object allreduce allreduce_ allreduce_async allreduce_async_
alltoall alltoall_async barrier broadcast broadcast_ broadcast_async broadcast_async_ broadcast_object
broadcast_optimizer_state broadcast_parameters ccl_built cross_rank cross_size cuda_built ddl_built elastic
global_process_set gloo_built gloo_enabled grouped_allgather grouped_allgather_async grouped_allreduce
grouped_allreduce_ grouped_allreduce_async grouped_allreduce_async_ grouped_reducescatter grouped_reducescatter_async
init is_initialized join local_rank local_size mpi_built mpi_enabled mpi_ops mpi_threads_supported nccl_built poll
rank reducescatter reducescatter_async remove_process_set rocm_built shutdown size sparse_allreduce_async
start_timeline stop_timeline sync_batch_norm synchronize
"""
# Of the official plug-in 0.2.5, and what later sources of it have besides.
OFFICIAL = """
Compression DistributedOptimizer broadcast_object broadcast_optimizer_state broadcast_parameters byteps_push_pull
CrossBarrier declare get_pushpull_speed init local_rank local_size ops parallel poll push_pull push_pull_async
push_pull_async_inplace push_pull_inplace rank recv_async resume send_async shutdown size suspend synchronize
"""
# The parameters of Horovod's, which scripts also give by position.
SIGNATURES = {
    "allreduce": "tensor average name compression op prescale_factor postscale_factor process_set",
    "allreduce_": "tensor average name op prescale_factor postscale_factor process_set",
    "allreduce_async": "tensor average name op prescale_factor postscale_factor process_set",
    "allreduce_async_": "tensor average name op prescale_factor postscale_factor process_set",
    "allgather": "tensor name process_set",
    "allgather_async": "tensor name process_set",
    "allgather_object": "obj name",
    "barrier": "process_set",
    "broadcast": "tensor root_rank name process_set",
    "broadcast_": "tensor root_rank name process_set",
    "broadcast_async": "tensor root_rank name process_set",
    "broadcast_async_": "tensor root_rank name process_set",
    "broadcast_object": "obj root_rank name",
    "broadcast_parameters": "params root_rank",
    "broadcast_optimizer_state": "optimizer root_rank",
    "DistributedOptimizer": "optimizer named_parameters compression backward_passes_per_step op "
    "gradient_predivide_factor num_groups groups sparse_as_dense process_set",
    "grouped_allgather": "tensors name process_set",
    "grouped_allgather_async": "tensors name process_set",
    "grouped_allreduce": "tensors average name compression op prescale_factor postscale_factor process_set",
    "grouped_allreduce_": "tensors average name op prescale_factor postscale_factor process_set",
    "grouped_allreduce_async": "tensors average name op prescale_factor postscale_factor process_set",
    "grouped_allreduce_async_": "tensors average name op prescale_factor postscale_factor process_set",
    "grouped_reducescatter": "tensors name compression op process_set prescale_factor postscale_factor",
    "grouped_reducescatter_async": "tensors name op process_set prescale_factor postscale_factor",
    "join": "device",
    "reducescatter": "tensor name compression op process_set prescale_factor postscale_factor",
    "reducescatter_async": "tensor name op process_set prescale_factor postscale_factor",
}


def documented() -> dict[str, str]:
    """What the tables say of each name in their first column."""
    text = (ROOT / "docs" / "training.md").read_text(encoding="utf-8")
    names = text[text.index("\n## Names\n") : text.index("\n## Recipes\n")]
    found = {}
    for line in names.splitlines():
        if line.startswith("| `"):
            first, _, says = line.strip("|").split("|")[:3]
            found |= {name: says.strip() for name in re.findall(r"`(\w+)[^`]*`", first)}
    return found


SAYS = documented()


@pytest.mark.parametrize("name", sorted({*HOROVOD.split(), *OFFICIAL.split()}))
def test_a_name_is_there_or_refused_as_the_docs_say(name):
    assert name in SAYS
    if not SAYS[name].startswith("refused"):
        assert getattr(bps, name) is not None
        return
    with pytest.raises(AttributeError, match=rf"has no '{name}': .+ \(docs/training\.md\)"):
        getattr(bps, name)


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_have_the_places_that_they_have_in_horovod(name):
    ours = list(inspect.signature(getattr(bps, name)).parameters)
    wanted = SIGNATURES[name].split()
    assert ours[: len(wanted)] == wanted


def test_every_public_name_is_in_the_tables():
    ours = {"Group", "Handle", "ddp_hook"}
    assert set(bps.__all__) - ours <= set(SAYS)
    assert all(hasattr(bps, name) for name in bps.__all__)


def test_errors_of_a_job_are_what_scripts_of_horovod_catch():
    assert issubclass(StallError, bps.HorovodInternalError)


@pytest.mark.parametrize("module, advice", [("parallel", "register_comm_hook"), ("elastic", "from a checkpoint")])
def test_importing_from_a_module_that_is_refused_says_what_to_do(module, advice):
    with pytest.raises(ImportError, match=advice):
        __import__(f"byteps.torch.{module}", fromlist=["anything"])


def test_a_module_of_the_official_plug_in_has_its_names():
    from byteps.torch import ops

    assert all(getattr(ops, name) is not None for name in ops.__all__)
    assert ops.push_pull_async_inplace is bps.byteps_push_pull


@pytest.mark.skipif(
    not (ROOT / ".peers" / "horovod" / "bin" / "python").exists(), reason="Horovod is not installed (make peers)"
)
def test_the_lists_are_those_of_the_horovod_that_is_installed():
    code = (
        "import inspect, horovod.torch as hvd\n"
        "for name in dir(hvd):\n"
        "    one = getattr(hvd, name)\n"
        "    if not name.startswith('_'):\n"
        "        print(name, *(inspect.signature(one).parameters if inspect.isfunction(one) else ()))\n"
    )
    python = str(ROOT / ".peers" / "horovod" / "bin" / "python")
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    there = {line.split()[0]: line.split()[1:] for line in done.stdout.splitlines()}
    own = {"check_extension", "compression", "functions", "mpi_lib_v2", "optimizer"}
    assert set(there) - own == set(HOROVOD.split())
    for name, wanted in SIGNATURES.items():
        assert there[name][: len(wanted.split())] == wanted.split(), name
