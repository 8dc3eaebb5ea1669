"""backend.py - torch.distributed's backend "penstock": a ProcessGroup in Python over the collectives of the library."""
import atexit
import sys
import threading
import weakref
from collections import deque
from datetime import timedelta
from queue import SimpleQueue
from typing import Any, Callable, Deque, List, Optional, Sequence

import torch
import torch.distributed
from torch._C import _distributed_c10d

from ..errors import InvalidArgument, Unsupported
from ..group import ANY, Group, Op
from ..requests import Request
from . import job
from .memory import DTYPES

dist: Any = torch.distributed  # the types that some versions declare are not those they have
c10d: Any = _distributed_c10d
_OPS = [
    (getattr(dist.ReduceOp, torchs), ours)
    for torchs, ours in (
        ("SUM", Op.SUM),
        ("AVG", Op.AVG),
        ("PRODUCT", Op.PROD),
        ("MIN", Op.MIN),
        ("MAX", Op.MAX),
        ("BAND", Op.BAND),
        ("BOR", Op.BOR),
        ("BXOR", Op.BXOR),
    )
    if hasattr(dist.ReduceOp, torchs)
]
# C++ keeps no reference to the Python part of a Work, which waits.  Of those whose caller may be C++ the group keeps
# some: DDP asks for the future at once, and broadcasts have two in flight.
_KEPT = 64
_LAST_CALLBACKS_S = 10  # that callbacks may take when the program ends
# On 0 and 1 these are sums, products and the like whose results are 0 and 1 too.
_OF_BOOL = {Op.SUM: Op.MAX, Op.PROD: Op.MIN, Op.BOR: Op.MAX, Op.BAND: Op.MIN}


def _op(op: Any, tensor: torch.Tensor) -> Op:
    for torchs, ours in _OPS:
        if op == torchs:
            return _OF_BOOL.get(ours, ours) if tensor.dtype == torch.bool else ours
    raise Unsupported(f"the backend penstock has no operation {op}: scale the tensor, and use SUM")


def _numbers(tensor: torch.Tensor, op: Op) -> torch.Tensor:
    """The tensor as elements that can be reduced."""
    if tensor.is_complex() and op in (Op.SUM, Op.AVG):
        return torch.view_as_real(tensor)
    if tensor.dtype not in DTYPES:
        raise InvalidArgument(
            f"tensors of {tensor.dtype} cannot be reduced by Penstock: convert it, for example to torch.int32"
        )
    return tensor


