"""sampler.py - which samples this rank gets, epoch by epoch."""
from ctypes import byref, c_int64, c_size_t, c_void_p
from typing import Any, Iterator, List, Optional, Tuple, TYPE_CHECKING

from . import _c
from ._library import lib
from .errors import check, failure

if TYPE_CHECKING:
    from .context import Context


class Sampler:
    """Divides samples between ranks, epoch by epoch: torch's DistributedSampler bit for bit.

    Shape      n samples.  context None: world and rank say the division; else they may be 0, those of the context,
               which follow membership, and snapshots save the position.  drop_last and exact: as penstock.h says.
    Thread     any; the same calls on all ranks.
    Errors     InvalidArgument: the field.
    Cost       no message.  A shuffle takes 4 bytes a sample.
    Source     PyTorch, torch/utils/data/distributed.py.
    """

    def __init__(
        self,
        n: int,
        context: Optional["Context"] = None,
        *,
        world: int = 0,
        rank: int = 0,
        seed: int = 0,
        shuffle: bool = True,
        drop_last: bool = False,
        exact: bool = False,
    ) -> None:
        d = _c.pen_sampler_desc(
            n=n, world=world, rank=rank, seed=seed, keep_order=not shuffle, drop_last=drop_last, exact=exact
        )
        self._handle, self._context, made = 0, context, c_void_p()
        check(lib.pen_sampler_new(context._alive() if context is not None else None, byref(d), byref(made)))
        self._handle = made.value or 0
        if context is not None:
            context._samplers.add(self)

    def next(self, want: int) -> List[int]:
        """The next samples of this rank, fewer only at the end of the epoch; [] after the last one, until seek().

        Errors     Mismatch: the restored position is for another n: seek.  NotAMember: no longer in the world.
        """
        index, got = (c_int64 * want)(), c_size_t()
        status = lib.pen_sampler_next(self._handle, index, want, byref(got))
        if status not in (_c.PEN_OK, _c.PEN_END):
            raise failure(status)
        return index[: got.value]

    def __iter__(self) -> Iterator[int]:
        """This rank's samples up to the end of the epoch; then the next epoch begins."""
        while True:
            some = self.next(1024)
            if not some:
                break
            yield from some
        self.seek(self.tell()[0] + 1)

    def seek(self, epoch: int, consumed: int = 0) -> None:
        """Goes to a position: torch's set_epoch(e) is seek(e).  consumed counts samples over all ranks."""
        check(lib.pen_sampler_seek(self._handle, epoch, consumed))

    def tell(self) -> Tuple[int, int]:
        """The position (epoch, consumed), as seek() takes it."""
        epoch, consumed = c_int64(), c_int64()
        check(lib.pen_sampler_tell(self._handle, byref(epoch), byref(consumed)))
        return epoch.value, consumed.value

    def free(self) -> None:
        """Frees it; a context frees its samplers when it is closed."""
        handle, self._handle = self._handle, 0
        lib.pen_sampler_free(handle)

    def __del__(self, free: Any = lib.pen_sampler_free) -> None:
        if self._handle:
            free(self._handle)
