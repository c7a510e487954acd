"""Shared arrays, run as a worker.  Arguments: the case, and a folder that all workers see.

Prints "right" if all is as it should be, and "error KIND: text" for an error of the job.
"""

import sys
import time
from pathlib import Path

import numpy as np

import byteps
import byteps.worker
from byteps.errors import BytePSError

NUMEL = 300_000  # several partitions at 256 KiB, and a small array beside it
PATIENCE_SECONDS = 30.0


def integers(rank: int, step: int, numel: int = NUMEL) -> np.ndarray:
    """A difference of whole numbers, so that sums are exact in any order."""
    return ((np.arange(numel) * (rank + 2) + 7 * step) % 23 - 11).astype(np.float32)


def wait_for(path: Path) -> None:
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not path.exists():
        assert time.monotonic() < deadline, f"waited {PATIENCE_SECONDS:.0f} s in vain for {path.name}"
        time.sleep(0.005)


def conservation(folder: Path) -> None:
    """Every difference counts once, whatever its worker's pace; a worker has its own differences at once."""
    steps = [4, 9, 6][: byteps.size()]
    rank, root = byteps.rank(), byteps.size() - 1
    initial = {"large": integers(100, 0), "small": integers(100, 0, 5), "half": integers(100, 0, 7).astype(np.float16)}
    mine = initial if rank == root else {name: np.zeros_like(array) for name, array in initial.items()}
    arrays = {name: byteps.SharedArray(array, name, root=root) for name, array in mine.items()}
    for name, shared in arrays.items():
        if rank == root and root == 0:
            assert np.array_equal(shared.initial, mine[name])
    for step in range(steps[rank]):
        handles = {
            n: a.add_async(integers(rank, step, initial[n].size).astype(initial[n].dtype)) for n, a in arrays.items()
        }
        for name, handle in handles.items():
            assert byteps.synchronize(handle).dtype == initial[name].dtype
        time.sleep(0.002 * rank)
    for name, shared in arrays.items():
        want = initial[name].astype(np.float64)
        for other, count in enumerate(steps):
            for step in range(count):
                want += integers(other, step, want.size)
        assert np.array_equal(shared.join(), want), name
    if rank == 0:  # and they may go on
        arrays["small"].add(np.ones(5, np.float32))
    again = arrays["small"].join()
    assert np.array_equal(again, byteps.push_pull(again, "the same everywhere"))


def order(folder: Path) -> None:
    """Theorem 2 over the wire: pushes in a fixed order give an asynchronous parameter server's weights, bit by bit."""
    rank, size = byteps.rank(), byteps.size()
    chance = np.random.default_rng(5)
    turns = chance.integers(0, size, 24)
    gradients = chance.standard_normal((24, 1000)).astype(np.float32)
    server = chance.standard_normal(1000).astype(np.float32)
    weights = server.copy()
    shared = byteps.SharedArray(server if rank == 0 else np.empty_like(server), "weights")
    momentum = np.zeros((size, 1000), np.float32)  # each worker's optimiser; here all of them, for the oracle
    for turn, worker in enumerate(turns):
        momentum[worker] = np.float32(0.9) * momentum[worker] - np.float32(0.1) * gradients[turn]
        server = server + momentum[worker]
        if worker == rank:
            wait_for(folder / f"turn {turn}") if turn else None
            weights = shared.add(momentum[rank])
            assert np.array_equal(weights, server), turn
            (folder / f"turn {turn + 1}").touch()
    assert np.array_equal(shared.join(), server)


def straggler(folder: Path) -> None:
    """Clocks in a file that all see: a worker's is raised before it pushes, and compared after its answer."""
    rank, size, bound = byteps.rank(), byteps.size(), 2
    clocks = np.memmap(folder / "clocks", np.int64, "r+", shape=(size,))
    shared = byteps.SharedArray(np.zeros(NUMEL, np.float32), "weights", staleness=bound)
    most = 0
    for step in range(1, 13):
        time.sleep(0.06 if rank == size - 1 else 0.0)
        clocks[rank] = step
        weights = shared.add(np.ones(NUMEL, np.float32))
        ahead = step - int(clocks.min())
        assert ahead <= bound, f"{ahead} ahead at step {step}"
        assert weights.min() >= step + (size - 1) * (step - bound), f"misses differences at step {step}"
        most = max(most, ahead)
    assert (shared.join() == 12 * size).all()
    if rank == 0:
        assert most == bound, "never ran ahead"


