"""All hosts of a site at once: one does not wait for another, and what failed on one is not lost on the others."""

import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from types import TracebackType
from typing import Self, TypeVar

from byteps.hosts import Host, Site
from byteps.hosts_view import columns
from scripts.ssh import HostFailed, Session

Result = TypeVar("Result")
_PROGRESS_SECONDS = 5.0


class Sessions:
    """Sessions with hosts, open inside `with`; a host that failed takes no part in what follows."""

    def __init__(self, site: Site, hosts: Sequence[Host] = (), *, tell: Callable[[str], None] = print) -> None:
        self.site = site
        self.all = [Session(host, site) for host in hosts or site.hosts]
        self.failures: dict[str, HostFailed] = {}
        self._tell = tell

    def __enter__(self) -> Self:
        try:
            self.each("logging in", Session.open, seconds=3 * self.site.connect_seconds + 5)
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for session in self.all:
            session.close()

    @property
    def good(self) -> list[Session]:
        return [session for session in self.all if session.host.name not in self.failures]

    def each(self, what: str, work: Callable[[Session], Result], *, seconds: float) -> dict[str, Result]:
        """Does the work on every good host at once; the results by host.  Failures are kept in `failures`."""
        sessions = self.good
        if not sessions:
            return {}
        pool = ThreadPoolExecutor(len(sessions), thread_name_prefix=what)
        try:
            futures = {pool.submit(work, session): session for session in sessions}
            self._await(what, futures, seconds)
        except BaseException:
            for session in sessions:
                session.close()
            raise
        finally:
            pool.shutdown(wait=True)
        results = {}
        for future, session in futures.items():
            try:
                results[session.host.name] = future.result()
            except HostFailed as failure:
                self.failures.setdefault(session.host.name, failure)
            session.status = ""
        return results

    def _await(self, what: str, futures: "dict[Future[Result], Session]", seconds: float) -> None:
        started = time.monotonic()
        next_line = started + _PROGRESS_SECONDS
        pending = set(futures)
        while pending:
            now = time.monotonic()
            if now > started + seconds:
                for future in pending:
                    session = futures[future]
                    late = HostFailed(f"{what}: not over after {seconds:.0f} s", "look at what hangs there, try again")
                    self.failures[session.host.name] = late
                    session.close()
                return
            if now >= next_line:
                next_line = now + _PROGRESS_SECONDS
                names = (
                    f"{one.host.name}{one.status and f' ({one.status})'}" for one in map(futures.get, pending) if one
                )
                self._tell(f"{what}: {now - started:.0f} s, waiting for {', '.join(sorted(names))}")
            pending = wait(pending, timeout=0.2, return_when=FIRST_COMPLETED).not_done

    def table(self, cells: Mapping[str, Sequence[str]], heading: Sequence[str] = ("result",)) -> str:
        """A row for every host: ok with its cells, or failed or unreachable with the reason; then what to do."""
        rows = [("host", "state", *heading)]
        remedies = []
        for session in self.all:
            name = session.host.name
            failure = self.failures.get(name)
            known = [*cells.get(name, ())]
            rows.append((name, failure.state if failure else "ok", *known, *[""] * (len(heading) - len(known))))
            if failure:
                remedies.append(f"{name} {failure.state}: {failure.reason}\n  do: {failure.todo}")
        return "\n".join([*columns(rows), *remedies])
