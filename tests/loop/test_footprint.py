"""What BytePS costs before it does anything, and with very many tensors."""

import re
import subprocess
import sys

from jobs import PATIENCE_SECONDS, Roles, launch, plain_environment

_IMPORT = """
import sys, time
started = time.perf_counter()
import byteps
seconds = time.perf_counter() - started
byteps.init  # loads the API
print(seconds, time.perf_counter() - started, "torch" in sys.modules, "scipy" in sys.modules)
"""


def test_import_is_quick_and_without_torch_and_scipy(record_property):
    measured = []
    for _ in range(3):
        result = subprocess.run(
            [sys.executable, "-c", _IMPORT],
            env=plain_environment({}),
            capture_output=True,
            text=True,
            timeout=PATIENCE_SECONDS,
            check=True,
        )
        bare, whole, torch, scipy = result.stdout.split()
        assert (torch, scipy) == ("False", "False")
        measured.append((float(bare), float(whole)))
    bare, whole = (min(column) for column in zip(*measured, strict=True))
    record_property("import_byteps_seconds", bare)
    record_property("import_byteps_api_seconds", whole)
    print(f"import byteps {bare:.3f} s, with its API {whole:.3f} s")
    assert bare < 0.3


def test_a_server_stays_under_80_megabytes_before_data(tmp_path, record_property):
    with Roles(tmp_path, workers=2, servers=1) as job:
        job.everybody("steady.py", str(tmp_path / "stop"))
        job.wait_for("worker 0", "pushing")
        # The peak of its life so far, with one tensor of 1.2 MB in it.
        status = {name: job.status_megabytes(name) for name in ("server 0", "scheduler")}
        (tmp_path / "stop").touch()
        assert set(job.wait().values()) == {0}
    record_property("server_megabytes", status["server 0"])
    print(f"resident: server {status['server 0']:.0f} MB, scheduler {status['scheduler']:.0f} MB")
    assert status["server 0"] < 80


def test_ten_thousand_tiny_tensors(record_property):
    result = launch("tiny.py", workers=4, servers=2)
    assert result.code == 0, result.output
    seconds = [float(found) for found in re.findall(r"asynchronous ([\d.]+) s", result.output)]
    assert len(seconds) == 4
    record_property("asynchronous_seconds", max(seconds))
    print(f"10,000 tensors of 4 bytes, 4 workers, 2 servers: {max(seconds):.2f} s")
