"""Figures are drawn from any records: whole, partial, single, failed, none."""

import matplotlib.pyplot as plt
import pytest
from synthetic import (
    MODELS,
    NOT_INSTALLED,
    SLOW_NIC,
    failed,
    figure_12,
    loaded,
    made,
    not_run,
    replayed,
    summed_locally,
    trained,
)

from experiments import compression, convergence, figures, local
from experiments.analysis import absent_text, frame
from experiments.figures import series, sheet
from experiments.figures.against_k import lines_against_k, looks
from experiments.figures.fig12 import of_wanted_size
from experiments.figures.fig15_16 import without_and_with
from experiments.figures.sheet import Legend, absent_entries
from experiments.optimiser import OPTIMISERS
from experiments.record import Fidelity

CONTENDERS = (("byteps", 0), ("byteps", 4), ("horovod", 0), ("mxnet-sync", 4), ("mxnet-sync", 0))


def replays(experiment, models, blocks, **changes):
    return [
        replayed(name, 1.0 + 0.1 * block, model, n=4, k=k, block=block, experiment=experiment, **changes)
        for block in range(blocks)
        for model in models
        for name, k in CONTENDERS
    ]


def records_of(experiment, blocks):
    if experiment == "fig12":
        return figure_12(blocks=blocks)
    if experiment == "fig9b":
        return [
            made("cpu-adder", 0.1, n=1, nic_bytes_per_s=0.0, settings={"dtype": "fp32", "cores": cores}, block=block)
            for block in range(blocks)
            for cores in ("1", "all")
        ]
    if experiment in ("convergence", "compression"):
        return [
            trained(case)
            for case in {"convergence": convergence, "compression": compression}[experiment].cases(blocks=blocks)
        ]
    if experiment == "local":
        return [summed_locally(case) for case in local.cases(blocks=blocks, lab_blocks=blocks)]
    if experiment == "optimiser":
        return [
            made("cpu-optimiser", 0.1, n=1, nic_bytes_per_s=0.0, settings={"optimiser": name}, block=block)
            for block in range(blocks)
            for name in OPTIMISERS
        ]
    if experiment == "disciplines":
        return [
            made("byteps", 1.0, k=k, block=block, experiment="disciplines", settings={"credit": credit})
            for block in range(blocks)
            for k in (0, 2, 8)
            for credit in ("auto", "4MiB")
        ]
    if experiment == "aggregation":
        lines = (("switch-sum", {"loss": "0"}), ("switch-sum", {"loss": "0.01"}), ("schedule", {"scheme": "ring"}))
        return [
            made(name, 1.0, n=n, block=block, experiment=experiment, settings=settings)
            for block in range(blocks)
            for name, settings in lines
            for n in (4, 8, 16)
        ]
    if experiment == "fig4":
        return replays("fig4", ["vgg16@fig4"], blocks)
    if experiment == "slow_nics":
        return replays("slow_nics", MODELS, blocks, real_nic=SLOW_NIC)
    if experiment == "sizes":
        return [
            made(name, nbytes * 1e-7, nbytes=nbytes, k=k, block=block, workload=workload, experiment="sizes")
            for block in range(blocks)
            for name, k in CONTENDERS
            for nbytes in (2**16, 2**20)
            for workload in ("tensor", "tensors:10")
        ]
    return replays(experiment, MODELS, blocks)


@pytest.mark.parametrize("experiment", figures.FIGURES)
@pytest.mark.parametrize("what", ["whole", "single", "failed", "not run", "none"])
def test_every_figure_is_drawn_from_any_records(experiment, what, tmp_path, monkeypatch):
    if what != "whole":  # to lay out and to write takes most of the time
        monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda _, path, **__: path.write_bytes(bytes(2000)))
    records = records_of(experiment, 1 if what == "single" else 2) if what in ("whole", "single") else []
    bare = ("fig12", "fig9b", "sizes", "disciplines", "aggregation", "topologies", "fat_tree")
    case = {"experiment": experiment, "workload": "tensor" if experiment in bare else "gpt2"}
    if what in ("whole", "failed"):
        records = [*records, failed("horovod", **case), failed("byteps", k=2, **case)]
    if what != "none":
        records = [*records, not_run("mxnet-p3", **case)]
    paths = figures.draw(loaded(experiment, records, "byteps", "ddp"), tmp_path)
    of_paper = 2 * (experiment in figures.SIMULATED)  # drawn in any case
    if records or experiment in figures.WITHOUT_RECORDS:
        assert len(paths) == 2 * len(figures.FIGURES[experiment]) + of_paper
        assert all(path.stat().st_size > 1000 for path in paths)
    else:
        assert len(paths) == of_paper


def test_a_figure_is_the_same_for_the_same_records(tmp_path):
    run = loaded("fig12", figure_12())
    first = [path.read_bytes() for path in figures.draw(run, tmp_path / "a")]
    assert [path.read_bytes() for path in figures.draw(run, tmp_path / "b")] == first


