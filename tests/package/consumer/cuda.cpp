// Links the CUDA backend and asks it about a call: needs no GPU.
#include <kda/cuda.h>
#include <kda/kda.h>

#include <cstdio>
#include <string>

int main() {
  kda::cuda::register_backend();
  kda::ChunkForwardParams p;
  float x = 0.0F;
  p.in.q = kda::view_of(&x, {1, 1, 1, 1});
  p.in.k = kda::view_of(&x, {1, 1, 1, 1});
  p.in.v = kda::view_of(&x, {1, 1, 1, 1});
  p.in.g_ln = kda::view_of(&x, {1, 1, 1, 1});
  p.in.beta = kda::view_of(&x, {1, 1, 1});
  float o = 0.0F;
  p.o = kda::view_of(&o, {1, 1, 1, 1});
  kda::Context context;
  context.backend = kda::Backend::kCuda;
  try {
    kda::chunk_forward(p, context);
  } catch (const kda::Error& error) {  // host tensors: refused, with a reason
    std::printf("kda::cuda refuses: %s\n", error.what());
    return std::string(error.what()).empty() ? 1 : 0;
  }
  return 1;
}
