"""The benchmark of devices: its program with gloo and threads in place of GPUs, its rows, what is said without."""

import contextlib
from datetime import timedelta

import msgspec
import pytest

torch = pytest.importorskip("torch", reason="torch is not installed")
dist = pytest.importorskip("torch.distributed")
if not (dist.is_available() and dist.is_gloo_available()):
    pytest.skip("this torch has no gloo", allow_module_level=True)

from plain_device import Plain  # noqa: E402

from byteps.torch import device_cuda  # noqa: E402
from experiments import bench, device, device_program, record  # noqa: E402
from experiments.run import blank_record  # noqa: E402

PATIENCE = 20.0


class Stream:
    """A CUDA stream that has done everything when the call returns."""

    def __init__(self, _device: object = None) -> None: ...

    def synchronize(self) -> None: ...

    def wait_event(self, event: "Event") -> None:
        assert event.recorded


class Event:
    def __init__(self, *, blocking: bool) -> None:
        assert blocking, "a thread that waits would spin"
        self.recorded = False

    def record(self, stream: Stream) -> None:
        assert isinstance(stream, Stream)
        self.recorded = True

    def synchronize(self) -> None:
        assert self.recorded

    query = synchronize


class Cudart:
    """Registers pages, each once."""

    def __init__(self) -> None:
        self.registered: set[int] = set()

    def cudaHostRegister(self, address: int, nbytes: int, flags: int) -> int:  # noqa: N802
        assert (address % 4096, nbytes % 4096, flags) == (0, 0, 1)
        if address in self.registered:
            return 712
        self.registered.add(address)
        return 0

    def cudaHostUnregister(self, address: int) -> int:  # noqa: N802
        self.registered.remove(address)
        return 0


@pytest.fixture
def cuda(monkeypatch) -> Cudart:
    """torch.cuda as far as `CudaDevice` needs it, on the CPU."""
    runtime, current = Cudart(), Stream()
    fakes = {
        "Stream": Stream,
        "Event": Event,
        "stream": lambda _stream: contextlib.nullcontext(),
        "device": lambda _device: contextlib.nullcontext(),
        "set_device": lambda _device: None,
        "current_stream": lambda _device: current,
        "cudart": lambda: runtime,
    }
    for name, fake in fakes.items():
        monkeypatch.setattr(torch.cuda, name, fake)
    return runtime


@pytest.fixture
def plain(monkeypatch) -> None:
    def gloo(store, rank: int, size: int):
        return dist.ProcessGroupGloo(store, rank, size, timedelta(seconds=PATIENCE))

    groups = device_program.Groups
    monkeypatch.setattr(device_program, "CudaDevice", Plain)
    monkeypatch.setattr(device_program, "Groups", lambda store, rank, sets: groups(store, rank, sets, gloo))
    monkeypatch.setattr(device_program, "place", lambda _rank: torch.device("cpu"))


@pytest.mark.parametrize("ranks", [1, 3])
def test_the_program_sums_right_with_threads_in_the_place_of_gpus(plain, ranks: int) -> None:
    found = device_program.run(ranks=ranks, tensors=5, nbytes=40_004, warmups=1, iterations=2)
    assert (found["max_error"], found["checked"]) == (0.0, 3 * ranks)
    assert set(found["seconds"]) == {"out", "in", "both", "pipeline", *(["collect"] if ranks > 1 else [])}
    assert {len(values) for values in found["seconds"].values()} == {2}


@pytest.mark.parametrize("ranks", [1, 2])
def test_the_cuda_device_s_own_code_runs_on_a_runtime_in_its_place(plain, cuda, monkeypatch, ranks: int) -> None:
    """It says nothing about CUDA, but finds what would break before CUDA does."""
    monkeypatch.setattr(device_program, "CudaDevice", device_cuda.CudaDevice)
    found = device_program.run(ranks=ranks, tensors=3, nbytes=40_004, warmups=0, iterations=2)
    assert (found["max_error"], found["checked"]) == (0.0, 2 * ranks)
    assert cuda.registered == set()
    assert not device_cuda._open


def test_a_rank_that_fails_ends_the_program(plain, monkeypatch) -> None:
    def broken(self, stream, step, memory) -> None:
        raise RuntimeError("NCCL error: unhandled system error")

    monkeypatch.setattr(device_program, "PATIENCE", PATIENCE)
    monkeypatch.setattr(Plain, "collect", broken)
    with pytest.raises(RuntimeError, match="NCCL error"):
        device_program.run(ranks=2, tensors=1, nbytes=4000, warmups=0, iterations=1)


FOUND = {
    "seconds": {"out": [0.02, 0.02], "in": [0.01, 0.01], "both": [0.02, 0.02], "pipeline": [0.022, 0.022]},
    "max_error": 0.0,
    "checked": 2,
    "device": "none",
    "torch": "2",
}


def test_rows_compare_the_pipeline_with_the_copies_that_it_makes() -> None:
    case, *_ = device.cases(gpus=[1], blocks=1)
    one = device.filled(blank_record(case, device.contender("byteps"), "measured"), FOUND, 3.0)
    assert one.verified
    rows = {row.what: row for row in device.rows([one])}
    assert rows["1 GPU: pipeline / copies"].median == pytest.approx(1.1)
    assert rows["1 GPU: pipeline / copies"].verdict == "met"
    assert rows["1 GPU: copies to the host, of one gradient"].median == pytest.approx((256 << 20) / 0.02 / 1e9)


def test_without_a_device_it_is_not_run_and_the_report_says_that_it_never_was(tmp_path, monkeypatch, capsys) -> None:
    monkeypatch.setattr(device, "num_gpus", lambda: 0)
    assert bench.main(["device"], tmp_path) == 0
    assert "not run: no CUDA device on this machine" in capsys.readouterr().out
    assert not (tmp_path / "device.jsonl").exists()
    case, *_ = device.cases(gpus=[1], blocks=1)
    one = device.filled(blank_record(case, device.contender("byteps"), "measured"), FOUND, 3.0)
    other, *_ = bench.BENCHMARKS["footprint"].cases()
    there = msgspec.structs.replace(one, case=other, case_hash=record.case_hash(other), facts={"import_seconds": "1"})
    record.append(tmp_path / "raw" / "footprint.jsonl", there)
    assert "never run on hardware" in str(bench.report_blocks(tmp_path, ("raw",), lambda _: []))
    record.append(tmp_path / "raw" / "device.jsonl", one)
    assert "never run on hardware" not in str(bench.report_blocks(tmp_path, ("raw",), lambda _: []))
