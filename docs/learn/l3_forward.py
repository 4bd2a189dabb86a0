"""The production forward against the definition: every backend of this machine, every gate."""

import torch

import kda

torch.manual_seed(0)
shape = (2, 300, 4, 64)  # B, T, H, K = V; 300 is no multiple of a chunk
q, k, v = (torch.randn(shape) for _ in range(3))
q, k = (torch.nn.functional.normalize(x, dim=-1) for x in (q, k))
beta = torch.rand(shape[:3])
gates = {
    "mild": torch.nn.functional.logsigmoid(torch.randn(shape)),
    "none": torch.zeros(shape),
    "-5 at every token": torch.full(shape, -5.0),
    "resets": torch.where(torch.rand(shape) < 0.01, -1000.0, 0.0),
}
print("kda.chunk_kda takes:", kda.explain(q, k, v, gates["mild"], beta).chosen)
for name, g in gates.items():
    want, _ = kda.naive_recurrent_kda(*(x.double() for x in (q, k, v, g, beta)))
    for backend in kda.backends():
        device = "cuda" if backend == "cuda" else "cpu"
        args = [x.to(device) for x in (q, k, v, g, beta)]
        for chunk in (32, 64):
            o, _ = kda.chunk_kda(*args, chunk_size=chunk, backend=backend)
            error = ((o.cpu().double() - want).square().mean() / want.square().mean()).sqrt()
            print(f"{backend:4} chunk {chunk} gate {name:17}: error below 1e-6: {error < 1e-6}")
