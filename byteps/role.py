"""Entry point of the roles that run no user code: `python -m byteps.role`, with the role in DMLC_ROLE.

With an argument, the number of an inherited listening socket, the scheduler uses that one: whoever started it then
knows the port without a race.
"""

import socket
import sys

from byteps.errors import BytePSError
from byteps.launcher import follow_plan, settings_from_environment
from byteps.rendezvous import log, run_scheduler


def main() -> int:
    try:
        settings = settings_from_environment()
        if settings.role == "scheduler":
            sock = socket.socket(fileno=int(sys.argv[1])) if len(sys.argv) > 1 else None
            return run_scheduler(*follow_plan(settings), sock)
        from byteps.server import run_server  # the scheduler needs no numpy

        return run_server(settings)
    except BytePSError as error:
        log("error", str(error))
        return 1
    except KeyboardInterrupt:
        return 130


if __name__ == "__main__":
    sys.exit(main())
