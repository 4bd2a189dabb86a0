"""The same three tokens at once: a triangular system in place of a loop."""

import torch

import kda

torch.set_printoptions(precision=4, sci_mode=False)
f64 = {"dtype": torch.float64}
q = torch.tensor([[1, 0], [0.6, 0.8], [0, 1]], **f64)
k = torch.tensor([[0.8, 0.6], [1, 0], [0.6, -0.8]], **f64)
v = torch.tensor([[1, 2], [-1, 0.5], [0.25, -2]], **f64)
g = torch.tensor([[-0.1, -0.2], [-0.5, -0.05], [-1, -0.3]], **f64)
beta = torch.tensor([0.5, 0.9, 0.25], **f64)

G = g.cumsum(0)  # decay from the chunk's start through row i
decay = (G[:, None] - G[None]).exp()  # [i, j, channel]; only j <= i is used
lam = torch.einsum("i,ic,jc,ijc->ij", beta, k, k, decay).tril(-1)
n = torch.einsum("ic,jc,ijc->ij", q, k, decay).tril()
A = torch.linalg.inv(torch.eye(3, **f64) + lam)
U = A @ (beta[:, None] * v)  # the state at the start is zero, else v - (k e^G) S
print("Lambda =", lam, "U = what each token writes =", U, sep="\n")
o = 2**-0.5 * n @ U
print("o =", o, sep="\n")
S = (k * (G[-1] - G).exp()).T @ U
print("final state =", S, sep="\n")


def heads(x):  # [T, ...] -> [B=1, T, H=1, ...]
    return x[None, :, None]


want, state = kda.naive_recurrent_kda(
    *map(heads, (q, k, v, g, beta)), initial_state=None, output_final_state=True
)
print("equal to the token loop:", torch.allclose(heads(o), want, rtol=0, atol=1e-15))

torch.manual_seed(0)
q, k, v, g = (torch.randn(2, 100, 3, 8, **f64) for _ in range(4))
k, g = torch.nn.functional.normalize(k, dim=-1), -g.abs()
beta = torch.rand(2, 100, 3, **f64)
want, _ = kda.naive_recurrent_kda(q, k, v, g, beta)
for chunk in (1, 7, 16, 64, 100):
    given, _ = kda.naive_chunk_kda(q, k, v, g, beta, chunk_size=chunk)
    print(f"chunks of {chunk:3}: equal up to rounding: {(given - want).abs().max() < 1e-13}")
