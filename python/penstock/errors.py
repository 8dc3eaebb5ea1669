"""errors.py - a class for each status of the library, under a class for each remedy: who must act next."""
from ctypes import byref
from typing import Dict, Optional, Tuple, Type

from . import _c
from ._library import lib

_ROLES = {_c.PEN_SCHEDULER: "scheduler", _c.PEN_SERVER: "server", _c.PEN_WORKER: "worker"}


class Error(Exception):
    """A failure of Penstock.  Its text is the sentence that names the culprit and the remedy, the same on all
    survivors.

    Attributes
        status     the number in penstock.h.
        role, rank the culprit, "worker", "server" or "scheduler"; None: unknown.
        missing    ranks that did not arrive, the first 32.
        step       the step it happened in; None: none.
        tensor     the tensor, or the label of the call; None: none.
        last_seen  seconds since the culprit's last heartbeat; None: unknown.
    """

    status: int = _c.PEN_INTERNAL
    role: Optional[str] = None
    rank: Optional[int] = None
    missing: Tuple[int, ...] = ()
    step: Optional[int] = None
    tensor: Optional[str] = None
    last_seen: Optional[float] = None

    def __reduce__(self) -> Tuple[type, Tuple[str], Dict[str, object]]:
        return type(self), (str(self),), self.__dict__


class DoneError(Error):
    """Nothing is left to do; not a failure."""


class WaitError(Error):
    """Not finished: wait, and ask again."""


class CallerError(Error):
    """The call is wrong: the program must be changed."""


class RetryError(Error):
    """A peer is late, gone or out of reach: start again, or go on without it."""


class RejoinError(Error):
    """This process is no longer in the job: start it again."""


class OperatorError(Error):
    """Somebody must change how the job is run."""


class StopError(Error):
    """The job cannot go on: its cause must be removed first."""


class Again(WaitError):
    """Not finished yet."""

    status = _c.PEN_AGAIN


class End(DoneError, EOFError):
    """The loop, epoch or job is over; not an error."""

    status = _c.PEN_END


class InvalidArgument(CallerError, ValueError):
    """An argument is outside its documented range."""

    status = _c.PEN_INVALID_ARGUMENT


class WrongState(CallerError):
    """The call is not allowed at this point."""

    status = _c.PEN_WRONG_STATE


class Mismatch(CallerError):
    """Two ranks disagree about the same call or tensor."""

    status = _c.PEN_MISMATCH


class BadSetting(CallerError, ValueError):
    """A setting is unknown, out of range or given twice."""

    status = _c.PEN_BAD_SETTING


class Unsupported(CallerError, NotImplementedError):
    """Not possible with this build, device or mode."""

    status = _c.PEN_UNSUPPORTED


class NotFound(CallerError, LookupError):
    """No such tensor, table, key, snapshot or file."""

    status = _c.PEN_NOT_FOUND


class TooSmall(CallerError, BufferError):
    """The buffer is too small."""

    status = _c.PEN_TOO_SMALL


class TimedOut(RetryError, TimeoutError):
    """A live peer did not answer within the deadline."""

    status = _c.PEN_TIMED_OUT


class PeerLost(RetryError, ConnectionError):
    """A peer died, or its lease ran out."""

    status = _c.PEN_PEER_LOST


class Unreachable(RetryError, ConnectionError):
    """The scheduler or a server cannot be reached."""

    status = _c.PEN_UNREACHABLE


class NotAMember(RejoinError):
    """This process was removed from the job."""

    status = _c.PEN_NOT_A_MEMBER


class Denied(OperatorError, PermissionError):
    """A peer does not have this job's secret."""

    status = _c.PEN_DENIED


class NoMemory(StopError, MemoryError):
    """Memory ran out."""

    status = _c.PEN_NO_MEMORY


class Corrupt(StopError):
    """A checksum or a format does not match."""

    status = _c.PEN_CORRUPT


class Store(StopError, OSError):
    """The disk is full, read-only or failing."""

    status = _c.PEN_STORE


class Device(StopError):
    """CUDA reported an error."""

    status = _c.PEN_DEVICE


class Aborted(StopError):
    """Some rank aborted the job."""

    status = _c.PEN_ABORTED


class Internal(StopError):
    """A bug in Penstock; please report the sentence."""

    status = _c.PEN_INTERNAL


def _leaves(kind: Type[Error]) -> Dict[int, Type[Error]]:
    found: Dict[int, Type[Error]] = {}
    for below in kind.__subclasses__():
        if "status" in below.__dict__:
            found[below.status] = below
        found.update(_leaves(below))
    return found


by_status: Dict[int, Type[Error]] = _leaves(Error)


def failure(status: int) -> Error:
    """The exception for a status that a function of the library returned in this thread."""
    detail = _c.pen_error()
    text = lib.pen_last_error(byref(detail))
    if detail.status != status:  # not all statuses are failures: the end of an epoch has no sentence
        row = lib.pen_status_info(status).contents
        return by_status.get(status, Internal)(row.text.decode())
    error = by_status.get(status, Internal)(text.decode("utf-8", "replace"))
    error.role = _ROLES.get(detail.role)
    error.rank = detail.rank if detail.rank >= 0 and error.role else None
    error.missing = tuple(detail.missing[: min(detail.missing_n, 32)])
    error.step = detail.step if detail.step >= 0 else None
    error.tensor = detail.tensor.decode("utf-8", "replace") or None
    error.last_seen = detail.last_seen_s if error.role else None
    return error


def check(status: int) -> None:
    """Raises the failure, if a status is one."""
    if status != _c.PEN_OK:
        raise failure(status)


def pointer(address: Optional[int]) -> int:
    """A pointer that a function of the library returned; NULL raises what pen_last_error() says."""
    if not address:
        detail = _c.pen_error()
        lib.pen_last_error(byref(detail))
        raise failure(detail.status)
    return address
