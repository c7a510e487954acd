"""The figures, drawn from records alone: one function per figure, one file per family.

A colour means a contender, a mark means a provenance, and points of different provenance are never joined:

    theory     a line without points
    paper      a cross in the contender's colour, cited in the caption
    simulated  an open diamond, joined by a thin broken line
    emulated   a filled mark, joined by a thin line; hollow for a launch that was CPU-bound
    measured   a filled mark

A point is the median over launches, its bar their range from least to largest; a single launch has no bar and says n=1.
A point without any usable launch is a gap with its reason; a contender that was not run is named with the remedy, and
so is an experiment that was not simulated: of those figures the paper's points are drawn in any case.
"""

from collections.abc import Callable
from pathlib import Path

from experiments.analysis import Loaded, load
from experiments.figures.aggregation import aggregation_time
from experiments.figures.alpha_beta import schemes_alpha_beta
from experiments.figures.compression import compression_cost
from experiments.figures.congestion import congestion_queues
from experiments.figures.convergence import convergence_loss
from experiments.figures.disciplines import disciplines_time
from experiments.figures.fat_tree import schemes_fat_tree
from experiments.figures.fig3 import fig3_cluster
from experiments.figures.fig4 import fig4_simulated, fig4_vgg16
from experiments.figures.fig9a import fig9a_optimisers
from experiments.figures.fig9b import fig9b_adder
from experiments.figures.fig12 import fig12_goodput, fig12_simulated
from experiments.figures.fig13 import fig13_speedup
from experiments.figures.fig14 import fig14_topology
from experiments.figures.fig14_emulated import fig14_emulated
from experiments.figures.fig15_16 import fig15_16_models
from experiments.figures.gain import gain_steps
from experiments.figures.limits import limits_nic, limits_racks
from experiments.figures.local import local_reduction
from experiments.figures.policies import schemes_policies
from experiments.figures.predicted import fig12_predicted
from experiments.figures.scale import scale_models
from experiments.figures.schemes import (
    schemes_choice,
    schemes_levels,
    schemes_merging,
    schemes_switch,
    schemes_topologies,
)
from experiments.figures.schemes_emulated import schemes_bml, schemes_emulated
from experiments.figures.sizes import sizes_counts, sizes_time
from experiments.figures.slow_nics import slow_nics
from experiments.figures.transports import transports_cost
from experiments.figures.unequal import placement_balance, unequal_nics
from experiments.figures.winners import limits_map, limits_price

Draw = Callable[[Loaded, Path], list[Path]]

FIGURES: dict[str, tuple[Draw, ...]] = {
    "fig12": (fig12_goodput,),
    "fig9b": (fig9b_adder, limits_nic),
    "fig4": (fig4_vgg16,),
    "fig15_16": (fig15_16_models,),
    "slow_nics": (slow_nics,),
    "gain": (gain_steps,),
    "sizes": (sizes_time, sizes_counts),
    "disciplines": (disciplines_time,),
    "aggregation": (aggregation_time,),
    "congestion": (congestion_queues,),
    "transports": (transports_cost,),
    "convergence": (convergence_loss,),
    "compression": (compression_cost,),
    "optimiser": (fig9a_optimisers,),
    "local": (local_reduction,),
    "inside": (fig14_emulated,),
    "topologies": (schemes_emulated,),
    "fat_tree": (schemes_fat_tree,),
    "alpha_beta": (schemes_alpha_beta,),
    "bml": (schemes_bml,),
    "bml_lenet5": (schemes_bml,),
}
WITHOUT_RECORDS = ("fig12", "fig9b", "optimiser", "disciplines")  # drawn in any case: other points are there

SIMULATED: dict[str, tuple[Draw, ...]] = {
    "fig12": (fig12_simulated, fig12_predicted),
    "fig4": (fig4_simulated,),
    "fig13": (fig13_speedup,),
    "fig14": (fig14_topology,),
    "scale": (scale_models,),
}
"""Figures of simulated records, beside the paper's points and emulated records where there are any."""

COMPUTED: tuple[Callable[[Path], list[Path]], ...] = (
    fig3_cluster,
    limits_racks,
    limits_map,
    limits_price,
    unequal_nics,
    placement_balance,
    schemes_topologies,
    schemes_levels,
    schemes_merging,
    schemes_switch,
    schemes_choice,
    schemes_policies,
)
"""Figures that no records belong to."""


def draw(loaded: Loaded, folder: Path) -> list[Path]:
    """The figures of one experiment."""
    wanted = SIMULATED.get(loaded.experiment, ())
    if loaded.records or loaded.experiment in WITHOUT_RECORDS:
        wanted = (*FIGURES.get(loaded.experiment, ()), *wanted)
    return [path for one in wanted for path in one(loaded, folder)]


def draw_all(results: Path) -> list[Path]:
    """Every figure that there are records for, or that needs none, into results/figures."""
    folder = results / "figures"
    drawn = [path for name in {**FIGURES, **SIMULATED} for path in draw(load(results, name), folder)]
    return drawn + [path for one in COMPUTED for path in one(folder)]
