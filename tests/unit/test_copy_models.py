"""Models of transports: loads of links, rates between two bounds, and the OSDI paper's Table 2."""

import math

import pytest
from hypothesis import given, settings
from insides import machines

from byteps.machine import Topology
from byteps.machine_file import preset
from byteps.transports import (
    CLEAN_BYTES_PER_S,
    FAR_GPUDIRECT_BYTES_PER_S,
    GPUDIRECT,
    LOOPBACK_SECONDS,
    RDMA,
    SEVERAL_ENTRIES_SECONDS,
    UNALIGNED_SECONDS,
    fitted_seconds,
    hidden_share,
    kernel_tcp,
    loads,
    rate,
    serial_rate,
    write_rate,
)
from experiments.tables import transports as tables

NVLINK, PCIE = preset("nvlink"), preset("pcie-only")
TCP = kernel_tcp(1e-9)
ALL = (TCP, RDMA, GPUDIRECT)


@settings(deadline=None, max_examples=40)
@given(machines(least_nics=1))
def test_every_byte_leaves_its_gpu_once_and_passes_the_nic_once(topology: Topology) -> None:
    nic = topology.nics[0]
    for transport in ALL:
        for gpu in topology.gpus:
            out, into = (loads(transport, topology, gpu, nic, sending=sending) for sending in (True, False))
            assert out[f"{nic}.out"] == into[f"{nic}.in"] == 1
            assert sum(load for link, load in out.items() if link.startswith(f"{gpu}->")) == 1
            assert sum(load for link, load in into.items() if link.endswith(f"->{gpu}")) == 1
            assert {*out, *into} <= set(topology.capacities)


@settings(deadline=None, max_examples=40)
@given(machines(least_nics=1))
def test_what_is_received_goes_back_the_way_it_would_be_sent(topology: Topology) -> None:
    nic = topology.nics[0]
    for transport in ALL:
        out, into = (loads(transport, topology, topology.gpus[0], nic, sending=sending) for sending in (True, False))
        for link, load in out.items():
            if "->" in link:
                assert into["->".join(reversed(link.split("->")))] == load
        for cpu in topology.cpus:
            assert out[f"{cpu}.memory"] == into[f"{cpu}.memory"]


@settings(deadline=None, max_examples=40)
@given(machines(least_nics=1))
def test_overlapping_is_never_slower_than_one_stage_after_the_other(topology: Topology) -> None:
    for transport in ALL:
        fastest, _ = rate(transport, topology, topology.gpus[0], topology.nics[0])
        assert fastest >= serial_rate(transport, topology, topology.gpus[0], topology.nics[0]) * (1 - 1e-9) or (
            math.isinf(fastest)
        )


def test_host_memory_carries_two_accesses_per_byte_by_rdma_four_by_tcp_none_by_gpudirect() -> None:
    found = [loads(transport, NVLINK, "GPU0", "NIC0").get("CPU0.memory", 0) for transport in ALL]
    assert found == [4, 2, 0]


def test_gpudirect_stays_below_the_switch_that_gpu_and_nic_share() -> None:
    found = loads(GPUDIRECT, NVLINK, "GPU0", "NIC0")
    assert set(found) == {"GPU0->P0", "P0->NIC0", "NIC0.out"}
    assert rate(GPUDIRECT, NVLINK, "GPU0", "NIC0") == (CLEAN_BYTES_PER_S, "NIC0.out")


@pytest.mark.parametrize(("topology", "gpu"), [(NVLINK, "GPU2"), (NVLINK, "GPU7"), (PCIE, "GPU0")])
def test_gpudirect_across_switches_stays_below_half_of_a_fast_nic(topology: Topology, gpu: str) -> None:
    fastest, why = rate(GPUDIRECT, topology, gpu, "NIC0")
    assert fastest == FAR_GPUDIRECT_BYTES_PER_S
    assert why == "GPU and NIC under different switches"


def test_tcp_is_as_fast_as_its_cores_until_the_nic_is() -> None:
    assert rate(TCP, NVLINK, "GPU0", "NIC0", cores=2) == (pytest.approx(2e9), "cores")
    assert rate(TCP, NVLINK, "GPU0", "NIC0", cores=20) == (CLEAN_BYTES_PER_S, "NIC0.out")


def test_what_is_in_host_memory_needs_no_gpu() -> None:
    for transport in (RDMA, GPUDIRECT):
        assert dict(loads(transport, PCIE, "", "NIC0")) == {"CPU0.memory": 1, "CPU0->NIC0": 1, "NIC0.out": 1}


def test_the_model_of_table_2_has_what_was_fitted_and_the_rest_within_two_percent() -> None:
    for (_, burdens), published in zip(tables.BURDENS, tables.PUBLISHED_GBIT, strict=True):
        names = ("loopback", "unaligned", "several_entries")
        ours = write_rate(**dict(zip(names, burdens, strict=True))) * 8e-9
        assert ours == pytest.approx(published, rel=0.02 if published == 89 else 1e-3)


def test_the_fitted_constants_are_those_that_the_published_numbers_give() -> None:
    rates = [gbit * 1e9 / 8 for gbit in tables.PUBLISHED_GBIT[:3]] + [CLEAN_BYTES_PER_S]
    constants = [LOOPBACK_SECONDS, UNALIGNED_SECONDS, SEVERAL_ENTRIES_SECONDS]
    assert fitted_seconds(rates) == pytest.approx(constants, rel=1e-2)


def test_the_published_gain_over_copying_rdma_lies_between_both_bounds() -> None:
    direct, _ = rate(GPUDIRECT, NVLINK, "GPU0", "NIC0")
    copying, _ = rate(RDMA, NVLINK, "GPU0", "NIC0")
    serial = serial_rate(RDMA, NVLINK, "GPU0", "NIC0")
    assert direct / copying < 1.21 < direct / serial
    assert 0 < hidden_share(direct / 1.21, serial, copying) < 1
    assert hidden_share(serial, serial, copying) == pytest.approx(0)
    assert hidden_share(copying, serial, copying) == pytest.approx(1)


def test_where_both_bounds_are_one_nothing_can_be_hidden() -> None:
    with pytest.raises(ValueError, match="nothing to hide"):
        hidden_share(1e9, 1e9, 1e9)


def test_the_tables_name_every_transport_and_every_column_of_table_2() -> None:
    text = tables.text()
    for word in ("kernel TCP", "GPUDirect RDMA", "89", "76", "fitted", "given", "2.43", "1.21"):
        assert word in text
