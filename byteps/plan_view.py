"""What `byteps plan` prints: a forecast as text.  Pure."""

from collections.abc import Sequence

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


def _group_row(group: Group) -> tuple[str, ...]:
    machine = group.machines[0]
    nic = format_rate(machine.nic_bytes_per_s) if len(machine.nics) == 1 else " + ".join(map(format_rate, machine.nics))
    if group.inside is None:
        inside = "1 GPU, or nothing known" if machine.role == "gpu" else "-"
    else:
        local = group.inside.plan
        roots = f" to {', '.join(local.roots)}" if local.roots and len(local.roots) <= 4 else ""
        inside = f"{local.name}{roots}: {local.reason}"
    return group.title, nic, f"{group.share:.2%}", inside


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
    return text + "."


def _columns(rows: Sequence[Sequence[str]]) -> list[str]:
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    return ["  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in rows]
