"""What summing on several GPUs asks of a GPU (streams, events, copies, collectives among local ranks) and of the host.

Nothing here waits: work is queued on streams.  A stream does its work in order; between streams only events make an
order.  `local_device` is written against this interface, `device_cuda` fulfils it, and the tests have a device in plain
memory that runs what is queued in every order that streams and events allow.
"""

from collections.abc import Callable
from concurrent.futures import Future
from typing import Any, Literal, Protocol

from byteps.communication import Pending
from byteps.device_plan import Collective
from byteps.errors import BytePSError

Stream = Any  # the device's own; only handed back to it
Event = Any
Memory = Any  # flat elements, on the device or pinned in the host; memory[start:end] is a part of the same memory
Half = Literal[1, 2]  # of a sum: up to the host, and back
Done = Callable[[BaseException | None], None]  # told once: None, or what went wrong


class DeviceError(BytePSError):
    """A GPU, its driver or NCCL refused something; the text says what, and what to do."""


class Device(Protocol):
    """One GPU of this process."""

    def stream(self, name: str) -> Stream:
        """One of the device's streams for summing, by name; none of them waits for another by itself."""

    def current(self) -> Stream:
        """The stream on which the caller's own work is queued."""

    def attend(self) -> None:
        """This thread is going to use the device."""

    def record(self, stream: Stream) -> Event:
        """Reached when all that is queued on the stream so far has been done."""

    def wait(self, stream: Stream, event: Event) -> None:
        """What is queued on the stream from now on begins after the event."""

    def reached(self, event: Event) -> bool:
        """Whether it has been; does not wait."""

    def watch(self, event: Event, done: Done) -> None:
        """Call `done` in a thread of the device's when the event is reached; those of one stream in their order."""

    def copy(self, stream: Stream, source: Memory, target: Memory) -> None:
        """Queue a copy of as many elements; one of both may be pinned host memory."""

    def collect(self, stream: Stream, step: Collective, memory: Memory) -> None:
        """Queue a collective in place on the span of it, `memory`; all its ranks queue theirs in one order."""

    def pin(self, memory: memoryview, like: Memory) -> Memory:
        """Host memory as one that `copy` takes, with the element type of `like`; it stays registered until `close`."""

    def abort(self) -> None:
        """Another local rank is lost: end the collectives that wait for it."""

    def close(self) -> None:
        """Let go of registered memory and of the group of local ranks."""


class Host(Protocol):
    """The local ranks' shared memory, the sum of its slots, and the network behind it."""

    rank: int  # local

    def memory(self, name: str) -> tuple[list[memoryview], memoryview]:
        """The slots and the result of a tensor, for all bytes of it; the same memory on all local ranks."""

    def contribute(self, name: str, done: Done) -> None:
        """What this rank copies to the slots is there; `done` when the result is, for all local ranks."""

    def announce(self, name: str, half: Half) -> None:
        """Local rank 0: this is the next turn, of all ranks; calls reach `LocalDevice.turn` there in their order."""

    def check(self, name: str) -> None:
        """Raise the job's error if it is over."""

    def fail(self, error: BytePSError) -> None:
        """Something failed here; the job is over, and says so to all."""


class Underway(Protocol):
    """A sum on its way back to the user's tensor."""

    @property
    def over(self) -> "Future[Pending | None]":
        """Done, with None, when `wait` would return, or raise, at once."""

    def wait(self) -> None:
        """The caller's stream has the sum in the result from then on."""
