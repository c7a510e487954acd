"""What `byteps doctor` prints: plain lines, a table on a terminal, or JSON."""

from collections.abc import Sequence

import msgspec

from byteps.doctor import Facts, Finding, fit
from byteps.version import VERSION


def as_text(found: Sequence[Finding]) -> str:
    """One line for each check; below those that miss something, what that disables and what to do."""
    width = max(len(one.check) for one in found)
    lines = []
    for one in found:
        lines.append(f"{one.state:7}  {one.check.ljust(width)}  {one.found}")
        if one.state == "missing":
            indent = " " * (width + 11)
            lines += [f"{indent}disables: {one.disables}", f"{indent}do: {one.do}"]
    return "\n".join([*lines, "", conclusion(found)])


def as_json(facts: Facts, found: Sequence[Finding]) -> str:
    """Facts and findings, for a report of a defect."""
    everything = {"byteps": VERSION, "fit": fit(found), "findings": list(found), "facts": facts}
    return msgspec.json.format(msgspec.json.encode(everything), indent=2).decode()


def show(found: Sequence[Finding]) -> None:
    """The table, and the conclusion."""
    from rich.console import Console  # here, because only terminals need it
    from rich.table import Table
    from rich.text import Text

    table = Table("check", "state", "found, what is disabled, what to do")
    for one in found:
        missing = one.state == "missing"
        style = ("bold red" if one.essential else "yellow") if missing else "green"
        text = Text(one.found)
        if missing:
            text.append(f"\ndisables: {one.disables}", style="dim").append(f"\ndo: {one.do}")
        table.add_row(one.check, Text(one.state, style=style), text)
    console = Console()
    console.print(table)
    console.print(Text(conclusion(found)))


def conclusion(found: Sequence[Finding]) -> str:
    """The last line."""
    missing = [one for one in found if one.state == "missing"]
    if not fit(found):
        names = ", ".join(one.check for one in missing if one.essential)
        return f"No job can run here until this is mended: {names}."
    if not missing:
        return f"All {len(found)} checks are ok."
    names = ", ".join(one.check for one in missing)
    return f"Jobs can run here; {len(missing)} of {len(found)} checks miss something that only some uses need: {names}."
