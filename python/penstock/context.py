"""context.py - one member of one job: its tensors, its steps, its groups and its state."""
import atexit
import math
import os
import re
import sys
import threading
import weakref
from contextlib import contextmanager
from ctypes import POINTER, byref, c_char_p, c_double, c_float, c_int64, c_uint32, c_void_p, cast
from typing import Any, Callable, Dict, Iterable, Iterator, List, Optional, Sequence, Tuple, TypeVar, Union

from . import _c
from ._library import lib
from ._memory import DType, Memory, borrow, borrow_out, dtype_of, owned
from .errors import Error, InvalidArgument, WrongState, check, failure, pointer
from .group import Group, options, taken
from .requests import Caller, Request, Result, reap
from .step import Step
from .table import Table, new_table
from .tensor import ALL, Params, Tensor, Unit
from .watch import Commands, Event, Events, end_log

T = TypeVar("T")
_SPACES = {"host": _c.PEN_HOST, "pinned": _c.PEN_HOST_PINNED}
_open: "weakref.WeakSet[Context]" = weakref.WeakSet()


def _encoded(text: Optional[str]) -> Optional[bytes]:
    return None if text is None else text.encode()


def _setting(name: str, value: Any) -> bytes:
    if isinstance(value, bool):
        value = "yes" if value else "no"
    return f"{name}={value}".encode()


def _program() -> Optional[str]:
    """The script's name as the job's; None where it is no such name, or there is no script."""
    name = os.path.basename(sys.argv[0]) if sys.argv else ""
    return name if re.fullmatch(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,46}", name) else None


def init(**settings: Any) -> "Context":
    """Joins the job that the environment describes, or runs alone, and waits until all members have joined.

    Shape      settings by name, as docs/settings.md lists them: init(optim="adamw lr=3e-4", steps=1000, resume=True).
               None: not given.  They rank below files, the environment and flags.
    Ownership  the caller closes the context, best with `with`.
    Thread     any; several contexts per process are allowed.
    Errors     BadSetting: a name, value or combination.  Unreachable: no scheduler answers.  TimedOut: the ranks that
               did not join.  NotAMember: the rank is taken, or does not fit the job.
    Cost       one round trip after the last member joined; alone: no socket.
    Source     pen_init().
    """
    settings.setdefault("job", _program())
    words = [_setting(name, value) for name, value in settings.items() if value is not None]
    strings = (c_char_p * (len(words) + 1))(*words)
    caller, handle, left = Caller(), c_void_p(), []

    def join() -> None:
        check(lib.pen_init(cast(strings, _POINTER_TO_TEXT), byref(handle)))
        if left:  # Ctrl-C ended the wait
            lib.pen_finalize(handle)

    try:
        caller.call(join)
    except BaseException:
        left.append(True)
        caller.close()
        raise
    return Context(handle.value or 0, caller)


_POINTER_TO_TEXT = _c.FUNCTIONS["pen_init"][1][0]


class Store:
    """A small key-value store on the scheduler, for ids, addresses and work; Context.store."""

    def __init__(self, context: "Context") -> None:
        self._context = context

    def set(self, key: str, data: bytes) -> None:
        """Sets a key, and ends the waits for it."""
        c = self._context
        c._call_apart(lambda: check(lib.pen_store_set(c._alive(), key.encode(), data, len(data))))

    def get(self, key: str, *, deadline: Optional[float] = None) -> bytes:
        """The bytes of a key; waits until it is set, by the deadline, in seconds."""
        c, given = self._context, _c.pen_bytes()
        c._call_apart(
            lambda: check(lib.pen_store_get(c._alive(), key.encode(), byref(given), options(deadline=deadline)))
        )
        return taken(given)

    def add(self, key: str, delta: int = 1) -> int:
        """Adds to a counter, 0 at first, exactly once; returns its new value."""
        c, value = self._context, c_int64()
        c._call_apart(lambda: check(lib.pen_store_add(c._alive(), key.encode(), delta, byref(value))))
        return value.value


