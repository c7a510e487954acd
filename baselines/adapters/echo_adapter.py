"""The bare echo pair as a contender: one worker and one tensor, whose sum is what was sent."""

from collections.abc import Sequence

from baselines.echo import Client
from baselines.session import Array, Tensor


class Session:
    """A connection to the echo server."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def declare(self, tensors: Sequence[Tensor], gradients: Sequence[Array]) -> None:
        (self._gradient,) = gradients

    def submit(self, index: int) -> None:
        """Nothing: `wait` does it all, as a blocking call does."""

    def wait(self, index: int) -> Array:
        """There and back, in place."""
        self._client.echo(self._gradient.data.cast("B"))
        return self._gradient

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
