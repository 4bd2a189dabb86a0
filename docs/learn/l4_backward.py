"""Gradients of the production backward against autograd through the definition in float64."""

import torch

import kda

torch.manual_seed(1)
shape = (1, 150, 2, 32)
names = ("q", "k", "v", "g", "beta", "initial_state")
q, k, v, do = (torch.randn(shape) for _ in range(4))
q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
g = torch.nn.functional.logsigmoid(torch.randn(shape))
inputs = (q, k, v, g, torch.rand(shape[:3]), torch.randn(1, 2, 32, 32))


def gradients(function, dtype):
    leaves = [x.to(dtype).requires_grad_() for x in inputs]
    o, state = function(*leaves[:5], initial_state=leaves[5], output_final_state=True)
    loss = (o * do.to(dtype)).sum() + (state * state).sum()
    return torch.autograd.grad(loss, leaves)


want = gradients(kda.naive_recurrent_kda, torch.float64)
for name, given, expected in zip(names, gradients(kda.chunk_kda, torch.float32), want, strict=True):
    error = ((given - expected).square().mean() / expected.square().mean()).sqrt().item()
    print(f"d {name:13}: relative error below 2e-6: {error < 2e-6}")

# The operator in float64 passes torch's own comparison with differences of the function.
small = [x[:, :16, :, :4] if x.ndim == 4 else x[:, :16] for x in inputs[:5]]
leaves = [x.double().contiguous().requires_grad_() for x in small]
passed = torch.autograd.gradcheck(lambda *a: kda.chunk_kda(*a)[0], leaves, eps=1e-6, atol=1e-4)
print("gradcheck:", passed)
