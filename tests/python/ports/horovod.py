"""horovod.py - a training loop with Horovod's calls, as its users write it."""
import horovod.torch as hvd
import torch

hvd.init()
torch.manual_seed(hvd.rank())
model = torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
hvd.broadcast_parameters(model.state_dict(), root_rank=0)
optimizer = torch.optim.SGD(model.parameters(), lr=0.05 * hvd.size(), momentum=0.9)
hvd.broadcast_optimizer_state(optimizer, root_rank=0)
optimizer = hvd.DistributedOptimizer(optimizer, named_parameters=model.named_parameters())
for step in range(50):
    torch.manual_seed(1000 * step + hvd.rank())
    x = torch.randn(32, 784)
    y = x[:, :10].argmax(1)
    optimizer.zero_grad()
    loss = torch.nn.functional.cross_entropy(model(x), y)
    loss.backward()
    optimizer.step()
loss = hvd.allreduce(loss, name="loss")
if hvd.rank() == 0:
    print(f"loss {loss.item():.3f}")
