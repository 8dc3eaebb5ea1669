"""embedding.py - an embedding layer whose rows are on the servers."""
from typing import Any, Optional

import torch

from ..table import Table
from . import job


class Embedding(torch.nn.Module):
    """An embedding whose rows servers hold and update: as torch.nn.Embedding(sparse=True) with an optimizer of its own.

        layer = penstock.torch.Embedding("users", 64, optim="adagrad lr=0.05")

    A forward pass pulls the rows of its indices, the backward pass pushes their gradients; no optimizer of torch is needed.

    Shape      any 64-bit integers are indices, of any shape; the result is [..., dim].  Rows are made at their first push.
    Dtype      values are float32; servers hold float32.
    Units      gradients are those of this rank's loss.  sync="bsp" (the default of the mode) takes their mean over all
               ranks, and then every rank makes as many backward passes through the layer; "async" and "ssp" update on
               arrival.
    Order      make it after penstock.torch.init() and before the DistributedOptimizer, which commits (or before
               penstock.torch.context().commit()), in the same order on all ranks.
    Thread     that of forward() and backward().
    Errors     those of Context.table(), Table.pull() and Table.push().   Unsupported: the job has no servers.
    Cost       a forward pass waits for one message each way per server; gradients leave without a wait.
    Source     torch.nn.Embedding; Li et al., OSDI 2014.
    """

    def __init__(
        self, name: str, dim: int, *, optim: str, init: Optional[str] = None, sync: Optional[str] = None
    ) -> None:
        super().__init__()
        context = job.init()
        self.dim = dim
        self.table: Table = context.table(name, dim, params=context.params(name, optim=optim, sync=sync), init=init)
        self._pushed: Any = None  # the newest push: its failure is raised by the next pass

    def forward(self, indices: torch.Tensor) -> torch.Tensor:
        """The rows of some indices, [..., dim]; without gradients (torch.no_grad()) nothing is pushed."""
        keys, place = torch.unique(indices.to(torch.int64), return_inverse=True)
        rows: Any = torch.empty(len(keys), self.dim)
        self._wait()
        self.table.pull(keys, rows)
        if torch.is_grad_enabled():
            rows.requires_grad_()
            rows.register_hook(lambda grad: self._push(keys, grad))
        found: torch.Tensor = torch.nn.functional.embedding(place, rows)
        return found

    def _push(self, keys: torch.Tensor, grad: torch.Tensor) -> None:
        self._wait()
        self._pushed = self.table.push(keys, grad.contiguous(), wait=False)

    def _wait(self) -> None:
        pushed, self._pushed = self._pushed, None
        if pushed is not None:
            pushed.wait()

    def extra_repr(self) -> str:
        """What print() shows."""
        return f"{self.table.name!r}, {self.dim}"
