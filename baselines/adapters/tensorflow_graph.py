"""The dataflow graph of one synchronous step with parameter servers, as TensorFlow 1's SyncReplicasOptimizer builds it.

A tensor is a variable on the servers, cut into slices by TensorFlow's own partitioner, which its own device function
deals out to the servers in turn.  On the server of a slice lie the variable, an accumulator and a queue of tokens:

    worker   gradient slice -> accumulator
    chief    accumulator, once `size` gradients are in -> variable (the sum, with no learning rate) -> `size` tokens
    worker   a token -> the variable's value

A gradient comes out of a queue on the worker, so one step can begin before all of them are ready, as in a training
step whose backward pass computes them.  What puts them in is a graph of its own: TensorFlow goes through the whole
graph for every set of operations that it is first asked to run, and 300 times through the large one takes a minute.

Two differences to SyncReplicasOptimizer: it has one queue of tokens for all variables, which makes every pull wait for
every push; and it averages.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from baselines.session import Array, Tensor


@dataclass(frozen=True, kw_only=True)
class Step:
    """What a worker runs."""

    number: Any  # placeholder: which step it is, counted from 0
    operations: Sequence[Any]  # the step; ends when all sums have arrived


@dataclass(frozen=True, kw_only=True)
class Shape:
    """Who takes part, and how variables are cut."""

    rank: int
    size: int
    num_servers: int
    max_slices: int
    min_slice_nbytes: int


def slices(shape: Shape, numel: int, dtype: Any) -> list[int]:
    """The elements of each slice, as TensorFlow's partitioned variables have them: the first ones may be longer."""
    partitioner = tf.compat.v1.min_max_variable_partitioner(
        max_partitions=shape.max_slices, min_slice_size=shape.min_slice_nbytes
    )
    (count,) = partitioner(shape=tf.TensorShape([numel]), dtype=dtype)
    count = min(count, numel)
    return [numel // count + (index < numel % count) for index in range(count)]


def hand_over(shape: Shape, tensors: Sequence[Tensor]) -> list[tuple[Any, Any]]:
    """Adds to the current graph; for each tensor the placeholder of its gradient, and the operation."""
    pairs = []
    for index, tensor in enumerate(tensors):
        queue = _ready(shape, index, tensor)
        with tf.device(queue.queue_ref.device):
            gradient = tf.compat.v1.placeholder(tensor.dtype, [tensor.numel])
            pairs.append((gradient, queue.enqueue(gradient)))
    return pairs


def _ready(shape: Shape, index: int, tensor: Tensor) -> Any:
    """The worker's queue of a gradient that is complete."""
    with tf.device(f"/job:worker/task:{shape.rank}"):
        return tf.compat.v1.FIFOQueue(
            1, tensor.dtype, shapes=[[tensor.numel]], shared_name=f"ready_{shape.rank}_{index}"
        )


def build(shape: Shape, tensors: Sequence[Tensor], arrived: Callable[[int, Array], None]) -> Step:
    """Adds to the current graph; `arrived` gets the sum of each tensor."""
    worker = f"/job:worker/task:{shape.rank}"
    servers = tf.compat.v1.train.replica_device_setter(ps_tasks=shape.num_servers, worker_device=worker)
    number = tf.compat.v1.placeholder(tf.int64, [])
    operations: list[Any] = []
    for index, tensor in enumerate(tensors):
        sizes = slices(shape, tensor.numel, tf.as_dtype(tensor.dtype))
        with tf.device(worker):
            gradient = _ready(shape, index, tensor).dequeue()
            pieces = tf.split(gradient, sizes) if len(sizes) > 1 else [gradient]
        sums = []
        for part, piece in enumerate(pieces):
            value, updates = _slice(shape, servers, f"{index}_{part}", piece, number)
            sums.append(value)
            operations.extend(updates)
        with tf.device(worker):
            whole = tf.concat(sums, 0) if len(sums) > 1 else sums[0]
            operations.append(tf.numpy_function(_deliver(arrived, index), [whole], []))
    return Step(number=number, operations=operations)


def _deliver(arrived: Callable[[int, Array], None], index: int) -> Callable[[Array], None]:
    return lambda value: arrived(index, value)


def _slice(shape: Shape, servers: Any, name: str, gradient: Any, number: Any) -> tuple[Any, list[Any]]:
    """The sum of a slice as it arrives, and what the chief has to run for it."""
    with tf.compat.v1.device(servers):
        variable = tf.raw_ops.VarHandleOp(dtype=gradient.dtype, shape=gradient.shape, shared_name=f"variable_{name}")
    with tf.device(variable.device):
        accumulator = tf.compat.v1.ConditionalAccumulator(
            gradient.dtype, gradient.shape, shared_name=f"accumulator_{name}", reduction_type="SUM"
        )
        tokens = tf.compat.v1.FIFOQueue(shape.size, tf.int64, shapes=[()], shared_name=f"tokens_{name}")
        with tf.control_dependencies([accumulator.apply_grad(gradient, local_step=number)]):
            token = tokens.dequeue()
        with tf.control_dependencies([token]):
            value = tf.raw_ops.ReadVariableOp(resource=variable, dtype=gradient.dtype)
            value.set_shape(gradient.shape)
        if shape.rank != 0:
            return value, []
        update = tf.raw_ops.AssignVariableOp(resource=variable, value=accumulator.take_grad(shape.size))
        with tf.control_dependencies([update]):
            return value, [tokens.enqueue_many([tf.fill([shape.size], number)])]
