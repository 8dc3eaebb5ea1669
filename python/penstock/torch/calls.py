"""calls.py - the calls of Horovod and BytePS under their names, so that their scripts need one changed line."""
from typing import Any, Iterable, Mapping, Optional, Tuple, Union

import torch

from ..group import Op
from . import job
from .optimizer import DistributedOptimizer


def rank() -> int:
    """This worker's rank."""
    return job.context().rank


def size() -> int:
    """Workers of the job at its start."""
    return job.context().world_size


def local_rank() -> int:
    """This worker's rank on its machine."""
    return int(job.context().info.local_rank)


def local_size() -> int:
    """Workers on this machine."""
    return int(job.context().info.local_world_size)


def allreduce(tensor: torch.Tensor, name: Optional[str] = None, op: Union[Op, str] = Op.AVG) -> torch.Tensor:
    """The mean (op) of a tensor over all ranks, as a new tensor.

    Shape      equal on all ranks.   Dtype  as Group.
    Thread     the same calls in the same order on all ranks.   Errors, cost  as Group.all_reduce().
    Source     Horovod's allreduce().
    """
    out = tensor.detach().clone(memory_format=torch.contiguous_format)
    job.context().world.all_reduce(out, op=op, label=name)
    return out


def broadcast_parameters(parameters: Union[Mapping[str, Any], Iterable[Tuple[str, Any]]], root_rank: int = 0) -> None:
    """Copies root_rank's tensors to all ranks: model.state_dict(), or named_parameters().

    A DistributedOptimizer does so for its parameters when it is made; this is for buffers, and for other roots before it.
    After it was made, its load_state_dict() gives all ranks rank 0's parameters.

    Thread     the same call on all ranks.   Errors, cost  as Group.broadcast().
    """
    world = job.context().world
    for _, tensor in parameters.items() if isinstance(parameters, Mapping) else parameters:
        if isinstance(tensor, torch.Tensor):
            dense = tensor.detach().contiguous()
            world.broadcast(dense, root_rank)
            if dense.data_ptr() != tensor.data_ptr():
                tensor.detach().copy_(dense)


def broadcast_optimizer_state(optimizer: torch.optim.Optimizer, root_rank: int = 0) -> None:
    """Copies root_rank's optimizer state to all ranks; that of a DistributedOptimizer is on servers or sharded already.

    Thread     the same call on all ranks, whose optimizers have state of the same form.
    """
    if isinstance(optimizer, DistributedOptimizer):
        return
    for group in optimizer.state_dict()["state"].values():
        broadcast_parameters([(k, v) for k, v in group.items()], root_rank)
