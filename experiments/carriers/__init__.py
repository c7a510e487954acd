"""Ways to get a tensor from one process to another on this machine, each a module with a `Sender` and a `Receiver`.

A sender and a receiver meet at a `Place`.  `Sender.send` hands over a whole tensor, message by message, and returns
when the caller need not wait any more; `Receiver.receive` returns when every byte lies in the receiver's own tensor,
which is what a sum needs: a transport that delivers an object of its own pays for copying it there.
Standard library and numpy only, and what the transport itself needs: the programs run in its environment.
"""

from dataclasses import dataclass
from typing import Protocol, runtime_checkable

START_SECONDS = 20.0
SILENT_SECONDS = 30.0  # without a message


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where the two ends meet, and what passes."""

    address: str
    port: int  # of TCP; names of sockets and memory are made of it
    nbytes: int  # of the tensor
    message_nbytes: int

    @property
    def name(self) -> str:
        """Of what lives in a namespace of the machine's."""
        return f"byteps-transport-{self.port}"

    @property
    def messages(self) -> list[tuple[int, int]]:
        """Start and end of each; the last one may be shorter."""
        ends = range(self.message_nbytes, self.nbytes + self.message_nbytes, self.message_nbytes)
        return [(end - self.message_nbytes, min(end, self.nbytes)) for end in ends]


@runtime_checkable
class Sender(Protocol):
    """The end that has the tensor."""

    def send(self, tensor: memoryview) -> None: ...

    def close(self) -> None: ...


class Receiver(Protocol):
    """The end that wants it; it is there first."""

    def receive(self, tensor: memoryview) -> None: ...

    def close(self) -> None: ...