class Info:
    """This member's rank and place, and the job's present state: the fields of pen_info, by name."""

    def __init__(self, info: _c.pen_info) -> None:
        for name, _ in info._fields_:
            value = getattr(info, name)
            if not name.startswith("reserved"):
                setattr(self, name, value.decode() if isinstance(value, bytes) else value)

    def __getattr__(self, name: str) -> Any:
        raise AttributeError(f"pen_info has no '{name}'")

    def __repr__(self) -> str:
        return f"penstock.Info({', '.join(f'{k}={v!r}' for k, v in self.__dict__.items())})"


class Context:
    """One member of one job; made by init().

    Thread     any thread may call anything, but for what says otherwise.  The GIL is released while a call waits.  In
               the main thread Ctrl-C ends a wait within 0.2 s, and harms neither the call nor the job.
    Ownership  the caller closes it.  A forked child (a worker of DataLoader) owns nothing: calls raise WrongState
               there.
    """

    def __init__(self, handle: int, caller: Caller) -> None:
        self._handle, self._caller, self._pid = handle, caller, os.getpid()
        self._left: List[Tuple[Any, Any]] = []  # requests that nobody waits for, and their arrays
        self._kept: Dict[Any, Any] = {}  # arrays that the library uses until close()
        self._tensors: Dict[int, Tensor] = {}
        self._batch = threading.local()
        self._commands: Optional[Commands] = None
        self._events: Optional[Events] = None
        self._samplers: "weakref.WeakSet[Any]" = weakref.WeakSet()
        self._has_ready = False  # a gradient of this step was made ready by itself
        self.is_stopping = False  # this worker was asked to leave
        _open.add(self)

    # ---- life -----------------------------------------------------------------------------------
    def close(self) -> None:
        """Delivers what is on its way, leaves the job, and frees everything.  Not a barrier; a second call does
        nothing.  It waits for calls in progress, at most until their deadlines.

        Thread     the last call on the context; no other may be running.
        Errors     the job's failure, if it failed; everything is freed then too.
        Cost       one round trip.  The rank that hosts the scheduler stays until the others have left.
        """
        if self._handle:
            self._caller.call(self._close)
            self._caller.close()

    def _close(self) -> None:
        self._close_listeners()
        for sampler in list(self._samplers):
            sampler.free()
        handle, self._handle = self._handle, 0
        try:
            check(lib.pen_finalize(handle))
        finally:
            self._left, self._kept = [], {}

    def _close_listeners(self) -> None:
        for listener in (self._commands, self._events):
            if listener is not None:
                listener.close()

    def __enter__(self) -> "Context":
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None:
            self.close()
        elif not self._caller.is_busy:  # else a call that was left still runs, and ends with the process
            try:
                self.close()
            except Error:
                pass  # the failure that is being raised says it

    def __del__(self) -> None:
        if self._handle and self._pid == os.getpid() and not sys.is_finalizing() and not self._caller.is_busy:
            self._caller.close()
            try:
                self._close()
            except Error as error:
                print(f"penstock: {error}", file=sys.stderr)

    def abort(self, why: str = "") -> None:
        """Ends the job on every rank: their calls raise Aborted with this sentence."""
        lib.pen_abort(self._alive(), why.encode())

    def _alive(self) -> int:
        if not self._handle:
            raise WrongState("the context is closed")
        return self._handle

    def _call(self, function: Callable[[], T]) -> T:
        """A call of the step's order: after one whose wait was interrupted."""
        return self._caller.call(function)

    def _call_apart(self, function: Callable[[], T]) -> T:
        return self._caller.call(function, is_apart=True)

    def _start(
        self,
        function: Any,
        arguments: Tuple[Any, ...],
        held: Any,
        wait: bool,
        value: Any,
        o: Optional[_c.pen_opts],
        convert: Optional[Callable[[Result], Any]],
    ) -> Any:
        """Makes a call that has a request; returns its value, or with wait=False the request."""
        if self._left:
            left, self._left = self._left, []
            self._left += reap(left)
        collected = getattr(self._batch, "held", None)
        if wait and collected is not None:
            check(function(*arguments, o, None))
            collected.append((held, o))
            return value
        request: Request[Any] = Request(self, held, value, convert)
        check(function(*arguments, o, request._reqs))
        request._is_open = True
        return request.wait() if wait else request

    @contextmanager
    def batch(self, **option: Any) -> Iterator[None]:
        """Collects this thread's collectives, sends and receives, and starts them together when the `with` is left.

        Shape      no order of sends and receives inside can deadlock; small all_reduces of one type and operation are
                   merged, so all members must collect the same calls.  Values are there after the `with`; recv()
                   returns None.
        Ownership  arrays are BORROWED until the batch has ended.
        Thread     any; each has its own, one at a time.
        Errors     the first failure of the calls inside.
        """
        check(lib.pen_batch_begin(self._alive()))
        held = self._batch.held = []
        try:
            yield
        finally:
            self._batch.held = None
            self._start(lib.pen_batch_end, (self._alive(),), held, True, None, options(**option), None)

    # ---- place ----------------------------------------------------------------------------------
    @property
    def info(self) -> Info:
        """This member's rank and place, and the job's present state.  Cost: none."""
        info = _c.pen_info()
        check(lib.pen_info_get(self._alive(), byref(info)))
        return Info(info)

    @property
    def rank(self) -> int:
        """RANK: this worker's identity, never renumbered.  Its position among those now: world.rank."""
        return int(self.info.rank)

    @property
    def world_size(self) -> int:
        """WORLD_SIZE at the start.  How many there are now: world.size."""
        return int(self.info.world_size)

    @property
    def world(self) -> Group:
        """All workers; where workers join and leave, those of the newest step begun."""
        return self._group(_c.PEN_GROUP_WORLD)

    @property
    def node(self) -> Group:
        """The workers of this host."""
        return self._group(_c.PEN_GROUP_NODE)

    @property
    def across(self) -> Group:
        """The workers with this local rank on every host."""
        return self._group(_c.PEN_GROUP_ACROSS)

    def _group(self, kind: int) -> Group:
        return Group(self, pointer(lib.pen_group_get(self._alive(), kind)), False)

    def set(self, name: str, value: Any) -> None:
        """Changes a setting while the job runs.  Errors: BadSetting.  Unsupported: it is fixed once the job runs."""
        words = _setting(name, value).split(b"=", 1)
        check(lib.pen_setting_set(self._alive(), *words))

    def alloc(self, shape: Union[int, Sequence[int]], dtype: Union[DType, str] = DType.F32, space: str = "host") -> Any:
        """Zeroed memory as an array, aligned to 64 bytes: collectives inside a host do not copy it.

        Shape      any.  space: "host" or "pinned"; memory of devices has no array of Python.
        Ownership  the caller's; freed with the last array over it, also after close().
        Errors     NoMemory, Unsupported.
        """
        if space not in _SPACES:
            raise InvalidArgument(f"space '{space}': use host or pinned")
        dims, kind = (shape,) if isinstance(shape, int) else tuple(shape), dtype_of(dtype)
        size = Memory(0, dims, kind, False, False, None).size
        return owned(pointer(lib.pen_alloc(self._alive(), max(size, 1), _SPACES[space])), dims, kind)

    # ---- what is trained ------------------------------------------------------------------------
    def params(
        self,
        name: Optional[str] = None,
        *,
        optim: Optional[str] = None,
        schedule: Optional[str] = None,
        sync: Optional[str] = None,
        wire: Optional[str] = None,
    ) -> Params:
        """A set of tensors that are trained alike; None: as the settings say.

        Shape      optim="adamw lr=3e-4 weight_decay=0.1", schedule="WarmupCosineLR ...", sync="bsp" | "ssp s=2" |
                   "async", wire="raw" | "bf16" | "f16".
        Thread     before commit(), in the same order on all ranks.
        Errors     BadSetting: the word, and the nearest known one.
        """
        texts = [t.encode() if t is not None else None for t in (name, optim, schedule, sync, wire)]
        made = c_void_p()
        check(lib.pen_params_new(self._alive(), byref(_c.pen_params_desc(*texts)), byref(made)))
        return Params(self, made.value or 0)

    def register(
        self,
        name: str,
        param: Any = None,
        grad: Any = None,
        *,
        shape: Optional[Sequence[int]] = None,
        dtype: Union[DType, str, None] = None,
        grad_dtype: Union[DType, str, None] = None,
        params: Optional[Params] = None,
        unit: Optional[str] = None,
        init: Optional[str] = None,
        tied_to: Optional[Tensor] = None,
        priority: int = 0,
        stacked: bool = False,
        frozen: bool = False,
        buffer: bool = False,
        zero_if_unused: bool = False,
        no_decay: bool = False,
    ) -> Tensor:
        """Registers a tensor to train.  All ranks register the same tensors in the same order.

        Shape      that of param, or `shape` where values lie in memory of the SDK (param None; see Tensor.view).
                   stacked: dim 0 stacks layers, each a tensor by itself, "h.{}.weight".
        Dtype      that of param (default f32); grad_dtype: that of grad, else dtype.
        Ownership  param and grad are kept until close(); grad is BORROWED from ready() to Step.end().
        Thread     any; before commit().
        Errors     InvalidArgument: the field.  Unsupported.
        Source     pen_register(), which explains the flags and init.
        """
        p, g = (None if x is None else borrow_out(x) for x in (param, grad))
        if p is None and shape is None:
            raise InvalidArgument(f"tensor {name}: give param, or its shape")
        dims = tuple(shape) if shape is not None else p.shape  # type: ignore[union-attr]
        if len(dims) > 8:
            raise InvalidArgument(f"tensor {name} has {len(dims)} dimensions, and at most 8 are possible")
        kind = dtype_of(dtype) if dtype is not None else p.dtype if p is not None else DType.F32
        grad_kind = dtype_of(grad_dtype) if grad_dtype is not None else g.dtype if g is not None else kind
        d = _c.pen_tensor_desc(name=name.encode(), dtype=kind, grad_dtype=grad_kind, ndim=len(dims), priority=priority)
        flags = (
            (stacked, _c.PEN_STACKED),
            (frozen, _c.PEN_FROZEN),
            (buffer, _c.PEN_BUFFER),
            (zero_if_unused, _c.PEN_ZERO_IF_UNUSED),
            (no_decay, _c.PEN_NO_DECAY),
        )
        d.flags = sum(flag for given, flag in flags if given)
        d.shape[: len(dims)] = dims
        d.param, d.grad = (x.address if x is not None else None for x in (p, g))
        d.params, d.tied_to = (x._handle if x is not None else None for x in (params, tied_to))
        d.unit, d.init = _encoded(unit), _encoded(init)
        made = c_void_p()
        tensor = Tensor(self, 0, name, dims, kind, grad_kind)
        for memory, expected in ((p, kind), (g, grad_kind)):
            if memory is not None:
                tensor._fits(memory, expected)
        check(lib.pen_register(self._alive(), byref(d), byref(made)))
        tensor._handle = made.value or 0
        self._tensors[tensor._handle] = tensor
        self._kept[tensor._handle] = [p, g]
        return tensor

    def commit(self) -> None:
        """Ends registration: all ranks compare their tensors, servers allocate them, and param gets the first values.

        Shape      first values are rank 0's, or those of a restored snapshot.
        Thread     once; not while another call on the context runs.
        Errors     Mismatch: a tensor differs between two ranks.  BadSetting: a group has no usable rule.  Corrupt,
                   NotFound: the snapshot cannot be restored.
        Cost       the model travels once to the servers and once to every rank.
        """
        self._call(lambda: check(lib.pen_commit(self._alive())))

    def unit(self, name: Optional[str] = None, index: int = ALL) -> Unit:
        """The tensors registered with this unit; None: the outermost unit.  After commit().  Errors: NotFound."""
        if name is None:
            return Unit(self, None)
        return Unit(self, pointer(lib.pen_unit_get(self._alive(), name.encode(), index)))

    def table(
        self,
        name: str,
        dim: int = 0,
        *,
        dtype: Union[DType, str] = DType.F32,
        params: Optional[Params] = None,
        init: Optional[str] = None,
        handler: Optional[str] = None,
        by_range: bool = False,
        is_sorted: bool = False,
    ) -> Table:
        """Registers a table of rows by 64-bit key, on the servers; see Table.

        Shape      dim values for each key; 0: they differ by key.  by_range: placed by equal key ranges, not by hash.
                   is_sorted: keys of a call come in ascending order, each once, which saves the sorting.
        Dtype      of values here and on the wire: f32, f16 or bf16; servers hold float32.
        Thread     one; before commit(), in the same order on all ranks.
        Errors     Unsupported: the job has no servers.  BadSetting, InvalidArgument: the field.
        """
        return new_table(
            self,
            name,
            dim,
            dtype_of(dtype),
            params._handle if params is not None else None,
            init,
            handler,
            by_range,
            is_sorted,
        )

    # ---- steps ----------------------------------------------------------------------------------
    def step(self) -> Optional[Step]:
        """Begins the next step; None after the last one (setting steps), or if this worker was asked to leave.

        Shape      afterwards is_stopping tells the two apart.
        Ownership  a step that is begun and not ended is void.
        Thread     one thread at a time for each context.
        Errors     WrongState: before commit().   Else the failure of the job.
        """
        step = _c.pen_step()

        def begin() -> bool:
            status = lib.pen_step_begin(self._alive(), byref(step))
            if status not in (_c.PEN_OK, _c.PEN_END):
                raise failure(status)
            return bool(status == _c.PEN_OK)

        if not (self._call(begin) if self._caller.is_busy else begin()):
            self.is_stopping = bool(step.flags & _c.PEN_STEP_STOPPING)
            return None
        self._kept["step"] = step  # BORROWED until it has ended
        self._has_ready = False
        return Step(self, step)

    def steps(self) -> Iterator[Step]:
        """All steps that are left, each begun: `for step in context.steps():` with `with step:` inside.

        Errors     WrongState: the loop's body left the step before as it was: no `with step:`, ready() or end().
        """
        left: Optional[Step] = None
        while True:
            step = self.step()
            if step is None:
                return
            if left is not None and not step.is_rewound and not step.has_new_members:
                raise WrongState(
                    f"step {left.index} was not ended, so it would begin again for ever: write `with step:` in the "
                    f"loop, or call step.end()"
                )
            yield step
            left = None if self._has_ready or step._is_entered or not step._is_open else step

    # ---- state ----------------------------------------------------------------------------------
    def add_state(self, name: str, data: Any, per_rank: bool = False) -> None:
        """Adds bytes of the program to every snapshot: the state of a generator, counters.

        Shape      a writable array of at most 65,536 bytes.
        Ownership  it is read and written until close().
        Order      before commit(), which restores it from the snapshot; or later, and then it is restored at once.
        Errors     InvalidArgument: its name, its size.  Mismatch: the snapshot has another size of it.
        """
        memory = borrow_out(data)
        check(lib.pen_state_add(self._alive(), name.encode(), memory.address, memory.size, int(per_rank)))
        self._kept["state", name] = memory

    def snapshot(self, **option: Any) -> "Request[int]":
        """Asks for a snapshot at the next step boundary: parameters, optimizer state, step and states.

        Shape      the Request's value is the snapshot's step.  Go on stepping, and wait for it afterwards; alone it
                   is taken at once.  One rank's call is enough.
        Errors     Store: no store (`penstock run --store DIR`), or disk full, read-only.  TimedOut.  NotAMember.
        """
        o = options(**option)
        asked: "Request[int]" = self._start(
            lib.pen_snapshot, (self._alive(),), None, False, None, o, lambda result: result.step
        )
        return asked

    def restore(self, step: int = -1) -> None:
        """Goes back to a snapshot of this job's store; -1: the newest.  At the start set resume=yes instead.

        Thread     between steps; all ranks make the same call.
        Errors     NotFound, Store, Corrupt.  Unsupported: with servers restart the program.
        """
        self._call(lambda: check(lib.pen_restore(self._alive(), step, None)))

    def save(self, path: Union[str, "os.PathLike[str]"], format: Optional[str] = None) -> None:
        """Writes the parameters to a safetensors file under their registered names; rank 0 writes, on its host.

        Shape      all ranks make the same call.  format: "safetensors dtype=bf16"; None keeps each tensor's type.
        Thread     between steps.   Errors  BadSetting, Store, NotAMember.   Cost  one pass over the parameters.
        """
        self._call(lambda: check(lib.pen_export(self._alive(), os.fsencode(path), _encoded(format), None)))

    def load(self, path: Union[str, "os.PathLike[str]"]) -> None:
        """Takes first values from a safetensors file, by name; between register() and commit(), on all ranks.

        Errors     NotFound: no such file, or it lacks a tensor.  Mismatch: another shape.  Corrupt.   Cost  one read.
        """
        self._call(lambda: check(lib.pen_import(self._alive(), os.fsencode(path), None)))

    def get_slots(self, slots: Iterable[Tuple[Tensor, str, Any]]) -> int:
        """Reads the state of update rules, and float32 values, wherever they are.  Returns the updates so far.

        Shape      slots: (tensor, name, array): "exp_avg" ... as in docs/optim.md, "param": the values; float32 arrays
                   with the tensor's elements, or None: this rank only takes part.
        Thread     between steps; all ranks, the same tensors and names.
        Errors     NotFound: the rule has no such slot.  Unsupported: ssp and async.  TimedOut, PeerLost.
        Cost       servers: one copy for each rank that gives arrays; zero1 to zero3: an all_reduce of each.
        Source     pen_slots_get().
        """
        rows, kept = self._slots(slots, borrow_out)
        applied = c_int64()
        self._call(lambda: check(lib.pen_slots_get(self._alive(), rows, len(rows), byref(applied), None)))
        del kept
        return applied.value

    def set_slots(self, slots: Iterable[Tuple[Tensor, str, Any]], applied: int) -> None:
        """Replaces the state of update rules and values by rank 0's, on all ranks.

        Shape      as get_slots(); rank 0's arrays count, the others' may be None.  applied: updates that all trained
                   tensors have had.
        Thread     between steps; all ranks, the same tensors and names.
        Errors     as get_slots().  After a failure the state is a mixture: set it again.
        Cost       a broadcast of each array.   Source  pen_slots_set().
        """
        rows, kept = self._slots(slots, borrow)
        self._call(lambda: check(lib.pen_slots_set(self._alive(), rows, len(rows), applied, None)))
        del kept

    def _slots(self, slots: Iterable[Tuple[Tensor, str, Any]], borrowed: Callable[[Any], Memory]) -> Tuple[Any, Any]:
        listed = [(tensor, name.encode(), x if x is None else borrowed(x)) for tensor, name, x in slots]
        rows = (_c.pen_slot * len(listed))()
        for row, (tensor, name, memory) in zip(rows, listed):
            if memory is not None and (memory.dtype is not DType.F32 or memory.count != math.prod(tensor.shape)):
                raise InvalidArgument(
                    f"'{tensor.name}': a slot has {math.prod(tensor.shape)} elements of f32, the array has "
                    f"{memory.count} of {memory.dtype.name.lower()}"
                )
            row.tensor, row.slot = tensor._handle, name
            if memory is not None:
                row.data = cast(memory.address, POINTER(c_float))
        return rows, listed

    def digest(self) -> int:
        """CRC32C of all parameters, in registration order; every rank gets the same.

        Thread     between steps; all ranks.   Errors  Mismatch: two ranks hold different values.
        """
        crc = c_uint32()
        self._call(lambda: check(lib.pen_digest(self._alive(), byref(crc))))
        return crc.value

    # ---- watching -------------------------------------------------------------------------------
    def metric(self, name: str, value: float) -> None:
        """Records a metric, for `penstock status` and the page.  Not a collective.  Cost: none."""
        check(lib.pen_metric(self._alive(), name.encode(), value))

    @contextmanager
    def span(self, name: str) -> Iterator[None]:
        """A span such as "forward" in the timeline (setting trace)."""
        check(lib.pen_mark(self._alive(), name.encode(), 1))
        try:
            yield
        finally:
            check(lib.pen_mark(self._alive(), name.encode(), 0))

    def stat(self, name: str) -> float:
        """One of the counters of docs/stats.md.  Errors: NotFound, with the nearest."""
        value = c_double()
        check(lib.pen_stat(self._alive(), name.encode(), byref(value)))
        return value.value

    @property
    def store(self) -> Store:
        """A small key-value store on the scheduler."""
        return Store(self)

    def events(self, timeout: Optional[float] = None) -> Iterator[Event]:
        """Events of the job from the first call on: a worker joined, left or died, or this one must leave.

        Units      timeout: seconds without an event after which the iterator ends; None: it ends with the context.
        Thread     any; one iterator at a time.
        """
        if self._events is None:
            self._events = Events(self._alive())
        return self._events.iterate(timeout)

    def command(
        self, head: int, body: bytes = b"", *, role: str = "worker", rank: int = -1, wait: bool = True, **option: Any
    ) -> Any:
        """Sends a message of the program's own to one member, or to all of a role (-1), and returns the list of
        answers.

        Shape      body: at most 65,536 bytes.  Answers are bytes, in rank order.
        Errors     NotFound: no such rank, or it answers no commands.  TimedOut, PeerLost: who has not answered.  Else
                   the refusal of the lowest rank that refused.
        Cost       two round trips through the scheduler.  Each member runs a command once.
        """
        roles = {"worker": _c.PEN_WORKER, "server": _c.PEN_SERVER}
        if role not in roles:
            raise InvalidArgument(f"role '{role}': use worker or server")
        replies = (_c.pen_bytes * (16384 if rank < 0 else 1))()  # the most ranks that a job has
        arguments = (self._alive(), _c.pen_node(roles[role], rank), head, body, len(body), replies, len(replies))
        return self._start(
            lib.pen_command,
            arguments,
            replies,
            wait,
            None,
            options(**option),
            lambda result: [taken(replies[i]) for i in range(result.count)],
        )

    def on_command(self, function: Optional[Callable[[int, bytes], bytes]]) -> None:
        """Sets the function that answers commands to this worker: function(head, body) returns bytes; None: no
        function.

        Thread     it runs in a thread of its own, one command at a time.
        Errors     an Error of Penstock that it raises is the refusal that the sender gets; of any other exception the
                   sender gets Internal, and the trace goes to stderr.
        """
        if function is None:
            if self._commands is not None:
                self._commands.close()
                self._commands = None
        elif self._commands is None:
            self._commands = Commands(self._alive(), function)
        else:
            self._commands.function = function


@atexit.register
def _close_all() -> None:
    """A program that ended well leaves its jobs; one that an exception ended is a lost worker, as in C."""
    failed = getattr(sys, "last_value", None) is not None
    end_log()
    for context in list(_open):
        if context._handle and context._pid == os.getpid():
            context._close_listeners()
            if not failed and not context._caller.is_busy:
                try:
                    context.close()
                except Error as error:
                    print(f"penstock: {error}", file=sys.stderr)
