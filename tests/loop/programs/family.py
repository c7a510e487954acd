"""A worker with a child of its own, which outlives everybody unless somebody ends it.  Argument: what happens then."""

import subprocess
import sys
import time

import numpy as np

import byteps

byteps.init()
byteps.push_pull(np.ones(10, np.float32), "first", op="sum")
child = subprocess.Popen(["sleep", "1000"])
print("family is up", flush=True)
if sys.argv[1] == "succeed":
    byteps.shutdown()
elif sys.argv[1] == "raise" and byteps.rank() == 2:
    raise ZeroDivisionError("rank 2 had enough")
else:
    time.sleep(600)
