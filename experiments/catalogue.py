"""The workloads that cases name, and the tensors behind the names.

tensor          one tensor of the case's bytes
tensors:100     100 tensors of equal size
"""

from baselines.session import Tensor

ITEM_NBYTES = 4


def of_case(workload: str, nbytes: int, scale: float, dilation: float) -> tuple[Tensor, ...]:
    """The tensors of a case, in gradient-ready order."""
    kind, _, count = workload.partition(":")
    if kind == "tensor":
        return (Tensor(name=f"tensor/{nbytes}", numel=nbytes // ITEM_NBYTES, dtype="float32"),)
    if kind == "tensors":
        each = nbytes // ITEM_NBYTES // int(count)
        return tuple(
            Tensor(name=f"tensors/{nbytes}/{count}/{index}", numel=each, dtype="float32", priority=index)
            for index in range(int(count))
        )
    raise ValueError(f"workload {workload!r} is neither tensor, tensors:COUNT nor a model")


def model_size(workload: str, scale: float, nic_bytes_per_s: float) -> tuple[int, float]:
    """Bytes and time dilation of a model of which every tensor is divided by `scale`."""
    raise ValueError(f"workload {workload!r}: there are no models yet")
