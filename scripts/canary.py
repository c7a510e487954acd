"""Sleeps 1 ms in a loop until its standard input closes, then prints by how much the wake-ups came late.

What happens to the canary happens to every process of the experiment that waits for its turn: on an idle core it wakes
within tenths of a millisecond, on a machine that is out of CPU it queues behind the others.  Prints "p50 p99 count",
seconds of lateness.  Standard library only and no imports of ours, so that it starts at once and stays small.
"""

import select
import time
from array import array

_SLEEP_SECONDS = 1e-3


def main() -> None:
    lateness = array("f")
    print("awake", flush=True)
    before = time.monotonic()
    while not select.select([0], [], [], 0)[0]:
        before = time.monotonic()
        time.sleep(_SLEEP_SECONDS)
        lateness.append(time.monotonic() - before - _SLEEP_SECONDS)
    ordered = sorted(lateness) or [0.0]
    p50, p99 = (ordered[min(len(ordered) - 1, int(len(ordered) * share))] for share in (0.5, 0.99))
    print(p50, p99, len(lateness), flush=True)


if __name__ == "__main__":
    main()
