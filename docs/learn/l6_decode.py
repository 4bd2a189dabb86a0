"""Token by token with a state that never grows; and the attention map that a state stands for."""

import torch

import kda

torch.manual_seed(0)
shape = (1, 200, 2, 32)
q, k, v = (torch.randn(shape) for _ in range(3))
q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
g = torch.nn.functional.logsigmoid(torch.randn(shape) + 2)
beta = torch.rand(shape[:3])
whole, last = kda.chunk_kda(q, k, v, g, beta, output_final_state=True)

o, state = kda.chunk_kda(*(x[:, :150] for x in (q, k, v, g, beta)), output_final_state=True)
pieces = [o]  # the prompt at once, then one token at a time
for t in range(150, 200):
    token = [x[:, t : t + 1] for x in (q, k, v, g, beta)]
    o, state = kda.fused_recurrent_kda(*token, initial_state=state, output_final_state=True)
    pieces.append(o)
given = torch.cat(pieces, dim=1)
print(f"150 tokens at once and 50 one by one: {(given - whole).abs().max() < 1e-5}")
print(f"the same final state: {(state - last).abs().max() < 1e-5}")
print(f"numbers kept per head: {state[0, 0].numel()} for 200 tokens or 200,000")

# o is linear in v: feeding unit values shows how much of token j's value is in the output at i.
T = 12
head = [x[:, :T, :1].double() for x in (q, k, g, beta)]
unit = torch.eye(T, dtype=torch.float64)[None, :, None]
attention = kda.naive_recurrent_kda(head[0], head[1], unit, head[2], head[3])[0][0, :, 0]
values = v[0, :T, 0].double()
direct, _ = kda.chunk_kda(head[0], head[1], v[:, :T, :1].double(), head[2], head[3])
print(
    f"map times values is the output: {(attention @ values - direct[0, :, 0]).abs().max() < 1e-12}"
)
print(f"nothing comes from later tokens: {bool((attention.triu(1) == 0).all())}")
print(f"unlike softmax it may subtract: {bool((attention < 0).any())}")
