"""Runs a command whose temporary files go with it, also when it is killed.

    python -m baselines.scratch COMMAND...

The command and all that it starts get a folder of their own as TMPDIR, removed when the command has ended; SIGTERM and
SIGINT are passed on, and what does not end soon is killed.  After SIGKILL nothing is removed by anybody: folders whose
creator is dead are removed by the next one.
Standard library only.
"""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path

END_SECONDS = 3.0  # from the signal to the kill; the orchestrator waits 5 s before it kills this process too
_PREFIX = "baselines-"


def folder() -> Path:
    """A new folder that this process's id is part of."""
    base = Path(tempfile.gettempdir())
    for old in base.glob(f"{_PREFIX}*-*"):
        creator = old.name.removeprefix(_PREFIX).partition("-")[0]
        if creator.isdigit() and not Path("/proc", creator).exists():
            shutil.rmtree(old, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{_PREFIX}{os.getpid()}-"))


def run(command: list[str]) -> int:
    """The command's exit status, as a shell would say it."""
    scratch = folder()
    ended = threading.Event()
    try:
        process = subprocess.Popen(command, env={**os.environ, "TMPDIR": str(scratch)})

        def pass_on(number: int, _frame: object) -> None:
            with contextlib.suppress(ProcessLookupError):
                process.send_signal(number)
            threading.Thread(target=_kill_later, args=(process, ended), daemon=True).start()

        for number in (signal.SIGTERM, signal.SIGINT):
            signal.signal(number, pass_on)
        status = process.wait()
    finally:
        ended.set()
        shutil.rmtree(scratch, ignore_errors=True)
    return status if status >= 0 else 128 - status


def _kill_later(process: "subprocess.Popen[bytes]", ended: threading.Event) -> None:
    if not ended.wait(END_SECONDS):
        process.kill()


if __name__ == "__main__":
    sys.exit(run(sys.argv[1:]))
