"""group.py - ranks that talk to each other, and the calls they make together."""
import enum
import os
from ctypes import byref, c_int, c_size_t, c_void_p, string_at
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple, Union, TYPE_CHECKING

from . import _c
from ._library import lib
from ._memory import Memory, borrow, borrow_out
from .errors import InvalidArgument, check
from .requests import Request, Result

if TYPE_CHECKING:
    from .context import Context

ANY = _c.PEN_ANY
EVERY = _c.PEN_EVERY


class Op(enum.IntEnum):
    """How values of ranks are combined.  Functions take these, or their names in lower case: "sum", "max"."""

    SUM = _c.PEN_SUM
    AVG = _c.PEN_AVG
    PROD = _c.PEN_PROD
    MIN = _c.PEN_MIN
    MAX = _c.PEN_MAX
    LAND = _c.PEN_LAND
    LOR = _c.PEN_LOR
    LXOR = _c.PEN_LXOR
    BAND = _c.PEN_BAND
    BOR = _c.PEN_BOR
    BXOR = _c.PEN_BXOR


def op_of(name: Union[Op, str]) -> Op:
    try:
        return Op[name.upper()] if isinstance(name, str) else Op(name)
    except (KeyError, ValueError):
        raise InvalidArgument(
            f"'{name}' is not an operation: use one of {', '.join(o.name.lower() for o in Op)}"
        ) from None


def options(
    scale: Optional[float] = None,
    overwrite: bool = False,
    deadline: Optional[float] = None,
    label: Optional[str] = None,
    stream: Optional[int] = None,
    priority: int = 0,
) -> Optional[_c.pen_opts]:
    """pen_opts; None: nothing differs from the defaults."""
    if scale is None and not overwrite and deadline is None and label is None and not stream and priority == 0:
        return None
    o = _c.pen_opts()
    if scale is not None:
        o.scale, o.flags = scale, _c.PEN_SCALED
    if overwrite:
        o.flags |= _c.PEN_OVERWRITE
    if deadline is not None:
        o.deadline_ms = -1 if deadline < 0 else max(1, int(deadline * 1000))
    if label is not None:
        o.label = label.encode()
    o.stream, o.priority = stream, priority
    return o


def _equal_types(call: str, x: Memory, out: Memory) -> None:
    if x.dtype != out.dtype:
        raise InvalidArgument(f"{call}: x has elements of {x.dtype.name.lower()}, and out of {out.dtype.name.lower()}")


def _room(call: str, name: str, memory: Memory, count: int) -> None:
    if memory.count != count:
        raise InvalidArgument(f"{call}: {name} has {memory.count} elements and needs {count}")


