"""The workloads that cases name, and the tensors behind the names; names are unique within a launch.

    tensor          one tensor of the case's bytes
    tensors:100     100 tensors of equal size
    vgg16@fig4      a model of `experiments/models` with one of its timings; without "@...", with its first
    my/job.toml     a recorded training

Models are sent as fp32 of as many bytes whatever they train in, since not every contender adds fp16 on CPUs.
"""

from collections.abc import Sequence
from functools import cache

from baselines.session import Tensor
from experiments import workloads


@cache
def of_case(workload: str, nbytes: int, scale: float, dilation: float) -> tuple[Tensor, ...]:
    """The tensors of a case, in gradient-ready order."""
    kind, _, count = workload.partition(":")
    if kind == "tensor":
        return workloads.single(nbytes)
    if kind == "tensors":
        return workloads.many(nbytes, int(count))
    model, timing = workloads.named(workload)
    return workloads.replay(model, timing, scale=scale, dilation=dilation, as_float32=True, label=workload)


def computation_seconds(tensors: Sequence[Tensor]) -> float:
    """Backward and forward pass: how long an iteration takes that waits for nothing."""
    return max(tensor.ready_seconds for tensor in tensors) + sum(tensor.forward_seconds for tensor in tensors)


@cache
def model_size(
    workload: str, scale: float, nic_bytes_per_s: float, real_nic_bytes_per_s: float = 0.0
) -> tuple[int, float]:
    """Bytes of a model of which every tensor is divided by `scale`, and the time dilation that keeps its proportions.

    `real_nic_bytes_per_s` is the NIC's rate of the cluster that the replay stands for; 0: the paper's.
    """
    if real_nic_bytes_per_s:
        dilation = workloads.dilation(real_nic_bytes_per_s, nic_bytes_per_s, scale)
    else:
        dilation = workloads.paper_dilation(nic_bytes_per_s, scale)
    tensors = of_case(workload, 0, scale, dilation)
    return sum(tensor.numel * workloads.ITEMSIZE["float32"] for tensor in tensors), dilation
