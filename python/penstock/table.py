"""table.py - rows by 64-bit key on the servers: embeddings, ps-lite's KVWorker."""
from array import array as words
from ctypes import POINTER, byref, c_uint32, c_void_p, cast
from typing import Any, Optional, Tuple, TYPE_CHECKING

from . import _c
from ._library import lib
from ._memory import DType, Memory, borrow, borrow_out, owned
from .errors import InvalidArgument, check
from .group import options
from .requests import Result

if TYPE_CHECKING:
    from .context import Context


def _lengths(memory: Optional[Memory]) -> Any:
    return None if memory is None else cast(memory.address, POINTER(c_uint32))


class Table:
    """Rows by 64-bit key, which servers hold in float32 and update by a rule; made by Context.table().

    Shape      keys: any integer array of 64 bits, or a sequence of int; they may repeat and come in any order, unless
               the table is sorted: equal keys are one row, and their gradients are added.  Values: [keys, dim]; with
               dim 0 packed one behind the other, and lens has the length of each.
    Dtype      of the table.  lens: 32-bit integers.
    Ownership  arrays are BORROWED until the call has ended.
    Thread     any; pushes of one table take effect in the order of the calls, each exactly once.
    Errors     InvalidArgument: a length that the row does not have.  TimedOut: the outcome is unknown.  PeerLost.
    Cost       one message to each server that has some of the keys.
    Source     Li et al., OSDI 2014.
    """

    def __init__(self, context: "Context", handle: int, name: str, dim: int, dtype: DType) -> None:
        self._context, self._handle, self.name, self.dim, self.dtype = context, handle, name, dim, dtype

    def push(self, keys: Any, grads: Any, lens: Any = None, *, cmd: int = 0, wait: bool = True, **option: Any) -> Any:
        """Pushes gradients of rows.

        Units      with bsp a row is updated once per round with the mean over all ranks, and every rank pushes once
                   per round, with no keys if it has nothing; ssp and async update on arrival.
        """
        kv, held = self._request(keys, cmd)
        self._give(kv, held, grads, lens)
        return self._start(lib.pen_kv_push, kv, held, wait, option, None)

    def pull(self, keys: Any, out: Any = None, *, cmd: int = 0, wait: bool = True, **option: Any) -> Any:
        """Gets rows, which need not exist.  Returns out, or a new array; with dim 0 (values, lens)."""
        kv, held = self._request(keys, cmd)
        take = self._take(kv, held, out)
        return self._start(lib.pen_kv_pull, kv, held, wait, option, take)

    def push_pull(
        self,
        keys: Any,
        grads: Any,
        out: Any = None,
        lens: Any = None,
        *,
        cmd: int = 0,
        wait: bool = True,
        **option: Any,
    ) -> Any:
        """push() and pull() of the same keys in one message each way: the values include this push."""
        kv, held = self._request(keys, cmd)
        self._give(kv, held, grads, lens)
        take = self._take(kv, held, out)
        return self._start(lib.pen_kv_push_pull, kv, held, wait, option, take)

    # ---- what a request carries -----------------------------------------------------------------
    def _request(self, keys: Any, cmd: int) -> Tuple[_c.pen_kv, Any]:
        memory = borrow(words("Q", keys) if isinstance(keys, (list, tuple, range)) else keys)
        if memory.dtype not in (DType.U64, DType.I64):
            raise InvalidArgument(f"table {self.name}: keys are integers of 64 bits, not {memory.dtype.name.lower()}")
        kv = _c.pen_kv(n=memory.count, cmd=cmd)
        kv.keys = cast(memory.address, type(kv.keys))
        return kv, [memory]

    def _lens(self, lens: Any, n: int) -> Memory:
        memory = borrow(lens)
        if memory.dtype not in (DType.U32, DType.I32) or memory.count != n:
            raise InvalidArgument(
                f"table {self.name}: lens has {memory.count} numbers of {memory.dtype.name.lower()}, and "
                f"needs {n} integers of 32 bits, one for each key"
            )
        return memory

    def _give(self, kv: _c.pen_kv, held: Any, grads: Any, lens: Any) -> None:
        values = borrow(grads)
        if values.dtype != self.dtype:
            raise InvalidArgument(
                f"table {self.name} has values of {self.dtype.name.lower()}, and grads of "
                f"{values.dtype.name.lower()}"
            )
        count = kv.n * self.dim
        if lens is not None:
            given = self._lens(lens, kv.n)
            count = sum(_lengths(given)[: kv.n])
            kv.in_lens = _lengths(given)
            held.append(given)
        elif self.dim == 0 and kv.n > 0:
            raise InvalidArgument(f"table {self.name} has rows of any length: give lens")
        if values.count != count:
            raise InvalidArgument(f"table {self.name}: {kv.n} keys need {count} values, and grads has {values.count}")
        setattr(kv, "in", values.address)
        held.append(values)

    def _take(self, kv: _c.pen_kv, held: Any, out: Any) -> Any:
        """Room for what is pulled, and what makes the call's value of it."""
        n, dim, dtype = kv.n, self.dim, self.dtype
        lens = (c_uint32 * n)() if dim == 0 else None
        if lens is not None:
            kv.out_lens = lens
            held.append(lens)
        if out is not None:
            room = borrow_out(out)
            if room.dtype != dtype:
                raise InvalidArgument(
                    f"table {self.name} has values of {dtype.name.lower()}, and out of {room.dtype.name.lower()}"
                )
            if dim > 0 and room.count != n * dim:
                raise InvalidArgument(
                    f"table {self.name}: {n} keys need room for {n * dim} values, and out has {room.count}"
                )
            kv.out, kv.out_cap = room.address, room.count
            held.append(room)
            return lambda result: out if lens is None else (out, lens[:])
        new = (_c.pen_bytes * 1)()
        kv.out_new = new
        held.append(new)

        def taken(result: Result) -> Any:
            if lens is None:
                return owned(new[0].data, (n, dim), dtype)
            return owned(new[0].data, (result.count,), dtype), lens[:]

        return taken

    def _start(self, function: Any, kv: _c.pen_kv, held: Any, wait: bool, option: Any, take: Any) -> Any:
        self._context._alive()
        return self._context._start(function, (self._handle, byref(kv)), held, wait, None, options(**option), take)


def new_table(
    context: "Context",
    name: str,
    dim: int,
    dtype: DType,
    params: Optional[int],
    init: Optional[str],
    handler: Optional[str],
    by_range: bool,
    is_sorted: bool,
) -> Table:
    d = _c.pen_table_desc(name=name.encode(), dtype=dtype, dim=dim, params=params)
    d.flags = (_c.PEN_KEYS_RANGE if by_range else 0) | (0 if is_sorted else _c.PEN_KEYS_ANY)
    d.init = init.encode() if init is not None else None
    d.handler = handler.encode() if handler is not None else None
    made = c_void_p()
    check(lib.pen_table_new(context._alive(), byref(d), byref(made)))
    return Table(context, made.value or 0, name, dim, dtype)
