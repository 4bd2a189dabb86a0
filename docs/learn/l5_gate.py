"""Two gates: what they give, where they differ, their gradients."""

import torch

import kda

x = torch.tensor([-8.0, -2.0, 0.0, 2.0, 8.0], dtype=torch.float64).reshape(1, 5, 1, 1)
zero = torch.zeros(1, dtype=torch.float64)
standard = kda.fused_kda_gate(x, zero, output_dtype=torch.float64)
safe = kda.fused_kda_gate(x, zero, lower_bound=-5.0, output_dtype=torch.float64)
print("pre-activation   standard      clamped         safe   kept by safe")
for z, a, b in zip(x.flatten(), standard.flatten(), safe.flatten(), strict=True):
    print(f"{z:14.0f} {a:10.4f} {a.clamp(min=-5):12.4f} {b:12.4f} {b.exp():14.4f}")

torch.manual_seed(0)
raw = torch.randn(2, 9, 3, 4, dtype=torch.float64)
A, bias = torch.randn(3, dtype=torch.float64), torch.randn(12, dtype=torch.float64)
for name, bound in (("standard", None), ("safe", -5.0)):
    leaves = [t.clone().requires_grad_() for t in (raw, A, bias)]

    def gate(x, a, b, bound=bound):
        return kda.fused_kda_gate(x, a, b, lower_bound=bound, output_dtype=torch.float64)

    g = gate(*leaves)
    dg = torch.randn_like(g)
    given = torch.autograd.grad((g * dg).sum(), leaves)
    z, rate = raw + bias.view(3, 4), A.exp()[:, None]
    if bound is None:
        dx = -dg * rate * torch.sigmoid(z)
        dA = (dg * g).sum((0, 1, 3))
    else:
        y = torch.sigmoid(rate * z)
        dx = dg * bound * y * (1 - y) * rate
        dA = (dx * z).sum((0, 1, 3))
    by_hand = (dx, dA, dx.sum((0, 1)).flatten())
    same = all(torch.allclose(a, b, atol=1e-12) for a, b in zip(given, by_hand, strict=True))
    print(f"{name}: formulas of the notes equal the operator's gradients: {same}")
    print(f"{name}: gradcheck: {torch.autograd.gradcheck(gate, leaves, eps=1e-6, atol=1e-4)}")
