"""The server in which Horovod's ranks meet: usage ADDRESS PORT HOST..., one host per rank.

It is Horovod's own HTTP server with Horovod's own handler.  `RendezvousServer`, its wrapper, takes a port that happens
to be free; ours must be known before anything is started, so the server inside is started directly.  It ends by itself
when every rank has said goodbye with DELETE /goodbye/RANK, which is no word of Horovod's: without it, the process would
have to be killed after every launch.
"""

import sys

from horovod.runner.common.util.hosts import HostInfo, get_host_assignments
from horovod.runner.http.http_server import RendezvousHandler, RendezvousHTTPServer

GOODBYE = "/goodbye/"


class Handler(RendezvousHandler):  # type: ignore[misc]  # Horovod has no types
    """Horovod's, and the goodbye."""

    gone: set[str] = set()  # noqa: RUF012 - one server per process, a handler per request
    num_ranks = 0

    def do_DELETE(self) -> None:  # noqa: N802 - the base class's name
        super().do_DELETE()
        if self.path.startswith(GOODBYE):
            self.gone.add(self.path)
            if len(self.gone) == self.num_ranks:
                self.server.shutdown()


def main(address: str, port: int, hosts: list[str]) -> None:
    Handler.num_ranks = len(hosts)
    with RendezvousHTTPServer((address, port), Handler, 0) as server:
        server.init(get_host_assignments([HostInfo(host, 1) for host in hosts], len(hosts)))
        server.serve_forever(poll_interval=0.1)


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), sys.argv[3:])
