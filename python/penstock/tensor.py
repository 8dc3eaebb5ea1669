"""tensor.py - what is trained: tensors, how they are trained, and the units they are used in."""
from contextlib import contextmanager
from typing import Any, Dict, Iterator, Optional, Tuple, TYPE_CHECKING

from . import _c
from ._library import lib
from ._memory import DeviceArray, DType, Memory, array, borrow, borrow_out, owned
from .errors import InvalidArgument, check, pointer
from .group import options

if TYPE_CHECKING:
    from .context import Context

ALL = _c.PEN_ALL
FORWARD, BACKWARD = _c.PEN_FORWARD, _c.PEN_BACKWARD


class Params:
    """How a set of tensors is trained; made by Context.params()."""

    def __init__(self, context: "Context", handle: int) -> None:
        self._context, self._handle = context, handle

    def set_lr(self, lr: float) -> None:
        """Changes the learning rate, which its schedule and step.lr_scale multiply.

        Thread     any; after commit() and between steps, the same on all ranks.
        Errors     InvalidArgument: it is out of range.  WrongState: gradients of a step were sent.
        """
        self._context._alive()
        check(lib.pen_params_lr(self._handle, lr))


class Tensor:
    """A registered tensor; made by Context.register(), and valid as long as its context."""

    def __init__(
        self, context: "Context", handle: int, name: str, shape: Tuple[int, ...], dtype: DType, grad_dtype: DType
    ) -> None:
        self._context, self._handle = context, handle
        self.name, self.shape, self.dtype, self.grad_dtype = name, shape, dtype, grad_dtype

    def __repr__(self) -> str:
        return f"<penstock.Tensor {self.name} {self.dtype.name.lower()} {list(self.shape)}>"

    def bind(self, param: Any = None, grad: Any = None) -> None:
        """Sets where its values and its gradient lie from now on; None keeps the old place.

        Shape      as registered.   Ownership  as Context.register().
        Thread     any; between steps, or before the gradient's first ready() of a step.
        """
        places = [
            None if x is None else self._fits(borrow_out(x), t)
            for x, t in ((param, self.dtype), (grad, self.grad_dtype))
        ]
        check(lib.pen_bind(self._context._alive(), self._handle, *[p and p.address for p in places]))
        kept = self._context._kept[self._handle]
        kept[:] = [new if new is not None else old for new, old in zip(places, kept)]

    def _let_grad_go(self) -> None:
        """After a step: the library does not read the gradient until the next ready(), which bind() must precede."""
        self._context._kept[self._handle][1] = None

    def view(self, slice: int = ALL) -> Any:
        """Its values as an array, in memory of the program or of the SDK; a DeviceArray if they lie on a device.

        Shape      as registered; slice: one of a stack.
        Ownership  values in memory of the SDK change in Step.end(); with mode=zero3 they are those of a unit while
                   it is in use.  The array keeps that memory: it may be read after the unit's use, and after close().
        Thread     any.
        Errors     WrongState: its unit is not in use.  NoMemory, TimedOut.
        Source     pen_view().
        """
        return self._view(slice, _c.PEN_PARAM, self.dtype)

    def grad(self, slice: int = ALL) -> Any:
        """Its gradient as an array, as view(); in memory of the SDK it is zero at its first view in a step.

        Ownership  the program's until ready(); it may move before the next step: ask again.  An array that is kept
                   beyond ready() keeps its memory, and the next step takes other memory.
        """
        return self._view(slice, _c.PEN_GRAD, self.grad_dtype)

    def _view(self, slice: int, what: int, dtype: DType) -> Any:
        context = self._context
        address = context._call(lambda: pointer(lib.pen_view(context._alive(), self._handle, slice, what)))
        shape = self.shape if slice == ALL else self.shape[1:]
        if lib.pen_keep(address) == 0:
            return owned(address, shape, dtype)
        given = context._kept[self._handle][what]
        is_cuda = given.is_cuda if given is not None else context.info.device >= 0
        return (DeviceArray if is_cuda else array)(address, shape, dtype, given or context)

    def ready(self, slice: int = ALL, stream: Optional[int] = None) -> None:
        """Its gradient is final: it is sent while others are still computed.

        Units      the mean over this rank's batch, times step.loss_scale.
        Ownership  the gradient is BORROWED until Step.end() returns.
        Thread     any, also several at once.
        """
        self._context._has_ready = True
        if stream is None:
            check(lib.pen_ready(self._context._alive(), self._handle, slice))
        else:
            check(lib.pen_ready_on(self._context._alive(), self._handle, slice, stream))

    def push(self, grad: Any = None, slice: int = ALL, *, wait: bool = True, **option: Any) -> Any:
        """Sends a gradient, or any contribution, to its servers, apart from steps.

        Shape      as registered, or of one slice; None: the registered gradient.
        Dtype      the tensor's grad_dtype.
        Ownership  grad is BORROWED until the call has ended.
        Thread     any; pushes of one tensor take effect in the order of the calls, each exactly once.
        Errors     WrongState: its update needs a decision over the whole model.  TimedOut: the outcome is unknown.
        Source     Li et al., OSDI 2014.
        """
        g = self._given(grad, slice, self.grad_dtype, False)
        return self._start(lib.pen_push, (slice, g and g.address), g, wait, None, option)

    def pull(self, out: Any = None, slice: int = ALL, *, wait: bool = True, **option: Any) -> Any:
        """Gets its values from its servers into out, or into the registered values.  Returns out.

        Ownership  out is BORROWED until the call has ended; a failed pull leaves a mixture of old and new values.
        Errors     as push().  With ssp TimedOut names the slow rank.
        """
        p = self._given(out, slice, self.dtype, True)
        return self._start(lib.pen_pull, (slice, p and p.address), p, wait, out, option)

    def push_pull(
        self, grad: Any = None, out: Any = None, slice: int = ALL, *, wait: bool = True, **option: Any
    ) -> Any:
        """push() and pull() in one message each way: the values include this push.  Returns out.

        Cost       one round trip.
        """
        g, p = self._given(grad, slice, self.grad_dtype, False), self._given(out, slice, self.dtype, True)
        return self._start(lib.pen_push_pull, (slice, g and g.address, p and p.address), (g, p), wait, out, option)

    def _given(self, x: Any, slice: int, dtype: DType, is_out: bool) -> Optional[Memory]:
        if x is None:
            return None
        return self._fits(borrow_out(x) if is_out else borrow(x), dtype, slice)

    def _fits(self, memory: Memory, dtype: DType, slice: int = ALL) -> Memory:
        count = 1
        for n in self.shape if slice == ALL else self.shape[1:]:
            count *= n
        if memory.count != count or memory.dtype != dtype:
            raise InvalidArgument(
                f"tensor {self.name} has {count} elements of {dtype.name.lower()}, and the array "
                f"{memory.count} of {memory.dtype.name.lower()}"
            )
        return memory

    def _start(
        self, function: Any, arguments: Tuple[Any, ...], held: Any, wait: bool, value: Any, option: Dict[str, Any]
    ) -> Any:
        o = options(**option) if option else None
        return self._context._start(
            function, (self._context._alive(), self._handle) + arguments, held, wait, value, o, None
        )


class Unit:
    """Tensors that are needed and finished together; made by Context.unit()."""

    def __init__(self, context: "Context", handle: Optional[int]) -> None:
        self._context, self._handle = context, handle

    @contextmanager
    def use(self, phase: int = FORWARD, stream: Optional[int] = None) -> Iterator[None]:
        """Its values are complete inside the `with`; after one of BACKWARD all its gradients are ready.

        Shape      stream: address of the CUDA stream that works on tensors of a device; else None.
        Thread     any.  If workers hold each other's values (zero3 without servers), all ranks use the same units in
                   the same order.
        Errors     remembered, and raised by Step.end() too: TimedOut, PeerLost, NoMemory, WrongState.
        Cost       none where all values are local; zero3: the unit's bytes, unless they were prefetched.
        Source     FSDP.
        """
        context = self._context
        context._call(lambda: check(lib.pen_use(context._alive(), self._handle, phase, stream)))
        try:
            yield
        finally:
            context._has_ready = context._has_ready or phase == BACKWARD
            check(lib.pen_release(context._alive(), self._handle, phase, stream))
