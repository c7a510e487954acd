"""BSP, SSP and ASP when one worker is slow: rates and staleness, simulated."""

from pathlib import Path

from experiments import policies
from experiments.figures.schemes import DASHES, DIAMOND, SERVER
from experiments.figures.sheet import PAGE, sheet


def schemes_policies(folder: Path) -> list[Path]:
    """A mesh: iterations/s of the fastest worker, by kind of straggler, and what pushes were computed without."""
    same, in_turn = policies.STRAGGLERS
    with sheet("Waiting for a slow worker: BSP, SSP, ASP", columns=3, width=PAGE, height=2.1) as page:
        for style, policy in zip(DASHES, policies.POLICIES, strict=False):
            look = {**DIAMOND, "linestyle": style, "linewidth": 0.9, "color": SERVER, "markeredgecolor": SERVER}
            found = {
                straggler: [policies.outcome("mesh", policy, straggler, slower) for slower in policies.SLOWER]
                for straggler in policies.STRAGGLERS
            }
            page.panels[0].plot(policies.SLOWER, [one.fast_rate for one in found[same]], **look)
            page.panels[1].plot(policies.SLOWER, [one.fast_rate for one in found[in_turn]], **look)
            page.panels[2].plot(policies.SLOWER, [one.missed for one in found[same]], **look)
            page.legend.add("Simulated", policy.name, **look)
        for axes, title in zip(
            page.panels, ("always the same worker", "each in turn", "always the same worker"), strict=True
        ):
            axes.set_title(title, fontsize=8)
            axes.set(xlabel="times as slow", xticks=policies.SLOWER, ylim=(0, None))
        page.panels[0].set_ylabel("fastest worker, iterations/s")
        page.panels[2].set_ylabel("pushes missed, at most")
        caption = [
            f"Mesh of {policies.WORKERS}, {policies.COMPUTE_SECONDS * 1e3:g} ms of computation, "
            f"{policies.NBYTES / 1e6:g} MB, NICs of 10 Gbit/s, {policies.ITERATIONS} iterations; rates are those of a "
            "worker's second half. One worker computes so many times as long. On the left SSP lies on BSP.",
            "A bound buys time only where another worker is slow each time; behind one that always is, everybody ends "
            "up at its rate. Pushes missed: those of others between an answer and the next push. What staleness does "
            "to convergence is not here.",
        ]
        return page.save(folder, "schemes_policies", caption)
