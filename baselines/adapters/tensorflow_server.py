"""A parameter server task of TensorFlow: it holds variables and sums, and ends when every worker has said goodbye.

TensorFlow's own way to be a server, `Server.join()`, never returns; the usual remedy is a queue on the server into
which every worker puts a token at its end.  Who the task is and where the others are stands in TF_CONFIG, as
TensorFlow defines it.
"""

import json
import os
from typing import Any

import tensorflow as tf


def cluster_of_environment() -> tuple[dict[str, list[str]], str, int]:
    """The addresses of all tasks by job, and which one this process is."""
    config = json.loads(os.environ["TF_CONFIG"])
    return config["cluster"], config["task"]["type"], int(config["task"]["index"])


def options(job: str, task: int, *, alone: bool = False) -> Any:
    """One thread for a sum, since the machines share cores; a session looks at this task only, or at the servers too.

    There is nothing to optimise in graphs that only move and add, and it would cost seconds.
    """
    config = tf.compat.v1.ConfigProto(intra_op_parallelism_threads=1)
    config.device_filters.extend([f"/job:{job}/task:{task}", *([] if alone else ["/job:ps"])])
    config.graph_options.optimizer_options.opt_level = tf.compat.v1.OptimizerOptions.L0
    config.graph_options.rewrite_options.disable_meta_optimizer = True
    return config


def goodbyes(server: int, num_workers: int) -> Any:
    """The queue of a server in which workers leave their goodbyes."""
    with tf.device(f"/job:ps/task:{server}"):
        return tf.compat.v1.FIFOQueue(num_workers, tf.int64, shapes=[()], shared_name=f"goodbyes_{server}")


def main() -> None:
    cluster, job, task = cluster_of_environment()
    num_workers = len(cluster["worker"])
    server = tf.distribute.Server(cluster, job_name=job, task_index=task, config=options(job, task))
    with tf.Graph().as_default():
        goodbye = goodbyes(task, num_workers).dequeue()
        # alone: the other servers may be gone when the last worker leaves
        with tf.compat.v1.Session(server.target, config=options(job, task, alone=True)) as session:
            for _ in range(num_workers):
                session.run(goodbye)
    os._exit(0)  # a server cannot be shut down otherwise


if __name__ == "__main__":
    main()
