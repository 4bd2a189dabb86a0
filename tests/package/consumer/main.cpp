// Runs the three-token example of docs/ops/chunk.md against its known answer.
#include <kda/kda.h>

#include <cmath>
#include <cstdio>
#include <vector>

int main() {
  const std::vector<float> q = {1, 0, .6F, .8F, 0, 1};
  const std::vector<float> k = {.8F, .6F, 1, 0, .6F, -.8F};
  const std::vector<float> v = {1, 2, -1, .5F, .25F, -2};
  const std::vector<float> g = {-.1F, -.2F, -.5F, -.05F, -1, -.3F};
  const std::vector<float> beta = {.5F, .9F, .25F};
  const std::vector<double> expected = {.28284271, .56568542, -.21011551,
                                        .53436314, .06287696, .54954242};
  std::vector<float> o(6, NAN);

  kda::ChunkForwardParams p;
  p.in.q = kda::view_of(q.data(), {1, 3, 1, 2});
  p.in.k = kda::view_of(k.data(), {1, 3, 1, 2});
  p.in.v = kda::view_of(v.data(), {1, 3, 1, 2});
  p.in.g_ln = kda::view_of(g.data(), {1, 3, 1, 2});
  p.in.beta = kda::view_of(beta.data(), {1, 3, 1});
  p.o = kda::view_of(o.data(), {1, 3, 1, 2});
  kda::chunk_forward(p);

  double worst = 0;
  for (std::size_t i = 0; i < o.size(); ++i)
    worst = std::fmax(worst, std::fabs(o[i] - expected[i]));
  std::printf("kda %s on %s: max error %.1e\n", kda::version(),
              kda::name_of(kda::explain_chunk_forward(p).chosen), worst);
  return worst < 1e-6 ? 0 : 1;
}
