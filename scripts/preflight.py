"""Whether the hosts of a site can do the job: looked up on all at once, in one table; nothing is changed there."""

import contextlib
import json
import time
from collections.abc import Callable

from byteps.hosts import Site
from scripts import preflight_rules as rules
from scripts.preflight_rules import HEADING, Look
from scripts.sessions import Sessions
from scripts.ssh import HostFailed, Session
from scripts.talk import Talk

FLOW_SECONDS = 1.5
_LOOK_SECONDS = 90.0  # nvidia-smi of many GPUs takes long
_STEP_SECONDS = 20.0  # of a conversation, on one host


def preflight(site: Site, *, tell: Callable[[str], None] = print) -> tuple[str, bool]:
    """The table with what to do, and whether every host is all right."""
    with Sessions(site, tell=tell) as sessions:
        looks = sessions.each("looking at the hosts", look_at, seconds=_LOOK_SECONDS)
        _links(sessions, looks)
        notes = _judge(sessions, looks)
        names = {name: rules.cells(look, len(looks)) for name, look in looks.items()}
        table = sessions.table(names, HEADING)
    return "\n".join([table, *notes]), not sessions.failures


def look_at(session: Session) -> Look:
    host = session.host
    session.status = "looking"
    asked = time.time()
    arguments = (host.workdir, host.environment, host.address)
    facts = json.loads(session.program("host_probe", "facts", *arguments, seconds=_LOOK_SECONDS))
    return Look(host=host, facts=facts, skew_seconds=rules.clock_skew(asked, facts["now"], time.time()))


def _judge(sessions: Sessions, looks: dict[str, Look]) -> list[str]:
    """Failures go to `sessions`; the notes are returned."""
    site = sessions.site
    notes = []
    apart = rules.unequal(list(looks.values()))
    for name, look in looks.items():
        found = rules.problems(look, cap=bool(site.cap_bytes_per_s), measured=site.provenance == "measured")
        found += [apart[name]] if name in apart else []
        wrong = [one for one in found if one.severity == "failed"]
        notes += [f"{name}, note: {one.text}; {one.todo}" for one in found if one.severity == "note"]
        if wrong:
            texts, todos = "; ".join(one.text for one in wrong), "; ".join(one.todo for one in wrong)
            sessions.failures.setdefault(name, HostFailed(texts, todos))
    return notes


def _links(sessions: Sessions, looks: dict[str, Look]) -> None:
    """Every pair's ports, then all NICs at once, both ways: each host sends to its neighbour.

    All hosts end a step before the next one begins; a host that fails in one takes no part in what follows.
    """
    talks: dict[str, Talk] = {}
    with contextlib.ExitStack() as stack:

        def open_port(session: Session) -> int:
            talk = Talk(session, "host_probe", "links", session.host.address)
            talks[session.host.name] = stack.enter_context(talk)
            port: int = talk.hear("opening a port", _STEP_SECONDS)["port"]
            return port

        ports = sessions.each("opening ports", open_port, seconds=2 * _STEP_SECONDS)
        taking_part = [looks[name] for name in ports]
        pairs = {one.host.name: (to.host, rate) for one, to, rate in rules.ring(taking_part)}
        streams = max([rules.flows(rate) for _, rate in pairs.values()], default=0)
        for one in taking_part:
            for to, rate in [pairs[one.host.name]] if pairs else []:
                looks[to.name].expected = rate

        def connect(session: Session) -> None:
            name = session.host.name
            others = [[one.host.name, one.host.address, ports[one.host.name]] for one in taking_part]
            neighbour = [pairs[name][0].address, ports[pairs[name][0].name]] if pairs else []
            order = {"peers": others, "to": neighbour, "flows": streams, "seconds": FLOW_SECONDS}
            talks[name].say({**order, "peers": [other for other in others if other[0] != name]})
            looks[name].unreached = talks[name].hear("connecting to the others", _STEP_SECONDS)["unreached"]

        def measure(session: Session) -> None:
            talk = talks[session.host.name]
            talk.say("go")
            looks[session.host.name].bytes_per_s = talk.hear("measuring the rate", _STEP_SECONDS)["bytes_per_s"]

        sessions.each("connecting between all pairs", connect, seconds=2 * _STEP_SECONDS)
        if pairs:
            sessions.each("measuring the links", measure, seconds=2 * _STEP_SECONDS)