def _bytes(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor as elements that can be sent: those without a type in Penstock as bytes."""
    if tensor.dtype in DTYPES:
        return tensor
    if tensor.is_complex():
        return _bytes(torch.view_as_real(tensor))
    return tensor.reshape(-1).view(torch.uint8)


def _one(tensors: Sequence[Any]) -> Any:
    if len(tensors) != 1:
        raise Unsupported("the backend penstock takes one tensor in a call: one process works on one device")
    return tensors[0]


class _Out:
    """Memory that a call writes, and the tensor that gets it where that cannot be written in place."""

    def __init__(self, tensor: torch.Tensor) -> None:
        self.tensor, self.dense = tensor, tensor if tensor.is_contiguous() else tensor.contiguous()

    def finish(self) -> None:
        if self.dense is not self.tensor:
            self.tensor.copy_(self.dense)


class _Parts:
    """One block with a part for each of some tensors, which may lie in it already."""

    def __init__(self, tensors: Sequence[torch.Tensor], is_input: bool) -> None:
        self.tensors, self.block = tensors, self._whole(tensors)  # type: Any, Any
        self.is_copy = self.block is None
        if self.block is None:
            counts = [t.numel() for t in tensors]
            self.block = tensors[0].new_empty(sum(counts))
            if is_input:
                for part, t in zip(self.block.split(counts), tensors):
                    part.copy_(t.reshape(-1))

    @staticmethod
    def _whole(tensors: Sequence[Any]) -> Any:
        """The tensors' own memory, if each lies behind the one before."""
        at = tensors[0].data_ptr()
        for t in tensors:
            if not t.is_contiguous() or t.data_ptr() != at:
                return None
            at += t.numel() * t.element_size()
        first, count = tensors[0], sum(t.numel() for t in tensors)
        if first.numel() == 0 or (first.storage_offset() + count) * first.element_size() > _storage_bytes(first):
            return None
        return first.as_strided((count,), (1,))

    def finish(self) -> None:
        if self.is_copy:
            for part, t in zip(self.block.split([t.numel() for t in self.tensors]), self.tensors):
                t.copy_(part.view(t.shape))


def _storage_bytes(tensor: Any) -> int:
    if hasattr(tensor, "untyped_storage"):
        return int(tensor.untyped_storage().nbytes())
    return int(tensor.storage().nbytes())


class Work(c10d.Work):  # type: ignore
    """A call in progress.  Ctrl-C ends wait() in the main thread; a thread of the group completes get_future()."""

    def __init__(
        self, group: "ProcessGroup", requests: List[Request[Any]], outputs: List[Any], result: List[torch.Tensor]
    ) -> None:
        super().__init__()
        self._group, self._requests, self._outputs, self._result = group, requests, outputs, result
        self._lock = threading.Lock()
        self._has_ended = False
        self._error: Optional[Exception] = None
        self._future: Any = None
        self._source = -1

    def _complete(self) -> None:
        """Waits until the call has ended, and copies its results to where they belong.  Its failure stays in _error."""
        with self._lock:
            if self._has_ended:
                return
            try:
                for request in self._requests:
                    request.wait()
                    self._source = request.result.source
                for output in self._outputs:
                    output.finish()
            except Exception as error:
                self._error = error
            self._has_ended = True
            self._requests, self._outputs = [], []

    def _value(self) -> List[torch.Tensor]:
        if self._error is not None:
            raise self._error
        return self._result

    def wait(self, timeout: timedelta = timedelta(0)) -> bool:
        self._complete()
        self._value()
        return True

    def synchronize(self) -> None:
        self.wait()

    def is_completed(self) -> bool:
        if not self._has_ended and self._lock.acquire(blocking=False):  # else another thread waits for it
            try:
                may_end = all(r.done() for r in self._requests)
            finally:
                self._lock.release()
            if may_end:
                self._complete()
        return self._has_ended

    def is_success(self) -> bool:
        return self.is_completed() and self._error is None

    def exception(self) -> Optional[Exception]:
        return self._error

    def result(self) -> List[torch.Tensor]:
        self._complete()
        return self._value()

    def source_rank(self) -> int:
        return self._source

    _source_rank = source_rank

    def get_future(self) -> Any:
        if self._future is None:
            ended: Any = torch.futures.Future()
            self._future = ended.then(lambda _: self._value())  # a failure of then() is one for C++ too
            self._group._complete_later(self, ended)
        return self._future

    getFuture = get_future


class _Completer:
    """Waits for calls in their order, in a thread, and completes their futures: DDP's reducer waits for these."""

    def __init__(self) -> None:
        self._queue: "SimpleQueue[Any]" = SimpleQueue()
        self.completing = threading.Lock()
        _completers.add(self)
        threading.Thread(target=self._run, name="penstock-torch", daemon=True).start()

    def add(self, work: Work, ended: Any) -> None:
        self._queue.put((work, ended))

    def _run(self) -> None:
        while True:
            item = self._queue.get()
            if item is None:
                return
            work, ended = item
            work._complete()
            with self.completing:
                ended.set_result(None)
                del item, work, ended

    def close(self) -> None:
        self._queue.put(None)


_completers: "weakref.WeakSet[_Completer]" = weakref.WeakSet()


@atexit.register
def _end_callbacks() -> None:
    """While a future runs its callbacks its thread is in C++, and the process aborts if the interpreter ends then.  So the
    end waits for them, and no other future begins: after the program's own functions of atexit, before the job's end."""
    for completer in list(_completers):
        completer.completing.acquire(timeout=_LAST_CALLBACKS_S)


class ProcessGroup(dist.ProcessGroup):  # type: ignore
    """A group of torch.distributed over a group of Penstock.

    Dtype      reductions: all of DType and bool, SUM and AVG of complex; else any.
    Shape      tensors need not be contiguous: those that are not are copied.
    Thread     as torch's: the same calls in the same order on all members.
    Errors     those of Group: exceptions that name the culprit.  Through DDP they are RuntimeErrors with the same
               sentence.
    """

    def __init__(self, group: Group, rank: int, size: int, timeout: timedelta) -> None:
        super().__init__(rank, size)
        self._group, self._rank, self._size, self._timeout = group, rank, size, timeout
        self._of_cpp: Deque[Work] = deque(maxlen=_KEPT)
        self._completer: Optional[_Completer] = None
        self._sequence = 0

    def getBackendName(self) -> str:
        return "penstock"

    _get_backend_name = getBackendName

    def name(self) -> str:
        return "penstock"

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def _complete_later(self, work: Work, ended: Any) -> None:
        if self._completer is None:
            self._completer = _Completer()
        self._completer.add(work, ended)

    def __del__(self) -> None:
        if self._completer is not None:
            self._completer.close()

    def _work(self, requests: List[Request[Any]], outputs: List[Any], result: List[torch.Tensor]) -> Work:
        self._sequence += 1
        work = Work(self, requests, outputs, result)
        caller = sys._getframe(1)
        while caller.f_back is not None and caller.f_globals is globals():
            caller = caller.f_back
        if caller.f_globals is not vars(dist.distributed_c10d):
            self._of_cpp.append(work)
        return work

    def _options(self, opts: Any, tensor: Optional[torch.Tensor] = None) -> Any:
        timeout = getattr(opts, "timeout", None)
        if timeout is None or timeout < timedelta(0):
            timeout = self._timeout
        option = {"wait": False, "deadline": timeout.total_seconds()}
        if tensor is not None and tensor.is_cuda:
            option["stream"] = torch.cuda.current_stream(tensor.device).cuda_stream
        return option

    # ---- one tensor in place --------------------------------------------------------------------
    def _reduced(self, tensor: torch.Tensor, reduce_op: Any, opts: Any, call: Callable[..., Any], **more: Any) -> Work:
        op, out = _op(reduce_op, tensor), _Out(tensor)
        request = call(_numbers(out.dense, op), op=op, overwrite=True, **more, **self._options(opts, tensor))
        return self._work([request], [out], [tensor])

    def allreduce(self, tensors: Any, opts: Any = c10d.AllreduceOptions()) -> Work:
        return self._reduced(_one(tensors), opts.reduceOp, opts, self._group.all_reduce)

    def reduce(self, tensors: Any, opts: Any = c10d.ReduceOptions()) -> Work:
        return self._reduced(_one(tensors), opts.reduceOp, opts, self._group.reduce, root=opts.rootRank)

    def allreduce_coalesced(self, tensors: Any, opts: Any = c10d.AllreduceCoalescedOptions()) -> Work:
        block = _Parts(list(tensors), True)
        op = _op(opts.reduceOp, tensors[0])
        request = self._group.all_reduce(
            _numbers(block.block, op), op=op, overwrite=True, **self._options(opts, tensors[0])
        )
        return self._work([request], [block], list(tensors))

    def broadcast(self, tensors: Any, opts: Any = c10d.BroadcastOptions()) -> Work:
        tensor = _one(tensors)
        out = _Out(tensor)
        request = self._group.broadcast(_bytes(out.dense), opts.rootRank, **self._options(opts, tensor))
        return self._work([request], [out], [tensor])

    # ---- a part for each member -----------------------------------------------------------------
    def _gathered(self, x: torch.Tensor, out: Any, opts: Any) -> List[Request[Any]]:
        return [self._group.all_gather(_bytes(x.contiguous()), _bytes(out), **self._options(opts, x))]

    def allgather(self, outputs: Any, inputs: Any, opts: Any = c10d.AllgatherOptions()) -> Work:
        parts = _Parts(_one(outputs), False)
        return self._work(self._gathered(_one(inputs), parts.block, opts), [parts], list(parts.tensors))

    def _allgather_base(self, output: Any, input: Any, opts: Any = c10d.AllgatherOptions()) -> Work:
        out = _Out(output)
        return self._work(self._gathered(input, out.dense, opts), [out], [output])

    def allgather_coalesced(self, output_lists: Any, inputs: Any, opts: Any = c10d.AllgatherOptions()) -> Work:
        requests, outputs = [], []
        for i, x in enumerate(inputs):  # one list for each member, or one for each input
            parts = _Parts([member[i] for member in output_lists], False)
            requests += self._gathered(x, parts.block, opts)
            outputs.append(parts)
        return self._work(requests, outputs, [t for member in output_lists for t in member])

    def allgather_into_tensor_coalesced(self, outputs: Any, inputs: Any, opts: Any = c10d.AllgatherOptions()) -> Work:
        outs, requests = [_Out(t) for t in outputs], []
        for x, out in zip(inputs, outs):
            requests += self._gathered(x, out.dense, opts)
        return self._work(requests, outs, list(outputs))

    def gather(self, outputs: Any, inputs: Any, opts: Any = c10d.GatherOptions()) -> Work:
        x, is_root = _one(inputs), opts.rootRank == self._rank
        parts = _Parts(_one(outputs), False) if is_root else None
        out = _bytes(parts.block) if parts is not None else None
        request = self._group.gather(_bytes(x.contiguous()), out, root=opts.rootRank, **self._options(opts, x))
        return self._work(
            [request], [parts] if parts is not None else [], list(parts.tensors) if parts is not None else []
        )

    def scatter(self, outputs: Any, inputs: Any, opts: Any = c10d.ScatterOptions()) -> Work:
        tensor, is_root = _one(outputs), opts.rootRank == self._rank
        parts, out = _Parts(_one(inputs), True) if is_root else None, _Out(tensor)
        x = _bytes(parts.block) if parts is not None else None
        request = self._group.scatter(x, _bytes(out.dense), root=opts.rootRank, **self._options(opts, tensor))
        return self._work([request], [out], [tensor])

    def _reduce_scattered(self, x: Any, out: "_Out", opts: Any) -> Request[Any]:
        op = _op(opts.reduceOp, out.tensor)
        request: Request[Any] = self._group.reduce_scatter(
            _numbers(x, op), _numbers(out.dense, op), op=op, **self._options(opts, out.tensor)
        )
        return request

    def reduce_scatter(self, outputs: Any, inputs: Any, opts: Any = c10d.ReduceScatterOptions()) -> Work:
        out, parts = _Out(_one(outputs)), _Parts(_one(inputs), True)
        return self._work([self._reduce_scattered(parts.block, out, opts)], [out], [out.tensor])

    def _reduce_scatter_base(self, output: Any, input: Any, opts: Any = c10d.ReduceScatterOptions()) -> Work:
        out = _Out(output)
        return self._work([self._reduce_scattered(input.contiguous(), out, opts)], [out], [output])

    def reduce_scatter_tensor_coalesced(
        self, outputs: Any, inputs: Any, opts: Any = c10d.ReduceScatterOptions()
    ) -> Work:
        outs = [_Out(t) for t in outputs]
        requests = [self._reduce_scattered(x.contiguous(), out, opts) for x, out in zip(inputs, outs)]
        return self._work(requests, outs, list(outputs))

    def alltoall(self, outputs: Any, inputs: Any, opts: Any = c10d.AllToAllOptions()) -> Work:
        out, x = _Parts(list(outputs), False), _Parts(list(inputs), True)
        request = self._exchanged(x.block, out.block, [t.numel() for t in inputs], [t.numel() for t in outputs], opts)
        return self._work([request], [out], list(outputs))

    def alltoall_base(
        self, output: Any, input: Any, out_sizes: List[int], in_sizes: List[int], opts: Any = c10d.AllToAllOptions()
    ) -> Work:
        out, x = _Out(output), input.contiguous()
        rows = [[n * _row(t) for n in sizes] or self._even(t) for t, sizes in ((x, in_sizes), (output, out_sizes))]
        return self._work([self._exchanged(x, out.dense, rows[0], rows[1], opts)], [out], [output])

    def _even(self, tensor: torch.Tensor) -> List[int]:
        if tensor.shape[0] % self._size != 0:
            raise InvalidArgument(
                f"all_to_all: {tensor.shape[0]} rows cannot be divided evenly between {self._size} ranks"
            )
        return [tensor.numel() // self._size] * self._size

    def _exchanged(self, x: Any, out: Any, in_counts: List[int], out_counts: List[int], opts: Any) -> Request[Any]:
        a, b = _bytes(x), _bytes(out)
        times = [a.numel() // x.numel() if x.numel() > 0 else 1, b.numel() // out.numel() if out.numel() > 0 else 1]
        counts = [[n * times[0] for n in in_counts], [n * times[1] for n in out_counts]]
        request: Request[Any] = self._group.all_to_all(a, b, counts[0], counts[1], **self._options(opts, x))
        return request

    # ---- point to point -------------------------------------------------------------------------
    def send(self, tensors: Any, to: int, tag: int = 0) -> Work:
        tensor = _one(tensors).contiguous()
        return self._work([self._group.send(_bytes(tensor), to, tag, **self._options(None, tensor))], [], [tensor])

    def _received(self, tensors: Any, source: int, tag: int) -> Work:
        out = _Out(_one(tensors))
        request = self._group.recv(_bytes(out.dense), source, tag, **self._options(None, out.tensor))
        return self._work([request], [out], [out.tensor])

    def recv(self, tensors: Any, source: int, tag: int = 0) -> Work:
        return self._received(tensors, source, tag)

    def recv_anysource(self, tensors: Any, tag: int = 0) -> Work:
        return self._received(tensors, ANY, tag)

    # ---- the rest -------------------------------------------------------------------------------
    def barrier(self, opts: Any = c10d.BarrierOptions()) -> Work:
        return self._work([self._group.barrier(**self._options(opts))], [], [])

    def monitored_barrier(self, timeout: Optional[timedelta] = None, wait_all_ranks: bool = False) -> None:
        if timeout is None or timeout < timedelta(0):
            timeout = self._timeout
        self._group.barrier(deadline=timeout.total_seconds(), label="monitored_barrier")

    def _set_sequence_number_for_group(self) -> None:
        pass

    def _get_sequence_number_for_group(self) -> int:
        return self._sequence


def _row(tensor: torch.Tensor) -> int:
    """Elements of a row."""
    return tensor.numel() // tensor.shape[0] if tensor.dim() > 0 and tensor.shape[0] > 0 else 1


def monitored_barrier(group: Any = None, timeout: Optional[timedelta] = None, wait_all_ranks: bool = False) -> None:
    """torch.distributed.monitored_barrier(), which torch gives to Gloo only.

    Errors     TimedOut: its `missing` and its sentence have all ranks that did not come.  The group has failed then.
    """
    found: Any = group if group is not None else dist.distributed_c10d._get_default_group()
    found.monitored_barrier(timeout, wait_all_ranks)


def mean_hook(group: Any, bucket: torch.distributed.GradBucket) -> torch.futures.Future[torch.Tensor]:  # type: ignore
    """A communication hook of DistributedDataParallel: model.register_comm_hook(None, penstock.torch.mean_hook).

    It takes the mean in the reduction, where DDP divides the bucket in a pass of its own before it.

    Shape      group: of torch.distributed, over the backend penstock; None: the default one.   Dtype  as Group.
    Thread     DDP's.   Errors  as ProcessGroup.   Cost  an all_reduce, which nothing waits for but the bucket's end.
    """
    found: Any = group if group is not None else dist.distributed_c10d._get_default_group()
    opts = c10d.AllreduceOptions()
    opts.reduceOp = dist.ReduceOp.AVG
    future: Any = found.allreduce([bucket.buffer()], opts).get_future().then(lambda f: f.value()[0])
    return future  # type: ignore


def _create(options: Any, _: Any = None) -> ProcessGroup:
    """What torch calls for each group that this process is in."""
    context = (
        job.join_through(options.store, options.group_rank, options.group_size) if _is_first(options) else job.context()
    )
    ranks = list(options.global_ranks_in_group)
    group = context.world.new(ranks) if ranks else context.world
    assert group is not None
    return ProcessGroup(group, options.group_rank, options.group_size, options.timeout)


def _is_first(options: Any) -> bool:
    return not dist.is_initialized()


def register() -> None:
    """Tells torch.distributed of the backend; importing penstock.torch does."""
    if not hasattr(dist.Backend, "PENSTOCK"):
        dist.Backend.register_backend("penstock", _create, extended_api=True, **_devices())


def _devices() -> Any:
    import inspect

    known = inspect.signature(dist.Backend.register_backend).parameters
    return {"devices": ["cpu", "cuda"]} if "devices" in known else {}
