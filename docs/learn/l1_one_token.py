"""One head, three tokens, by hand: the recurrence and the gradient of one step."""

import torch

torch.set_printoptions(precision=4, sci_mode=False)
f64 = {"dtype": torch.float64}
q = torch.tensor([[1, 0], [0.6, 0.8], [0, 1]], **f64)
k = torch.tensor([[0.8, 0.6], [1, 0], [0.6, -0.8]], **f64)
v = torch.tensor([[1, 2], [-1, 0.5], [0.25, -2]], **f64)
g = torch.tensor([[-0.1, -0.2], [-0.5, -0.05], [-1, -0.3]], **f64)  # logarithms of the decay
beta = torch.tensor([0.5, 0.9, 0.25], **f64)
scale = 2**-0.5  # 1 / sqrt(K)


def step(S, q, k, v, g, beta):
    faded = g.exp()[:, None] * S  # every channel at its own rate
    r = v - faded.T @ k  # what the faded state gets wrong about this key
    S = faded + beta * torch.outer(k, r)  # corrected by a share beta
    return S, scale * S.T @ q  # the output reads the corrected state


S = torch.zeros(2, 2, **f64)
for t in range(3):
    before = S
    S, o = step(S, q[t], k[t], v[t], g[t], beta[t])
    print(f"token {t + 1}: o = {o[0]:.8f} {o[1]:.8f}")
print("state after the last token (rows: channels of k):")
print(S)

# With beta = 1 and a key of length one the state answers this key with this value, exactly.
S1, _ = step(before, q[2], k[2], v[2], g[2], torch.tensor(1.0, **f64))
said = S1.T @ k[2]
print(f"beta = 1: asked for k_3, the state says {said[0]:.6f} {said[1]:.6f}, v_3 is .25 -2")

# The backward of the last step: five lines from the notes, and automatic differentiation.
leaves = [x.clone().requires_grad_() for x in (before, q[2], k[2], v[2], g[2], beta[2])]
do, dS = torch.tensor([-0.3, 0.7], **f64), torch.tensor([[0.1, -0.2], [0.3, 0.4]], **f64)
S_next, o = step(*leaves)
((o * do).sum() + (S_next * dS).sum()).backward()
faded = g[2].exp()[:, None] * before
r = v[2] - faded.T @ k[2]
dS = dS + scale * torch.outer(q[2], do)
dr = beta[2] * dS.T @ k[2]
d_faded = dS - torch.outer(k[2], dr)
by_hand = {
    "S": g[2].exp()[:, None] * d_faded,
    "q": scale * S @ do,
    "k": beta[2] * dS @ r - faded @ dr,
    "v": dr,
    "g": (d_faded * faded).sum(1),
    "beta": k[2] @ dS @ r,
}
for (name, given), leaf in zip(by_hand.items(), leaves, strict=True):
    difference = (given - leaf.grad).abs().max().item()
    print(f"d{name}: by hand equals autograd: {difference < 1e-14}")
