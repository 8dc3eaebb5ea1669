"""requests.py - calls in progress: waiting for them so that Ctrl-C ends the wait, and not the call."""
import os
import threading
import time
from ctypes import byref, c_size_t
from dataclasses import dataclass
from queue import SimpleQueue
from typing import Any, Callable, Generic, List, Optional, Sequence, Tuple, TypeVar, TYPE_CHECKING

from . import _c
from ._library import lib
from .errors import Again, InvalidArgument, WrongState, failure

if TYPE_CHECKING:
    from .context import Context

T = TypeVar("T")
_SLICE_MS = 100  # Python runs the handlers of signals between two of these


@dataclass(frozen=True)
class Result:
    """What a call brought beside its values."""

    count: int  # elements or bytes delivered
    source: int  # of a received message: position of its sender in the group
    tag: int  # of a received message
    version: int  # of pulled values: updates applied
    staleness: int  # of pulled values: steps they were behind when served
    step: int
    seconds: float


def _is_main() -> bool:
    return threading.current_thread() is threading.main_thread()


class Request(Generic[T]):
    """A call in progress, made with wait=False.

    Ownership  it keeps the arrays of the call alive until the call has ended, also when nobody waits for it.  Until
               then the arrays are BORROWED: do not write to them, and do not read those that the call writes.
    Thread     any, one at a time.
    """

    def __init__(self, context: "Context", held: Any, value: Any, convert: Optional[Callable[[Result], T]]) -> None:
        self._context, self._held, self._value, self._convert = context, held, value, convert
        self._reqs = (_c.pen_req * 1)()
        self._out = _c.pen_result()
        self._error: Optional[Exception] = None
        self._is_open = False  # until the library has taken the call

    def _end(self, status: int) -> None:
        self._is_open = False
        try:
            if status != _c.PEN_OK:
                raise failure(status)
            if self._convert is not None:
                self._value = self._convert(self.result)
        except Exception as error:
            self._error = error
        self._held = None

    def _poll(self, timeout_ms: int) -> bool:
        """Whether the call has ended, after at most so many ms."""
        if self._is_open and not self._context._handle:
            self._is_open, self._held, self._error = False, None, _closed()
        if self._is_open:
            status = lib.pen_wait_any(self._reqs, 1, timeout_ms, None, byref(self._out))
            if self._reqs[0].ctx is None or status != _c.PEN_AGAIN:
                self._end(status)
        return not self._is_open

    def done(self) -> bool:
        """Whether the call has ended.  Cost: no wait."""
        return self._poll(0)

    def wait(self, timeout: Optional[float] = None) -> T:
        """Waits until the call has ended, and returns its value: what the call with wait=True returns.

        Units      timeout: seconds; None waits until the call's own deadline.
        Thread     any.  Ctrl-C ends the wait within 0.2 s, and the call goes on: wait again, or drop the request.
        Errors     Again: not ended in time.  Else those of the call.
        """
        until = None if timeout is None else time.monotonic() + timeout
        slice_ms = _SLICE_MS if until is not None or _is_main() else -1
        while not self._poll(slice_ms):
            if until is not None:
                left = until - time.monotonic()
                if left <= 0:
                    raise Again(f"the call has not ended after {timeout} s")
                slice_ms = max(1, min(_SLICE_MS, int(left * 1000)))
        if self._error is not None:
            raise self._error
        return self._value  # type: ignore[no-any-return]

    @property
    def result(self) -> Result:
        """What the ended call brought beside its values."""
        if self._is_open:
            raise InvalidArgument("the call has not ended: wait for it first")
        o = self._out
        return Result(o.count, o.source, o.tag, o.version, o.staleness, o.step, o.seconds)

    def __del__(self) -> None:
        if self._is_open and self._context._handle:
            self._context._left.append((self._reqs, self._held))


def _closed() -> WrongState:
    return WrongState("the context was closed before the call had ended")


def reap(left: List[Tuple[Any, Any]]) -> List[Tuple[Any, Any]]:
    """Of requests that nobody waits for, those that have not ended; the others' arrays are free now."""
    out = _c.pen_result()
    return [
        (reqs, held)
        for reqs, held in left
        if lib.pen_wait_any(reqs, 1, 0, None, byref(out)) == _c.PEN_AGAIN and reqs[0].ctx is not None
    ]


def wait_any(requests: Sequence[Request[Any]], timeout: Optional[float] = None) -> int:
    """Waits for the first of some requests of one context to end; returns its index.  Its wait() then returns at
    once.

    Units      timeout: seconds; None waits until the requests' own deadlines.
    Errors     Again: none ended in time.  InvalidArgument: there are none.
    """
    if not requests:
        raise InvalidArgument("wait_any: there are no requests")
    until = None if timeout is None else time.monotonic() + timeout
    for i, request in enumerate(requests):
        if not request._is_open or not request._context._handle:
            return i
    reqs = (_c.pen_req * len(requests))(*[r._reqs[0] for r in requests])
    index, out = c_size_t(len(requests)), _c.pen_result()
    while True:
        left_ms = _SLICE_MS if until is None else max(0, min(_SLICE_MS, int((until - time.monotonic()) * 1000)))
        status = lib.pen_wait_any(reqs, len(requests), left_ms, byref(index), byref(out))
        if index.value < len(requests):
            ended = requests[index.value]
            ended._reqs[0] = _c.pen_req()
            ended._out = out
            ended._end(status)
            return index.value
        if status != _c.PEN_AGAIN:
            raise failure(status)
        if until is not None and time.monotonic() >= until:
            raise Again(f"none of {len(requests)} calls has ended after {timeout} s")


class _Call:
    def __init__(self, function: Callable[[], Any]) -> None:
        self.function, self.has_ended = function, False
        self.ended = threading.Lock()  # held until it has ended
        self.ended.acquire()
        self.value: Any = None
        self.error: Optional[BaseException] = None


class Caller:
    """Runs the calls that have no request, one after another, in a thread of its own.

    A handler of a signal runs in the main thread, and only while that is not in a function of C: it would wait with
    the call.  Other threads call for themselves.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._calls: "SimpleQueue[Optional[_Call]]" = SimpleQueue()
        self._thread: Optional[threading.Thread] = None
        self._last: Optional[_Call] = None
        self._is_closed = False

    def _run(self) -> None:
        while True:
            call = self._calls.get()
            if call is None:
                return
            try:
                call.value = call.function()
            except BaseException as error:
                call.error = error
            call.has_ended = True
            call.ended.release()

    @property
    def is_busy(self) -> bool:
        """Whether a call that nobody waits for is still running."""
        return self._last is not None and not self._last.has_ended

    def call(self, function: Callable[[], T], is_apart: bool = False) -> T:
        """function(), whose wait Ctrl-C ends; it then goes on by itself.  The next call comes after it, or is apart."""
        if self._is_closed or not _is_main() or os.getpid() != self._pid:
            return function()
        if is_apart and self.is_busy:
            other = Caller()
            try:
                return other.call(function)
            finally:
                other.close()
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock", daemon=True)
            self._thread.start()
        call = self._last = _Call(function)
        self._calls.put(call)
        call.ended.acquire()
        if call.error is not None:
            try:
                raise call.error.with_traceback(None)  # that of this thread says more
            finally:
                call.error = None  # no circle of exception and frame
        return call.value  # type: ignore[no-any-return]

    def close(self) -> None:
        """Ends the thread after its last call.  Later calls are refused by what they call."""
        self._is_closed = True
        if self._thread is not None:
            self._calls.put(None)
