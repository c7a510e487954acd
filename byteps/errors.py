"""What can go wrong in a job, as exceptions.  Every rank of a failed job raises the same class with the same text."""


class BytePSError(RuntimeError):
    """Base class; also raised for misuse of the API, naming the value, what was allowed and what to do."""


class StartError(BytePSError):
    """The job did not come together: a role is missing, refused, or configured differently from the others."""


class PeerLostError(BytePSError):
    """A worker, summation service or the scheduler died; the text names the first one, the same on every rank."""


class MismatchError(BytePSError):
    """Workers disagree about a tensor: name set, shape, dtype or operation."""


class StallError(BytePSError):
    """Only some ranks submitted a tensor, for longer than the stall deadline."""


KINDS: dict[str, type[BytePSError]] = {
    "start": StartError,
    "peer_lost": PeerLostError,
    "mismatch": MismatchError,
    "stall": StallError,
}
