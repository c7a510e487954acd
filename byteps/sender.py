"""The thread that encodes and sends, in jobs whose tensors have codecs.

Encoding takes a millisecond per partition.  Done by whoever makes room in the credit, as sending is, it would stop the
user's backward pass, or the reader that the next answers wait for.  So it has a thread of its own, which does all the
worker's sending: partitions are encoded one by one as they leave, in the pipeline's order.
"""

import threading
from collections.abc import Callable


class Sender:
    """Calls `pump` after every `wake`; calls that come while it is at work are one."""

    def __init__(self, pump: Callable[[], None]) -> None:
        self._pump = pump
        self._work = threading.Event()
        self._over = False
        threading.Thread(target=self._run, name="encode and send", daemon=True).start()

    def wake(self) -> None:
        if not self._work.is_set():
            self._work.set()

    def stop(self) -> None:
        self._over = True
        self._work.set()

    def _run(self) -> None:
        while not self._over:
            self._work.wait()
            self._work.clear()
            self._pump()
