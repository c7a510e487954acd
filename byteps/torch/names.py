"""What an optimiser's parameters are called: names that are unique, and the same on every rank.

Given names are the model's.  Without them a parameter is called after its place in the optimiser, which the same
program gives it on every rank.  Pure.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch

from byteps.torch.exchange import listed


def name_parameters(
    groups: Sequence[Mapping[str, Any]],
    named: Iterable[tuple[str, torch.Tensor]] | Mapping[str, torch.Tensor] | None,
) -> dict[str, torch.Tensor]:
    """Every parameter of the optimiser by its name, in the order of the names given.

    Names of other parameters are left out: a model often has more than one optimiser.
    """
    places = {
        f"group {g}/parameter {i}": parameter
        for g, group in enumerate(groups)
        for i, parameter in enumerate(group["params"])
    }
    if named is None:
        return places
    pairs = list(named.items() if isinstance(named, Mapping) else named)
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[1], torch.Tensor)):
            raise ValueError(
                f"named_parameters has {pair!r:.80}, which is no (name, parameter); pass model.named_parameters()"
            )
    wanted = {id(parameter) for parameter in places.values()}
    found: dict[str, torch.Tensor] = {}
    seen: set[int] = set()
    others: list[str] = []
    for name, parameter in pairs:
        if id(parameter) not in wanted:
            others.append(name)
        elif id(parameter) not in seen:  # a shared parameter goes by its first name
            if name in found:
                raise ValueError(
                    f"named_parameters has the name {name!r} twice; give each parameter a name of its own, such as "
                    "(f'{prefix}.{name}', parameter) for the parameters of several models"
                )
            seen.add(id(parameter))
            found[name] = parameter
    missing = [f"{place} {tuple(p.shape)}" for place, p in places.items() if id(p) not in seen]
    if missing:
        strangers = f"; it names {listed(map(repr, others))}, which the optimizer does not have" if others else ""
        raise ValueError(
            f"named_parameters has no name for {len(missing)} of the optimizer's {len(places)} parameters: "
            f"{listed(missing)}{strangers}; pass the named_parameters() of every model that the optimizer trains, or "
            "none at all"
        )
    return found
