"""The paper's numbers are transcribed whole and agree with each other, and with the decoded graphics where present."""

import csv
import json
from datetime import date
from itertools import product
from pathlib import Path
from statistics import mean

import pytest

from byteps import theory
from experiments import paper

# Decoded from the paper's graphics; not part of this repository.
REFERENCE = Path(__file__).resolve().parents[3] / "shared" / "reference"
MACHINES = ("pcie-only", "nvlink")
MODELS = ("gpt2", "ugatit")


@pytest.fixture(scope="module")
def decoded():
    file = REFERENCE / "byteps_osdi20_figures.json"
    if not file.exists():
        pytest.skip(f"{file.name} is no part of the repository")
    return json.loads(file.read_text(encoding="utf-8"))


def test_figure_3_holds_every_day_of_the_first_quarter_of_2020():
    trace = paper.fig3()
    assert (trace.days[0], trace.days[-1], len(trace.days)) == (date(2020, 1, 1), date(2020, 3, 31), 91)
    assert len(trace.cpu_utilisation) == 91
    assert (min(trace.distributed), max(trace.distributed)) == pytest.approx((55, 80), abs=0.1)
    assert (min(trace.cpu_utilisation), max(trace.cpu_utilisation)) == pytest.approx((9.3, 38.2), abs=0.1)
    assert mean(trace.distributed) == pytest.approx(69.5, abs=0.05)
    assert mean(trace.cpu_utilisation) == pytest.approx(20.7, abs=0.05)


def test_the_idle_nics_of_figure_3_are_those_of_the_papers_text():
    """Between 20 % and 45 % of the GPU machines do not use their NIC."""
    idle = paper.fig3().idle_nics
    assert (min(idle), max(idle)) == pytest.approx((20, 45), abs=0.1)
    assert mean(idle) + mean(paper.fig3().distributed) == pytest.approx(100)


def test_figure_3_is_the_decoded_trace():
    file = REFERENCE / "byteps_osdi20_fig3_cluster_trace.csv"
    if not file.exists():
        pytest.skip(f"{file.name} is no part of the repository")
    with file.open(encoding="utf-8", newline="") as lines:
        rows = [[float(value) for value in row] for row in list(csv.reader(lines))[1:]]
    trace = paper.fig3()
    assert [[*row] for row in zip(range(91), trace.distributed, trace.cpu_utilisation, strict=True)] == rows


def test_figure_13_has_a_speedup_for_every_machine_model_and_k():
    figure = paper.fig13()
    assert (figure.n, figure.gpus_per_machine, figure.k) == (8, 8, list(range(9)))
    assert set(figure.speedup) == set(MACHINES)
    for machine in MACHINES:
        assert {model: len(values) for model, values in figure.speedup[machine].items()} == dict.fromkeys(MODELS, 9)


def test_no_speedup_of_figure_13_exceeds_what_the_network_alone_would_give():
    """gamma_a = (n^2 + kn - 2k) / n^2 and at k = 0 the machine's inside: none is above their product."""
    figure = paper.fig13()
    for machine, model in product(MACHINES, MODELS):
        values = figure.speedup[machine][model]
        assert max(values) == values[-1]
        for k, value in zip(figure.k, values, strict=True):
            assert 1 < value <= values[0] * theory.ring_seconds(1, 8, 1.0) / theory.byteps_seconds(1, 8, k, 1.0) + 1e-9


def test_the_best_ways_of_figure_14_are_figure_13_without_cpu_machines():
    with_k, inside = paper.fig13(), paper.fig14()
    assert (inside.n, inside.gpus_per_machine) == (with_k.n, with_k.gpus_per_machine)
    for machine, model in product(MACHINES, MODELS):
        best = max(inside.speedup[machine][model].values())
        assert best == pytest.approx(with_k.speedup[machine][model][0], rel=0.04)


@pytest.mark.parametrize("model", MODELS)
def test_figure_14_tells_the_papers_choice_from_the_others(model: str):
    pcie, nvlink = (paper.fig14().speedup[machine][model] for machine in MACHINES)
    assert list(pcie) == ["strawman", "optimal"]
    assert 1 < pcie["strawman"] < pcie["optimal"]
    assert 1 < nvlink["root=0"] < nvlink["root=all"] < nvlink["root=2,3"] <= nvlink["root=2"]
    assert len(nvlink) == 4


def test_figures_13_and_14_are_the_decoded_ones(decoded):
    assert paper.fig13().speedup == {"pcie-only": decoded["fig13a_pcie"], "nvlink": decoded["fig13b_nvlink"]}
    ways = {"root_all": "root=all", "root_0": "root=0", "root_2_3": "root=2,3", "root_2": "root=2"}
    for machine, name in zip(MACHINES, ("fig14a", "fig14b"), strict=True):
        for model in MODELS:
            values = {ways.get(way, way): value for way, value in decoded[name][model].items()}
            assert paper.fig14().speedup[machine][model] == values


def test_the_other_figures_are_the_decoded_ones(decoded):
    fig12, fig4 = paper.fig12(), paper.fig4()
    for key, values in decoded["fig12_goodput_gbps"].items():
        assert getattr(fig12, key) == values
    for key, values in decoded["fig4_vgg16_img_s"].items():
        assert getattr(fig4, key) == values
    assert {"cpu": paper.fig9a().cpu, "cpu_mkl": paper.fig9a().mkl} == decoded["fig9a"]
    assert {"fp16": paper.fig9b().fp16, "fp32": paper.fig9b().fp32} == decoded["fig9b_gbps"]
    training = paper.fig15_16()
    assert training.gpus == decoded["gpus"]
    keys = {"linear": "linear", "native_ps": "ps", "allreduce": "allreduce", "byteps_nocpu": "byteps_k0"}
    for model, one in training.model.items():
        for key, values in decoded[model.removesuffix("_big")].items():
            assert getattr(one, {**keys, "byteps": "byteps_kn"}[key]) == values
