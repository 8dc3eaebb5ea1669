"""Penstock trains models across processes and machines; this is its interface for Python.

    import numpy, penstock
    with penstock.init(optim="sgd lr=0.5", steps=20) as job:
        w, g = numpy.zeros(2, "f4"), numpy.zeros(2, "f4")
        job.register("line", w, g)
        job.commit()
        for step in job.steps():
            with step:
                g[:] = ...

Everything is in penstock.h too, and means the same; docs/python.md lists it.  penstock.torch is for PyTorch.
"""
from ctypes import byref, c_double
from typing import Optional

from . import _c
from ._library import lib
from ._memory import DeviceArray, DType
from .context import Context, Info, Store as KeyValueStore, init
from .errors import (
    Aborted,
    Again,
    BadSetting,
    CallerError,
    Corrupt,
    Denied,
    Device,
    DoneError,
    End,
    Error,
    Internal,
    InvalidArgument,
    Mismatch,
    NoMemory,
    NotAMember,
    NotFound,
    OperatorError,
    PeerLost,
    RejoinError,
    RetryError,
    StopError,
    Store,
    TimedOut,
    TooSmall,
    Unreachable,
    Unsupported,
    WaitError,
    WrongState,
    check,
)
from .group import ANY, EVERY, Group, Op
from .requests import Request, Result, wait_any
from .sampler import Sampler
from .step import Step
from .table import Table
from .tensor import ALL, BACKWARD, FORWARD, Params, Tensor, Unit
from .watch import Event, log_to

__version__ = _c.VERSION


def version() -> str:
    """The version of the library that is loaded, which may be newer than the package's."""
    found = lib.pen_version()
    return f"{found >> 16}.{found >> 8 & 255}.{found & 255}"


def lr(schedule: Optional[str], applied: int) -> float:
    """The rate that a schedule has for the next step, after `applied` updates: lr("cosine lr=0.1 ...", 10).

    Thread     any; pure.   Errors  BadSetting, Unsupported.   Source  pen_lr(), docs/schedules.md.
    """
    rate = c_double()
    check(lib.pen_lr(schedule.encode() if schedule is not None else None, applied, byref(rate)))
    return rate.value


__all__ = [
    "ALL",
    "ANY",
    "Aborted",
    "Again",
    "BACKWARD",
    "BadSetting",
    "CallerError",
    "Context",
    "Corrupt",
    "DType",
    "Denied",
    "Device",
    "DeviceArray",
    "DoneError",
    "EVERY",
    "End",
    "Error",
    "Event",
    "FORWARD",
    "Group",
    "Info",
    "Internal",
    "InvalidArgument",
    "KeyValueStore",
    "Mismatch",
    "NoMemory",
    "NotAMember",
    "NotFound",
    "Op",
    "OperatorError",
    "Params",
    "PeerLost",
    "RejoinError",
    "Request",
    "Result",
    "RetryError",
    "Sampler",
    "Step",
    "StopError",
    "Store",
    "Table",
    "Tensor",
    "TimedOut",
    "TooSmall",
    "Unit",
    "Unreachable",
    "Unsupported",
    "WaitError",
    "WrongState",
    "init",
    "log_to",
    "lr",
    "version",
    "wait_any",
]
