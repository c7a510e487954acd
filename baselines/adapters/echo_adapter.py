"""The bare echo pair as a contender: one worker, whose sum is what it sent."""

from typing import Any

from baselines.echo import Client


class Session:
    """A connection to the echo server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def all_reduce(self, array: Any) -> Any:
        """There and back, in place, blocking."""
        self._client.echo(memoryview(array).cast("B"))
        return array

    def facts(self) -> dict[str, str]:
        return {"congestion_control": self._client.congestion_control}

    def close(self) -> None:
        self._client.close()


def start(*, rank: int, size: int, settings: dict[str, str]) -> Session:
    client = Client(
        settings["address"],
        int(settings["port"]),
        int(settings["nbytes"]),
        int(settings["partition"]),
        settings["congestion_control"],
    )
    return Session(client)