def test_only_what_has_records_or_numbers_of_the_paper_is_drawn_by_all(tmp_path, monkeypatch):
    monkeypatch.setattr("matplotlib.figure.Figure.savefig", lambda _, path, **__: path.write_bytes(b""))
    names = {path.stem for path in figures.draw_all(tmp_path)}
    simulated = {"fig4_simulated", "fig12_simulated", "fig13_speedup", "fig14_topology", "scale_models"}
    theory = {"limits_nic", *(one.__name__ for one in figures.COMPUTED)}
    assert names == {"fig12_goodput", "fig9a_optimisers", "fig9b_adder", "disciplines_time", *simulated, *theory}


def drawn(rows, **changes):
    """The panel, the legend and the gaps after one line was drawn."""
    with sheet.sheet("test") as page:
        (axes,) = page.panels
        table = frame(rows)
        (look,) = looks(table)
        gaps = series.draw(
            axes, page.legend, table, look, x="k", y="goodput_fraction", place=series.beside(0.0), **changes
        )
        labels = [label for _, label in page.legend.sections.get(series.EMULATED, [])]
        points = [line for line in axes.lines if len(line.get_xdata())]
        return points, labels, gaps, [text.get_text() for text in axes.texts]


def test_several_launches_are_a_median_with_the_range_and_a_single_one_says_so():
    _, labels, gaps, texts = drawn(
        [made("byteps", 1.0, block=0), made("byteps", 2.0, block=1), made("byteps", 1.0, k=4)]
    )
    assert labels == ["BytePS"]
    assert texts == ["n=1"]
    assert not gaps
    _, labels, _, texts = drawn([made("byteps", 1.0), made("byteps", 1.0, k=4)])
    assert labels == ["BytePS, n=1"]
    assert texts == []


def test_a_line_does_not_bridge_a_gap():
    points, _, gaps, _ = drawn([made("byteps", 1.0, k=k) for k in (0, 1, 4)] + [failed("byteps", k=2)])
    lengths = [len(line.get_xdata()) for line in points]
    assert lengths == [2, 1]
    assert [(gap.x, gap.reason) for gap in gaps] == [(2.0, "failed")]


def test_reasons_of_gaps_tell_failures_wrong_sums_and_busy_machines_apart():
    busy = made("byteps", 1.0, k=1, record_fidelity=Fidelity(verdict="links-off"))
    _, _, gaps, _ = drawn([failed("byteps", k=2), busy, made("byteps", 1.0)])
    assert [gap.reason for gap in gaps] == ["not faithful", "failed"]


def test_a_launch_that_was_cpu_bound_is_hollow_and_says_so():
    spinning = {"settings": {"wait": "spin"}, "record_fidelity": Fidelity(verdict="cpu-bound")}
    points, labels, gaps, _ = drawn([made("horovod", 1.0, **spinning)])
    assert labels == ["Horovod (gloo), spinning, CPU-bound, n=1"]
    assert points[0].get_markerfacecolor() == "white"
    assert not gaps


def test_what_is_not_installed_is_in_the_legend_and_its_remedy_in_the_caption():
    legend = Legend()
    text = absent_entries(loaded("fig12", [made("byteps", 1.0), not_run("horovod")], "byteps", "horovod"), legend)
    assert [label for _, label in legend.sections["Not run (see below)"]] == ["Horovod (gloo)"]
    assert NOT_INSTALLED.removeprefix("not run: ") in text
    assert absent_text({}) == ""


def test_k_independent_contenders_stand_apart_from_every_k():
    rows = frame([made("byteps", 1.0, k=k) for k in (0, 8)] + [made("horovod", 1.0), made("gloo-ring", 1.0)])
    with sheet.sheet("test") as page:
        lines_against_k(page.panels[0], page.legend, rows, "goodput_fraction")
        places = sorted(float(x) for line in page.panels[0].lines for x in line.get_xdata())
    assert places[0] < places[1] < -0.5 < places[2]


def test_a_single_machine_belongs_to_both_lines_of_byteps():
    rows = frame([replayed("byteps", 1.0, "gpt2", n=n, k=k) for n, k in ((1, 0), (2, 0), (2, 2), (4, 2))])
    found = {look.label: sorted(part["n"]) for look, part in without_and_with(rows)}
    assert found == {"BytePS, k = 0": [1, 2], "BytePS, k = n": [1, 2]}


def test_every_line_of_figure_12_is_shown_at_the_size_nearest_to_the_claims():
    rows = [made("byteps", 1.0, nbytes=nbytes) for nbytes in (2**24, 2**26, 2**28)]
    rows += [made("horovod", 1.0, nbytes=2**24)]
    table = of_wanted_size(frame(rows))
    assert dict(zip(table["contender"], table["nbytes"], strict=True)) == {"byteps": 2**26, "horovod": 2**24}


@pytest.fixture(autouse=True)
def _no_figure_is_left_open():
    yield
    assert plt.get_fignums() == []
