"""zero.py - a stock script of ZeroRedundancyOptimizer."""
import torch
import torch.distributed as dist
from torch.distributed.optim import ZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group("gloo")
rank = dist.get_rank()
torch.manual_seed(1)
model = DistributedDataParallel(torch.nn.Sequential(*[torch.nn.Linear(64, 64) for _ in range(4)]))
optimizer = ZeroRedundancyOptimizer(model.parameters(), optimizer_class=torch.optim.Adam, lr=0.01)
for step in range(20):
    torch.manual_seed(100 * step + rank)
    optimizer.zero_grad()
    loss = (model(torch.randn(16, 64)) - 1).pow(2).mean()
    loss.backward()
    optimizer.step()
optimizer.consolidate_state_dict(to=0)
if rank == 0:
    print(f"loss {loss.item():.4f}   states {len(optimizer.state_dict()['state'])}")
