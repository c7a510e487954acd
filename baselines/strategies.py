"""How a contender is used: as it is, or through a strategy wrapped around its session."""

from baselines.session import Session


def wrap(session: Session, settings: dict[str, str]) -> Session:
    """The session itself, or the strategy that the settings name around it."""
    strategy = settings.get("strategy", "plain")
    if strategy != "plain":
        raise ValueError(f"strategy {strategy!r} is not one of plain")
    return session
