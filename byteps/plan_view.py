"""What `byteps plan` prints: a forecast as text.  Pure."""

from collections.abc import Sequence
from itertools import groupby

from byteps.choose import Choice
from byteps.planning import Alternative, Forecast, Group
from byteps.units import format_nbytes, format_rate


def view(forecast: Forecast, title: str) -> str:
    """Machines, times, and what one more CPU machine would bring."""
    cluster = forecast.cluster
    paragraphs = [
        [f"{title}: {cluster.n} GPU machines, {cluster.k} CPU machines; {format_nbytes(forecast.nbytes)} of gradients"],
        _columns([("machines", "NIC", "share of each", "inside"), *map(_group_row, forecast.groups)]),
        _columns([("scheme", "time", "goodput", "BytePS is", "limited by"), *_scheme_rows(forecast)]),
        [_one_more(forecast)],
    ]
    notes = [f"note: {forecast.shares.notice}"] if forecast.shares.notice else []
    notes += [f"{name}: {text}" for name, texts in forecast.warnings.items() for text in texts]
    if notes:
        paragraphs.append(notes)
    return "\n\n".join("\n".join(lines) for lines in paragraphs)


def schemes(ranked: Sequence[Choice]) -> str:
    """Every scheme that fits the cluster's network; "" if none was simulated."""
    if not ranked:
        return ""
    best = ranked[0].seconds
    rows = [("schedule", "time", "times the fastest", "simulated")]
    rows += [
        (
            one.name,
            f"{one.seconds:.4g} s",
            f"{one.seconds / best:.2f}" if best else "-",
            "exactly" if one.exact else "by rounds",
        )
        for one in ranked
    ]
    title = "As schedules of whole chunks, NICs and uplinks only (docs/schemes.md):"
    return "\n".join([title, *_columns(rows)])


def _group_row(group: Group) -> tuple[str, ...]:
    machine = group.machines[0]
    nic = " + ".join(f"{count} x {rate}" if count > 1 else rate for rate, count in _counted(machine.nics))
    if group.inside is None:
        inside = "1 GPU, or nothing known" if machine.role == "gpu" else "-"
    else:
        local = group.inside.plan
        roots = f" to {', '.join(local.roots)}" if local.roots and len(local.roots) <= 4 else ""
        inside = f"{local.name}{roots}: {local.reason}"
    return group.title, nic, share_text(group.share), inside


def _counted(nics: Sequence[float]) -> list[tuple[str, int]]:
    """Rates that are the same in a row, and how many there are."""
    return [(rate, len(list(same))) for rate, same in groupby(map(format_rate, nics))]


def share_text(share: float) -> str:
    """ "15.91%"; with more digits where those would all be 0, since no share that is summed is nothing."""
    for digits in range(2, 7):
        if not share or share * 100 >= 10 ** (1 - digits):
            return f"{share:.{digits}%}"
    return "<0.00001%"


def _scheme_rows(forecast: Forecast) -> list[tuple[str, ...]]:
    ours = forecast.byteps
    rows: list[tuple[str, ...]] = [(ours.name, *_time_and_goodput(ours, forecast.nbytes), "", _limit(ours))]
    for one in sorted(forecast.alternatives, key=lambda other: other.seconds):
        ratio = f"{one.seconds / ours.seconds:.2f} times as fast" if ours.seconds else ""
        rows.append((one.name, *_time_and_goodput(one, forecast.nbytes), ratio, _limit(one)))
    return rows


def _time_and_goodput(one: Alternative, nbytes: int) -> tuple[str, str]:
    return f"{one.seconds:.4g} s", format_rate(nbytes / one.seconds) if one.seconds else "-"


def _limit(one: Alternative) -> str:
    machines, _, link = one.bottleneck.rpartition("/")
    return f"{link} of {machines}" if machines else link


def _one_more(forecast: Forecast) -> str:
    now, then = forecast.byteps.seconds, forecast.one_more.seconds
    gain = 1 - then / now if now else 0.0
    text = f"One more CPU machine: {then:.4g} s, {gain:.1%} less"
    if gain < 0.001:
        text = f"One more CPU machine brings nothing: {_limit(forecast.one_more)} stays the limit"
    price, added = forecast.price, forecast.added_price
    if price and added:
        cost = (price + added) * then / (price * now) - 1 if now else 0.0
        text += (
            f"; the machines would cost {price + added:g} instead of {price:g} per hour, "
            f"{abs(cost):.1%} {'more' if cost > 0 else 'less'} for each synchronisation"
        )
    return f"{text}.{_why_no_cost(forecast)}"


def _why_no_cost(forecast: Forecast) -> str:
    """A sentence where costs are not compared."""
    unknown = [machine.name for machine in forecast.cluster.machines if not machine.price]
    if unknown:
        more = f" and {len(unknown) - 1} more" if len(unknown) > 1 else ""
        return f" Costs are not compared: {unknown[0]}{more} without a `price` (per hour) in the cluster's file."
    if not forecast.added_price:
        return " Costs are not compared: what a CPU machine costs is not known, since there is none."
    return ""


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