class Group:
    """Ranks that talk to each other (a communicator).

    A position in the group runs from 0 to size - 1; `ranks` has the rank of each.  Common to the calls:

    Shape      an array is anything with NumPy's interface, the buffer protocol, DLPack or __cuda_array_interface__,
               contiguous in row-major order, of any shape: its elements count.  `out` None: in place.  Parts of
               members lie one behind the other in group order; `counts` are elements of each, None: equally many.
    Dtype      any of DType; x and out have the same.  Logical and bit operations need integers.  bool is u8.
    Options    wait=False returns a Request.  scale: multiplies this member's input.  overwrite: a failed call in
               place may leave its array undefined, which saves a copy.  deadline: seconds, instead of the setting; -1
               none.  label: shown in errors.  stream: address of a CUDA stream.
    Ownership  arrays are BORROWED until the call has ended; the Request keeps them alive.  After a failure inputs are
               as they were, and outputs undefined.
    Thread     calls on one group in the same order on all members; two threads may use two groups.  The GIL is
               released.
    Errors     Mismatch: two ranks made different calls.  TimedOut, PeerLost: who is missing, the same on all
               survivors. A failed call fails its group: later calls raise the same, until shrink(). InvalidArgument:
               nothing was sent; the group stays usable.
    Source     penstock.h, section 6; the operations are those of MPI and NCCL.
    """

    def __init__(self, context: "Context", handle: int, is_own: bool) -> None:
        self._context, self._handle, self._is_own = context, handle, is_own

    # ---- members --------------------------------------------------------------------------------
    @property
    def rank(self) -> int:
        """This member's position."""
        return int(lib.pen_rank(self._alive()))

    @property
    def size(self) -> int:
        """How many members there are now."""
        return int(lib.pen_size(self._alive()))

    @property
    def ranks(self) -> List[int]:
        """Ranks of the members, in group order."""
        n = self.size
        ranks = (c_int * n)()
        return list(ranks[: lib.pen_group_ranks(self._alive(), ranks, n)])

    def new(self, ranks: Sequence[int]) -> Optional["Group"]:
        """A group of some members, in the order given; None where the caller is not among them.

        Shape      ranks: RANKs, all members of this group, each once.
        Ownership  the caller's, until free() or the context's close().
        Thread     the same calls in the same order on its members, which wait for each other.
        Errors     InvalidArgument: a rank twice, or not in this group.  TimedOut, PeerLost: who is missing.
        Cost       one barrier of its members.
        """
        list_of = (c_int * len(ranks))(*ranks)
        return self._made(lambda made: lib.pen_group_new(self._alive(), list_of, len(ranks), byref(made)))

    def split(self, color: int, key: int = 0) -> Optional["Group"]:
        """Groups of members with the same color, ordered by key and then by position; color -1: no group, None.

        Thread, errors, ownership  as new(), on all members of this group.
        Cost       one all_gather of 8 bytes.
        Source     MPI_Comm_split.
        """
        return self._made(lambda made: lib.pen_group_split(self._alive(), color, key, byref(made)))

    def shrink(self) -> "Group":
        """After a failure: a working group of the survivors, in their old order.  This one stays failed.

        Thread     all survivors; each waits until the others have called it or are known to be dead.
        Errors     TimedOut: a survivor has not called it.  Unsupported: the job has no scheduler.
        Source     MPIX_Comm_shrink of ULFM.
        """
        group = self._made(lambda made: lib.pen_group_shrink(self._alive(), byref(made)))
        assert group is not None
        return group

    def free(self) -> None:
        """Frees a group of new(), split() or shrink(); others are the context's.  No call on it may be in progress."""
        if self._is_own and self._handle and self._context._handle:
            lib.pen_group_free(self._handle)
        if self._is_own:
            self._handle = 0

    def __del__(self) -> None:
        if self._context._pid == os.getpid():
            self.free()

    def _made(self, function: Callable[[c_void_p], Any]) -> Optional["Group"]:
        made = c_void_p()
        self._context._call_apart(lambda: check(function(made)))
        return Group(self._context, made.value, True) if made.value else None

    def _alive(self) -> int:
        if not self._handle or not self._context._handle:
            raise InvalidArgument("the group was freed, or its context is closed")
        return self._handle

    def _counts(self, call: str, name: str, counts: Optional[Sequence[int]]) -> Any:
        if counts is None:
            return None
        size = self.size
        if len(counts) != size or min(counts) < 0:
            raise InvalidArgument(f"{call}: {name} needs {size} numbers, none negative, one for each member")
        return (c_size_t * size)(*counts)

    def _start(
        self,
        function: Any,
        arguments: Tuple[Any, ...],
        held: Any,
        wait: bool,
        value: Any,
        option: Dict[str, Any],
        convert: Optional[Callable[[Result], Any]] = None,
    ) -> Any:
        o = options(**option) if option else None
        return self._context._start(function, (self._alive(),) + arguments, (self, held), wait, value, o, convert)

    # ---- collectives ----------------------------------------------------------------------------
    def all_reduce(
        self, x: Any, out: Any = None, op: Union[Op, str] = Op.SUM, *, wait: bool = True, **option: Any
    ) -> Any:
        """Combines the elements of every member; all get the result, equal in every bit.  Returns out, or x.

        Shape      x and out have equally many elements, on all members.
        Cost       inside a host each byte is read and written once per member; between hosts each sends 2S(n-1)/n.
        """
        a, b = self._pair("all_reduce", x, out)
        return self._start(
            lib.pen_all_reduce, (a.address, b.address, a.count, a.dtype, op_of(op)), (a, b), wait, b.owner, option
        )

    def reduce(
        self, x: Any, out: Any = None, op: Union[Op, str] = Op.SUM, root: int = 0, *, wait: bool = True, **option: Any
    ) -> Any:
        """Combines the elements of every member on the root; the others' out is not written, and may be None there."""
        a = borrow(x)
        b = borrow_out(x if out is None else out) if self.rank == root else a
        self._same("reduce", a, b)
        return self._start(
            lib.pen_reduce, (a.address, b.address, a.count, a.dtype, op_of(op), root), (a, b), wait, b.owner, option
        )

    def broadcast(self, x: Any, root: int = 0, *, wait: bool = True, **option: Any) -> Any:
        """Copies the root's elements into x of all members.  Returns x."""
        a = borrow(x) if self.rank == root else borrow_out(x)
        return self._start(lib.pen_broadcast, (a.address, a.count, a.dtype, root), a, wait, x, option)

    def gather(
        self,
        x: Any,
        out: Any = None,
        counts: Optional[Sequence[int]] = None,
        root: int = 0,
        *,
        wait: bool = True,
        **option: Any,
    ) -> Any:
        """The root gets every member's elements in out, in group order; root EVERY: all members do."""
        a, n = borrow(x), self._counts("gather", "counts", counts)
        b = self._parts("gather", a, out, counts) if root in (EVERY, self.rank) else None
        return self._start(
            lib.pen_gather, (a.address, a.count, b and b.address, n, a.dtype, root), (a, b, n), wait, out, option
        )

    def all_gather(
        self, x: Any, out: Any, counts: Optional[Sequence[int]] = None, *, wait: bool = True, **option: Any
    ) -> Any:
        """All members get every member's elements in out, in group order.  Returns out."""
        a, n = borrow(x), self._counts("all_gather", "counts", counts)
        b = self._parts("all_gather", a, out, counts)
        return self._start(
            lib.pen_all_gather, (a.address, a.count, b.address, n, a.dtype), (a, b, n), wait, out, option
        )

    def scatter(
        self,
        x: Any,
        out: Any,
        counts: Optional[Sequence[int]] = None,
        root: int = 0,
        *,
        wait: bool = True,
        **option: Any,
    ) -> Any:
        """Member i gets part i of the root's x in out.  x may be None elsewhere.  Returns out."""
        b, n = borrow_out(out), self._counts("scatter", "counts", counts)
        a = self._split("scatter", x, b, counts) if self.rank == root else None
        return self._start(
            lib.pen_scatter, (a and a.address, n, b.address, b.count, b.dtype, root), (a, b, n), wait, out, option
        )

    def reduce_scatter(
        self,
        x: Any,
        out: Any,
        counts: Optional[Sequence[int]] = None,
        op: Union[Op, str] = Op.SUM,
        *,
        wait: bool = True,
        **option: Any,
    ) -> Any:
        """Combines all members' x, which has one part for each; member i gets part i in out.  Returns out."""
        b, n = borrow_out(out), self._counts("reduce_scatter", "counts", counts)
        a = self._split("reduce_scatter", x, b, counts)
        return self._start(
            lib.pen_reduce_scatter, (a.address, n, b.address, b.count, b.dtype, op_of(op)), (a, b, n), wait, out, option
        )

    def all_to_all(
        self,
        x: Any,
        out: Any,
        in_counts: Optional[Sequence[int]] = None,
        out_counts: Optional[Sequence[int]] = None,
        *,
        wait: bool = True,
        **option: Any,
    ) -> Any:
        """Sends part i of x to member i, and receives part i of out from it.  Both counts or neither.  Returns out."""
        a, b = borrow(x), borrow_out(out)
        _equal_types("all_to_all", a, b)
        if (in_counts is None) != (out_counts is None):
            raise InvalidArgument("all_to_all: give both in_counts and out_counts, or neither")
        n, m = self._counts("all_to_all", "in_counts", in_counts), self._counts("all_to_all", "out_counts", out_counts)
        each = a.count // self.size
        _room("all_to_all", "x", a, sum(in_counts) if in_counts is not None else each * self.size)
        _room("all_to_all", "out", b, sum(out_counts) if out_counts is not None else each * self.size)
        return self._start(
            lib.pen_all_to_all, (a.address, n, b.address, m, each, a.dtype), (a, b, n, m), wait, out, option
        )

    def barrier(self, *, wait: bool = True, **option: Any) -> Any:
        """Returns when every member of the group has called it."""
        return self._start(lib.pen_barrier, (), None, wait, None, option)

    # ---- point to point -------------------------------------------------------------------------
    def send(self, x: Any, to: int, tag: int = 0, *, wait: bool = True, **option: Any) -> Any:
        """Sends x to the member at position `to`, this one included; matched with recv() by sender, tag and order.

        Errors     TimedOut, PeerLost: only this call fails, not the group.
        """
        a = borrow(x)
        return self._start(lib.pen_send, (a.address, a.count, a.dtype, to, tag), a, wait, None, option)

    def recv(self, x: Any, source: int = ANY, tag: int = ANY, *, wait: bool = True, **option: Any) -> Any:
        """Receives into x, which may be larger than the message.  Returns its Result: count, source, tag.

        Errors     TooSmall: the message is larger than x.  Mismatch: other type.  TimedOut, PeerLost: as send().
        """
        a = borrow_out(x)
        return self._start(lib.pen_recv, (a.address, a.count, a.dtype, source, tag), a, wait, None, option, _itself)

    # ---- bytes of any length --------------------------------------------------------------------
    def broadcast_bytes(self, data: Optional[bytes] = None, root: int = 0) -> bytes:
        """Copies the root's bytes to all members, and returns them.  Cost: two broadcasts."""
        is_root = self.rank == root
        a = borrow(data) if is_root else None
        io = _c.pen_bytes(a.address, a.size) if a else _c.pen_bytes()
        self._context._call_apart(lambda: check(lib.pen_broadcast_bytes(self._alive(), byref(io), root, None)))
        return string_at(a.address, a.size) if a else taken(io)

    def gather_bytes(self, data: bytes, root: int = EVERY) -> Optional[List[bytes]]:
        """The root, or all members (EVERY), get the bytes of every member; others get None.

        Cost       an all_gather of 8 bytes and a gather.
        """
        a, out = borrow(data), (_c.pen_bytes * self.size)()
        self._context._call_apart(
            lambda: check(lib.pen_gather_bytes(self._alive(), a.address, a.size, out, root, None))
        )
        return [taken(one) for one in out] if root in (EVERY, self.rank) else None

    # ---- shapes ---------------------------------------------------------------------------------
    def _pair(self, call: str, x: Any, out: Any) -> Tuple[Memory, Memory]:
        if out is None:
            a = borrow_out(x)
            return a, a
        a, b = borrow(x), borrow_out(out)
        self._same(call, a, b)
        return a, b

    def _same(self, call: str, a: Memory, b: Memory) -> None:
        _equal_types(call, a, b)
        _room(call, "out", b, a.count)

    def _parts(self, call: str, a: Memory, out: Any, counts: Optional[Sequence[int]]) -> Memory:
        """The memory for every member's part, of which a is one."""
        if out is None:
            raise InvalidArgument(f"{call}: out is needed here")
        b = borrow_out(out)
        self._divided(call, ("out", b), ("x", a), counts)
        return b

    def _split(self, call: str, x: Any, b: Memory, counts: Optional[Sequence[int]]) -> Memory:
        """The memory with a part for every member, of which b is this one's."""
        if x is None:
            raise InvalidArgument(f"{call}: x is needed here")
        a = borrow(x)
        self._divided(call, ("x", a), ("out", b), counts)
        return a

    def _divided(
        self, call: str, whole: Tuple[str, Memory], part: Tuple[str, Memory], counts: Optional[Sequence[int]]
    ) -> None:
        """Refuses a whole that is not all members' parts, of which one is this member's."""
        memory = dict((whole, part))
        _equal_types(call, memory["x"], memory["out"])
        _room(call, *whole, part[1].count * self.size if counts is None else sum(counts))
        if counts is not None:
            _room(call, *part, counts[self.rank])


def _itself(result: Result) -> Result:
    return result


def taken(given: _c.pen_bytes) -> bytes:
    """A copy of bytes that the library gave away, which are freed."""
    try:
        return string_at(given.data, given.size) if given.data else b""
    finally:
        lib.pen_free(given.data)
