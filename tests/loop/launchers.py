"""Fakes of srun and torchrun: the variables that they would give each process, all of which run here."""

import os
import secrets
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
OWN = ("SLURM_", "RANK", "WORLD_SIZE", "LOCAL_", "GROUP_", "MASTER_", "BYTEPS_", "DMLC_")
LAUNCHERS = ("srun", "torchrun")


def free_ports() -> int:
    """A port that is free, as are the three after it; below those that the kernel hands out."""
    while True:
        first = 20_000 + secrets.randbelow(10_000)
        try:
            for port in range(first, first + 4):
                with socket.create_server(("127.0.0.1", port)):
                    continue
            return first
        except OSError:
            continue


def variables(launcher: str, rank: int, size: int, port: int) -> dict[str, str]:
    """As on a node per process; `port` tells jobs apart."""
    if launcher == "srun":
        return {
            "SLURM_JOB_ID": str(port),
            "SLURM_PROCID": str(rank),
            "SLURM_NODEID": str(rank),
            "SLURM_LOCALID": "0",
            "SLURM_NTASKS": str(size),
            "SLURM_STEP_NODELIST": f"127.0.0.[1-{size}]",
        }
    return {
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": "0",
        "LOCAL_WORLD_SIZE": "1",
        "GROUP_RANK": str(rank),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


def start(
    launcher: str, size: int, port: int, words: Sequence[str], *, seconds: float = 100.0, **more: str
) -> list[tuple[int, str]]:
    """`python -m WORDS` as every rank; exit codes and outputs in order of ranks."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith(OWN)}
    argv = [sys.executable, "-m", *words]
    processes = [
        subprocess.Popen(
            argv,
            cwd=ROOT,
            env={**kept, **variables(launcher, rank, size, port), **more},
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(size)
    ]
    try:
        outputs = [process.communicate(timeout=seconds)[0] for process in processes]
        return [(process.returncode, output) for process, output in zip(processes, outputs, strict=True)]
    except subprocess.TimeoutExpired:
        for process in processes:
            process.kill()
        said = [process.communicate()[0] for process in processes]
        raise AssertionError(f"not over after {seconds:.0f} s: {said}") from None
