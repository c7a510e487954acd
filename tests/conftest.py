"""For all tests: Ctrl-C reaches what tests start, also where the tests themselves run in the background."""

import signal

# A shell without job control starts what it puts into the background with SIGINT ignored, and children inherit that.
if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
