"""Copy models of transports in numbers: loads, the OSDI paper's Table 2, and the published gain of GPUDirect."""

from byteps.machine_file import preset
from byteps.transports import (
    CLEAN_BYTES_PER_S,
    GPUDIRECT,
    RDMA,
    Transport,
    hidden_share,
    kernel_tcp,
    loads,
    rate,
    serial_rate,
    write_rate,
)
from experiments.document import Table
from experiments.tables.markdown import NOTHING, table
from experiments.transports import COPYING_OVER, GIB, GRPC_OVER

CORES = 4  # that TCP may use
CORE_SECONDS_PER_GIB = 1.0  # of either end; measured between emulated hosts (`scripts.lab`: 2 for both)
PUBLISHED_GBIT = (41, 52, 76, 89)  # Jiang et al., OSDI 2020, Table 2
BURDENS = (
    ("baseline", (True, True, True)),
    ("+ shared memory", (False, True, True)),
    ("+ page-aligned", (False, False, True)),
    ("+ one entry per WRITE", (False, False, False)),
)


def text() -> str:
    """All tables."""
    parts = (
        ("Transports: loads per byte sent by a GPU of the NVLink machine (GPU0 shares the NIC's switch)", copies()),
        ("RDMA WRITEs: the OSDI paper's Table 2 and a model fitted to its first three columns", writes()),
        ("GPUDirect RDMA against others: published (machines not known), and bounds on the NVLink machine", gains()),
    )
    return "\n\n".join(f"{title}\n\n{rows}" for title, rows in parts)


def copies() -> Table:
    """Links of GPU, switch, memory and NIC."""
    machine = preset("nvlink")
    rows = []
    for transport in _transports():
        for gpu in ("GPU0", "GPU2"):
            switch = machine.switch_of(gpu)
            found = loads(transport, machine, gpu, "NIC0")
            fastest, why = rate(transport, machine, gpu, "NIC0", cores=CORES)
            links = (f"{switch}->CPU0", "CPU0.memory", "CPU0->P0", "NIC0.out")
            shown = [f"{found[link]:g}" if link in found else NOTHING for link in links]
            serial = serial_rate(transport, machine, gpu, "NIC0", cores=CORES)
            rows.append((transport.name, gpu, *shown, f"{_gbit(fastest):.1f}", f"{_gbit(serial):.1f}", why))
    header = ("transport", "from", "switch-CPU", "memory", "CPU-P0", "NIC", "Gbit/s, overlapped", "serial", "limit")
    return table(header, rows)


def writes() -> Table:
    """Every column of the paper's table."""
    rows = []
    for (name, (loopback, unaligned, several)), published in zip(BURDENS, PUBLISHED_GBIT, strict=True):
        ours = write_rate(loopback=loopback, unaligned=unaligned, several_entries=several)
        how = "given" if ours == CLEAN_BYTES_PER_S else "fitted"
        rows.append((name, str(published), f"{_gbit(ours):.1f}", how))
    return table(("RDMA path", "published, Gbit/s", "model", "its number is"), rows)


def gains() -> Table:
    """By how much GPUDirect's rate is above others', on the NVLink machine, GPU and NIC under one switch."""
    machine = preset("nvlink")
    direct, _ = rate(GPUDIRECT, machine, "GPU0", "NIC0")
    copying, _ = rate(RDMA, machine, "GPU0", "NIC0")
    serial = serial_rate(RDMA, machine, "GPU0", "NIC0")
    hidden = hidden_share(direct / COPYING_OVER, serial, copying)
    grpc = CORES * GIB / (direct / GRPC_OVER)
    return table(
        ("against", "published", "overlapped", "serial", "the published number would mean"),
        [
            (
                "copying RDMA",
                f"{COPYING_OVER:.2f}",
                f"{direct / copying:.2f}",
                f"{direct / serial:.2f}",
                f"{hidden:.0%} of the copy is hidden behind sending",
            ),
            (
                "gRPC",
                f"{GRPC_OVER:.2f}",
                f"{direct / rate(_tcp(), machine, 'GPU0', 'NIC0', cores=CORES)[0]:.2f}",
                f"{direct / serial_rate(_tcp(), machine, 'GPU0', 'NIC0', cores=CORES):.2f}",
                f"{grpc:.2f} core-seconds per GiB on {CORES} cores, if cores limit it",
            ),
        ],
    )


def _tcp() -> Transport:
    return kernel_tcp(CORE_SECONDS_PER_GIB / GIB)


def _transports() -> tuple[Transport, ...]:
    return (_tcp(), RDMA, GPUDIRECT)


def _gbit(bytes_per_s: float) -> float:
    return bytes_per_s * 8e-9
