"""Penstock for PyTorch: a backend of torch.distributed, and what trains a module through the servers or without them.

    import penstock.torch
    torch.distributed.init_process_group("penstock")

The backend works under `penstock run`, torchrun, mpirun and torch.multiprocessing.
"""
from .backend import ProcessGroup, Work, mean_hook, monitored_barrier, register as _register
from .calls import allreduce, broadcast_optimizer_state, broadcast_parameters, local_rank, local_size, rank, size
from .embedding import Embedding
from .files import from_module, load_into
from .job import context, init
from .optimizer import DistributedOptimizer
from . import memory as _memory

_register()

__all__ = [
    "DistributedOptimizer",
    "Embedding",
    "ProcessGroup",
    "Work",
    "allreduce",
    "broadcast_optimizer_state",
    "broadcast_parameters",
    "context",
    "from_module",
    "init",
    "load_into",
    "local_rank",
    "local_size",
    "mean_hook",
    "monitored_barrier",
    "rank",
    "size",
]