def free(folder: Path) -> None:
    """Without a bound a straggler, which is stopped in its first step, holds nobody up; a late comer's pull waits."""
    rank = byteps.rank()
    if rank == 0:
        time.sleep(0.5)  # the others pull before the first push
    shared = byteps.SharedArray(np.full(3, 7 if rank == 0 else 0, np.int64), "weights")
    assert (shared.initial >= 7).all()
    if rank == 1:
        wait_for(folder / "done")
    else:
        for _ in range(50):
            shared.add(np.ones(3, np.int64))
        (folder / f"done {rank}").touch()
        if rank == 0:
            for other in range(2, byteps.size()):
                wait_for(folder / f"done {other}")
            (folder / "done").touch()
    assert (shared.join() == 7 + 50 * (byteps.size() - 1)).all()


def early(folder: Path) -> None:
    """A worker that leaves after one step is waited for no more; its machine's service keeps its weights."""
    rank = byteps.rank()
    byteps.worker._SHUTDOWN_SECONDS = 0.2
    shared = byteps.SharedArray(np.zeros(NUMEL, np.float32), "weights", staleness=1)
    for _ in range(1 if rank == 1 else 6):
        time.sleep(0.1)
        shared.add(np.ones(NUMEL, np.float32))
    if rank != 1:
        assert (shared.join() == 1 + 6 * (byteps.size() - 1)).all()


def stall(folder: Path) -> None:
    """A worker that neither steps nor leaves holds the others back: an error that names it."""
    shared = byteps.SharedArray(np.zeros(3, np.float32), "weights", staleness=1)
    if byteps.rank() == 1:
        wait_for(folder / "never")
    for _ in range(9):
        shared.add(np.ones(3, np.float32))


def dead(folder: Path) -> None:
    """Until rank 1 is killed."""
    shared = byteps.SharedArray(np.zeros(3, np.float32), "weights", staleness=1)
    shared.add(np.ones(3, np.float32))
    print("sharing", flush=True)
    if byteps.rank() == 1:
        wait_for(folder / "never")
    for _ in range(9):
        shared.add(np.ones(3, np.float32))


def quarrel(folder: Path) -> None:
    """Bounds differ."""
    byteps.SharedArray(np.zeros(3, np.float32), "weights", staleness=byteps.rank())


def two_roots(folder: Path) -> None:
    byteps.SharedArray(np.zeros(3, np.float32), "weights", root=byteps.rank())
    byteps.push_pull(np.zeros(3), "after")


def no_root(folder: Path) -> None:
    byteps.SharedArray(np.zeros(3, np.float32), "weights", root=1 - byteps.rank())


def misuse(folder: Path) -> None:
    shared = byteps.SharedArray(np.zeros(3, np.float32), "weights")
    for attempt, text in [
        (lambda: shared.add(np.zeros(4, np.float32)), "has shape (3,) float32; the difference has shape (4,) float32"),
        (lambda: shared.add(np.zeros(3)), "the difference has shape (3,) float64"),
        (lambda: byteps.SharedArray(np.zeros(3), "other", staleness=-1), "staleness=-1; use the number of steps"),
        (lambda: byteps.SharedArray(np.zeros(3), "other", staleness=True), "staleness=True"),
        (lambda: byteps.SharedArray(np.zeros(3), None), "needs a name"),
        (lambda: byteps.SharedArray(np.zeros(3, bool), "other"), "element type bool is not supported"),
    ]:
        said = ""
        try:
            attempt()
        except BytePSError as error:
            said = str(error)
        assert text in said, f"not {text!r} but {said!r}"
    byteps.push_pull(np.zeros(3), "the job goes on")


CASES = [conservation, order, straggler, free, early, stall, dead, quarrel, two_roots, no_root, misuse]
try:
    byteps.init()
    {case.__name__: case for case in CASES}[sys.argv[1]](Path(sys.argv[2]))
    print("right", flush=True)
    byteps.shutdown()
except BytePSError as error:
    print(f"error {type(error).__name__}: {error}", flush=True)
    sys.exit(1)
