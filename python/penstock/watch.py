"""watch.py - what the library tells the program by itself: events of the job, commands, lines of its log.

The library calls from a thread of its own, which must not wait: what comes is put into a queue here.
"""
import traceback
from ctypes import string_at
from queue import Empty, SimpleQueue
from threading import Thread
from typing import Any, Callable, Iterator, NamedTuple, Optional, Tuple

from . import _c
from ._library import lib
from .errors import Error, check

_EVENT_FUNCTION = _c.FUNCTIONS["pen_on_event"][1][1]
_KINDS = {
    _c.PEN_EV_JOINED: "joined",
    _c.PEN_EV_LEFT: "left",
    _c.PEN_EV_LOST: "lost",
    _c.PEN_EV_REWOUND: "rewound",
    _c.PEN_EV_SNAPSHOT: "snapshot",
    _c.PEN_EV_STRAGGLER: "straggler",
    _c.PEN_EV_STOPPING: "stopping",
}
_ROLES = {_c.PEN_SCHEDULER: "scheduler", _c.PEN_SERVER: "server", _c.PEN_WORKER: "worker"}


class Event(NamedTuple):
    """Something that happened to the job."""

    kind: str  # "joined", "left", "lost" or "stopping"
    role: str
    rank: int
    epoch: int
    step: int
    text: str


class Events:
    """The events of one context since it was made."""

    def __init__(self, handle: int) -> None:
        self._handle: Optional[int] = handle
        self._queue: "SimpleQueue[Optional[Event]]" = SimpleQueue()

        def come(_: Any, event: Any, __: Any) -> None:
            e = event.contents
            self._queue.put(
                Event(
                    _KINDS.get(e.kind, "?"),
                    _ROLES.get(e.node.role, "?"),
                    e.node.rank,
                    e.epoch,
                    e.step,
                    (e.text or b"").decode("utf-8", "replace"),
                )
            )

        self._function = _EVENT_FUNCTION(come)
        check(lib.pen_on_event(handle, self._function, None))

    def iterate(self, timeout: Optional[float]) -> Iterator[Event]:
        while True:
            try:
                event = self._queue.get(timeout=timeout)
            except Empty:
                return
            if event is None:
                self._queue.put(None)  # for the next iterator
                return
            yield event

    def close(self) -> None:
        """Before the context ends."""
        if self._handle is not None:
            lib.pen_on_event(self._handle, _EVENT_FUNCTION(0), None)
            self._handle = None
            self._queue.put(None)


class Commands:
    """Answers the commands to this worker, one after another, in a thread of its own."""

    def __init__(self, handle: int, function: Callable[[int, bytes], bytes]) -> None:
        self._handle: Optional[int] = handle
        self.function = function
        self._queue: "SimpleQueue[Optional[Tuple[int, int, bytes]]]" = SimpleQueue()

        def come(_: Any, call: int, head: int, body: int, size: int, __: Any) -> None:
            self._queue.put((call, head, string_at(body, size) if size else b""))

        self._come = _c.pen_command_fn(come)
        check(lib.pen_on_command(handle, self._come, None))
        self._thread = Thread(target=self._run, name="penstock-commands", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        for call, head, body in iter(self._queue.get, None):
            answer, status = b"", _c.PEN_OK
            try:
                answer = self.function(head, body) or b""
            except Error as error:
                status = error.status
            except Exception:
                traceback.print_exc()
                status = _c.PEN_INTERNAL
            lib.pen_reply(call, status, answer, len(answer), None)

    def close(self) -> None:
        """Before the context ends: waits for the command that is being answered."""
        if self._handle is not None:
            lib.pen_on_command(self._handle, _c.pen_command_fn(0), None)
            self._handle = None
            self._queue.put(None)
            self._thread.join()


_log_function: Any = None
_log_level = "notice"
_LEVELS = {"silent": -1, "error": 0, "warning": 1, "notice": 2, "info": 3, "debug": 4}


def log_to(function: Optional[Callable[[int, str], None]] = None, level: str = "notice") -> None:
    """Sends the library's log lines to function(level, line) instead of stderr; None: stderr.

    Shape      level: the least important that is sent: silent, error, warning, notice, info or debug.
    Thread     function is called from any thread, one line at a time, and must not call Penstock.
    """
    global _log_function, _log_level

    def write(number: int, line: bytes, _: Any) -> None:
        assert function is not None
        function(number, line.decode("utf-8", "replace"))

    made = _c.pen_log_fn(write) if function is not None else _c.pen_log_fn(0)
    lib.pen_log_set(made, None, _LEVELS[level])
    _log_function, _log_level = made, level


def end_log() -> None:
    """Before the interpreter ends: threads of the library must not call into it."""
    if _log_function:
        log_to(None, _log_level)
