"""byteps.py - a loop of BytePS whose step() does not wait: the next forward pass waits, layer by layer."""
import byteps.torch.cross_barrier as bps
import torch

bps.init()
torch.manual_seed(1)
model = torch.nn.Sequential(torch.nn.Linear(784, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
optimizer = bps.CrossBarrier(model, optimizer, model.named_parameters(), num_steps=50)
for step in range(50):
    torch.manual_seed(1000 * step + bps.rank())
    x = torch.randn(32, 784)
    y = x[:, :10].argmax(1)
    loss = torch.nn.functional.cross_entropy(model(x), y)
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
print(f"rank {bps.rank()} of {bps.size()}   loss {loss.item():.3f}")
