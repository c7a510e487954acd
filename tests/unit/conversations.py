"""A scheduler to talk to: events in, steps out, with a clock of its own."""

from byteps.assign import Shares
from byteps.coordinator import Coordinator, Exit, Log, Send
from byteps.settings import Settings
from byteps.wire import (
    Failed,
    Go,
    Op,
    Plan,
    Ready,
    Register,
    StartServices,
    TensorSpec,
)

LOCAL = "127.0.0.1"


class Job:
    """A coordinator and a clock; members are addressed by their connection numbers."""

    def __init__(self, workers: int = 2, servers: int = 1, planned: Shares | None = None, **settings: object) -> None:
        self.settings = Settings(num_workers=workers, num_servers=servers, **settings)
        self.coordinator = Coordinator(settings=self.settings, job="job", version="1", started=0.0, planned=planned)
        self.now = 0.0

    def say(self, member: int, message: object, host: str = LOCAL) -> list[object]:
        return list(self.coordinator.message(member, host, message, self.now))

    def wait(self, seconds: float) -> list[object]:
        self.now += seconds
        return list(self.coordinator.tick(self.now))

    def hang_up(self, member: int) -> list[object]:
        return list(self.coordinator.disconnected(member))

    def register(self, member: int, role: str, rank: int = -1, host: str = LOCAL, **fields: object) -> list[object]:
        values = {
            "role": role,
            "rank": rank,
            "num_workers": self.settings.num_workers,
            "num_servers": self.settings.num_servers,
            "version": "1",
            "machine": f"machine {member}" if role == "server" else "",
            "address": "" if role == "worker" else f"{host}:{7000 + member}",
            "local": host == LOCAL,
        }
        return self.say(member, Register(**values | fields), host)

    def running(self) -> "Job":
        """Workers are connections 0 to n-1, servers 10 and on, the workers' own services 20 and on."""
        for number in range(self.settings.num_servers):
            assert self.register(10 + number, "server", number) == []
        steps = [step for rank in range(self.settings.num_workers) for step in self.register(rank, "worker", rank)]
        for step in steps:
            if isinstance(step, Send) and isinstance(step.message, StartServices):
                steps += self.register(20 + step.message.rank, "service", step.message.rank)
        assert any(isinstance(step, Send) and isinstance(step.message, Plan) for step in steps)
        steps = [step for rank in range(self.settings.num_workers) for step in self.say(rank, Ready())]
        assert sent(steps, Go)
        return self


def sent(steps: list[object], kind: type) -> dict[int, object]:
    """Messages of this kind by member."""
    return {step.member: step.message for step in steps if isinstance(step, Send) and isinstance(step.message, kind)}


def verdict(steps: list[object]) -> tuple[str, str]:
    """Kind and text of the failure that these steps tell everybody."""
    (failed,) = {(message.kind, message.text) for message in sent(steps, Failed).values()}
    assert Log(failed[1]) in steps
    assert steps[-1] == Exit(1)
    return failed


def spec(name: str, shape: tuple[int, ...] = (10,), dtype: str = "float32", op: Op = Op.SUM) -> TensorSpec:
    return TensorSpec(name=name, shape=shape, dtype=dtype, op=op)
