"""job.py - the one job that a PyTorch program is in: its backend, its optimizers and its tables share the context."""
import os
import socket
from typing import Any, Optional

from ..context import Context, init as join
from ..errors import BadSetting, WrongState

_current: Optional[Context] = None
_clip = 0.0


def init(**settings: Any) -> Context:
    """Joins the job, as penstock.init() does, for all of penstock.torch.  A second call returns the first one's context.

    Thread     one.   Errors, cost  as penstock.init().
    """
    global _current, _clip
    if _current is None or not _current._handle:
        _current = join(**settings)
        _clip = float(os.environ.get("PENSTOCK_CLIP") or settings.get("clip") or 0)
    return _current


def context() -> Context:
    """The context of this program's job.  Errors: WrongState: neither init() nor init_process_group() was called."""
    if _current is None or not _current._handle:
        raise WrongState("this program is in no job: call penstock.torch.init(), or init_process_group('penstock')")
    return _current


def clip() -> float:
    """The norm at which the job clips; 0: none."""
    return _clip


def _free_port(host: str) -> int:
    with socket.socket() as s:
        s.bind((host, 0))
        return int(s.getsockname()[1])


def join_through(store: Any, rank: int, size: int) -> Context:
    """Joins a job of these members; where no launcher of ours says where its scheduler is, rank 0 tells through the store."""
    if _current is not None and _current._handle:
        found = _current
    elif size == 1 or os.environ.get("PENSTOCK_SCHEDULER") == "external":
        found = init() if size > 1 else init(rank=0, world_size=1)
    else:
        host = os.environ.get("MASTER_ADDR", "127.0.0.1")
        if rank == 0:
            port = _free_port(host)
            store.set("penstock", str(port))
        else:
            port = int(store.get("penstock"))
        found = init(rank=rank, world_size=size, master_addr=host, port=port, scheduler="hosted")
    if (found.rank, found.world_size) != (rank, size):
        raise BadSetting(
            f"init_process_group() says rank {rank} of {size}, and the job that this process is in rank {found.rank} "
            f"of {found.world_size}"
        )
    return found
