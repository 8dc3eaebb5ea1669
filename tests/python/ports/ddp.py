"""ddp.py - a stock script of DistributedDataParallel."""
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

dist.init_process_group("gloo")
torch.manual_seed(1)
x = torch.randn(1000, 20)
data = TensorDataset(x, x[:, :5].argmax(1))
sampler = DistributedSampler(data, shuffle=True)
model = DistributedDataParallel(torch.nn.Sequential(torch.nn.Linear(20, 32), torch.nn.ReLU(), torch.nn.Linear(32, 5)))
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(3):
    sampler.set_epoch(epoch)
    for inputs, labels in DataLoader(data, 25, sampler=sampler, num_workers=1):
        optimizer.zero_grad()
        loss = torch.nn.functional.cross_entropy(model(inputs), labels)
        loss.backward()
        optimizer.step()
total = torch.tensor([loss.item()])
dist.all_reduce(total)
if dist.get_rank() == 0:
    print(f"loss {total.item() / dist.get_world_size():.4f}")
dist.destroy_process_group()
