"""step.py - one step of training."""
from ctypes import byref, c_double
from typing import Any, Optional, Union, TYPE_CHECKING

from . import _c
from ._library import lib
from .errors import check, failure
from .group import Op, op_of
from .tensor import ALL, Tensor

if TYPE_CHECKING:
    from .context import Context


class Step:
    """One step of training, begun by Context.steps() or Context.step(), and ended by end() or by leaving its `with`.

    Attributes
        index           from 0; skipped steps count.  Data should be a pure function of it.
        loss_scale      multiply the loss by this.
        lr              the rate of the first params group in this step.
        accum           micro-batches in this step.
        is_rewound, has_new_members   the index went back; membership changed since the step before.
        lr_scale, weight, lazy        may be set until the first ready(): a factor of every rate; this rank's weight
                                      in the mean; values come during the next forward.
        outcome         after end(): "applied", "skipped_nonfinite", "skipped_norm", "skipped_empty" or "pending".
        grad_norm, clip, applied, version, staleness, bad_rank, bad_tensor   after end().
    """

    _OUTCOMES = {
        _c.PEN_APPLIED: "applied",
        _c.PEN_SKIPPED_NONFINITE: "skipped_nonfinite",
        _c.PEN_SKIPPED_NORM: "skipped_norm",
        _c.PEN_SKIPPED_EMPTY: "skipped_empty",
        _c.PEN_PENDING: "pending",
    }
    lr_scale = property(lambda self: self._step.lr_scale, lambda self, to: setattr(self._step, "lr_scale", to))
    weight = property(lambda self: self._step.weight, lambda self, to: setattr(self._step, "weight", to))
    lazy = property(lambda self: bool(self._step.lazy), lambda self, to: setattr(self._step, "lazy", int(to)))

    def __init__(self, context: "Context", step: _c.pen_step) -> None:
        self._context, self._step = context, step
        self._is_open, self._is_entered = True, False
        self._status = _c.PEN_OK

    def __getattr__(self, name: str) -> Any:
        if name in (
            "index",
            "epoch",
            "loss_scale",
            "lr",
            "accum",
            "grad_norm",
            "clip",
            "applied",
            "version",
            "staleness",
        ):
            return getattr(self._step, name)
        raise AttributeError(f"a step has no '{name}'")

    @property
    def is_rewound(self) -> bool:
        return bool(self._step.flags & _c.PEN_STEP_REWOUND)

    @property
    def has_new_members(self) -> bool:
        return bool(self._step.flags & _c.PEN_STEP_MEMBERS)

    @property
    def outcome(self) -> str:
        return self._OUTCOMES[self._step.outcome]

    @property
    def bad_rank(self) -> Optional[int]:
        return int(self._step.bad_rank) if self._step.outcome == _c.PEN_SKIPPED_NONFINITE else None

    @property
    def bad_tensor(self) -> Optional[Tensor]:
        return self._context._tensors.get(self._step.bad_tensor or 0)

    def micro(self, m: int) -> None:
        """Micro-batch m of accum begins: before the last one ready() only accumulates."""
        check(lib.pen_step_micro(self._context._alive(), m))

    def scalar(self, name: str, value: float) -> None:
        """Adds a number of this rank, such as its loss: it is summed over the ranks with the gradients; see total().

        Shape      name has 1 to 63 letters; a step has eight names.
        Order      before the first ready() of the step's last micro-batch.
        """
        check(lib.pen_step_scalar(self._context._alive(), name.encode(), value))

    def ready(self) -> None:
        """All gradients that are not ready yet are final.  Tensor.ready() is for one."""
        self._context._has_ready = True
        check(lib.pen_ready(self._context._alive(), None, ALL))

    def end(self) -> None:
        """Ends the step on all ranks: all agree to apply or skip it, and parameters get the new values.

        Thread     the thread that began the step.  After Ctrl-C call it again: the step goes on meanwhile.
        Errors     WrongState: a trained tensor was not made ready.  Mismatch: ranks disagree on rate, clip, loss
                   scale or skip.  TimedOut: a live rank did not push.  PeerLost: a member died.
        Cost       two round trips after the last push.
        Source     pen_step_end().
        """
        self._context._call(self._end)

    def _end(self) -> None:
        if self._is_open:
            self._is_open = False
            self._status = lib.pen_step_end(self._context._alive(), byref(self._step))
        if self._status != _c.PEN_OK:
            raise failure(self._status)

    def total(self, name: str, op: Union[Op, str] = Op.SUM) -> float:
        """The sum, or with Op.AVG the mean, of what the ranks gave to scalar() in the newest step that ended."""
        value = c_double()
        check(lib.pen_step_total(self._context._alive(), name.encode(), op_of(op), byref(value)))
        return value.value

    def decided(self) -> str:
        """Waits until the device has decided a step whose outcome was "pending"; returns the outcome."""
        self._context._call(lambda: check(lib.pen_step_decided(self._context._alive(), byref(self._step))))
        return self.outcome

    def __enter__(self) -> "Step":
        self._is_entered = True
        return self

    def __exit__(self, kind: Any, error: Any, trace: Any) -> None:
        if error is None and self._is_open:
            if not self._context._has_ready:
                self.ready()
            self.end()
