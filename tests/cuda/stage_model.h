// One 64-token chunk of one value head, stage by stage, in double: the formulas as they are written
// down (docs/ops/chunk.md), sharing nothing with kernels. What a stage reads may be replaced before
// it is called, so every stage can be asked alone.
#pragma once

#include <cstdint>
#include <vector>

#include "ref/head.h"

namespace kda::test {

using Mat = ref::Matrix<double>;

struct StageChunk {
  // Inputs of the chunk; L <= 64 tokens.
  std::int64_t L = 0;
  double scale = 1.0;
  Mat q, k, v, d_o;          // [L,K], [L,K], [L,V], [L,V]
  Mat g_ln;                  // [L,K]
  std::vector<double> beta;  // [L]
  Mat state, d_state;        // [K,V] state before the chunk, gradient of the state after it

  Mat gcum;                   // gate_cumsum: [L,K], log2
  Mat kt, kh, qt;             // intra: k 2^Gc, k 2^(Gc_last - Gc), scale q 2^Gc
  Mat a_qk, a_kk, t_inv;      // intra: scale N (i >= j), k k^T 2^(Gi - Gj) (i > j), inverse
  std::vector<double> decay;  // 2^Gc_last, [K]
  Mat w, u;                   // wy
  Mat v_new, o, next_state;   // output, state

  Mat d_a_qk, dv_local;       // output_bwd: scale tril(do v_new^T), a_qk^T do
  Mat d_u, x, before;         // state_bwd: dv_local + kh D, t_inv^T d_u, gradient of `state`
  Mat dq, dk, dv, dg;         // wy_bwd and intra_bwd together
  std::vector<double> dbeta;  // [L]
};

void gate_cumsum(StageChunk* c);
void intra(StageChunk* c);             // from q, k, gcum, beta
void wy(StageChunk* c);                // from t_inv, beta, kt, v
void output_and_state(StageChunk* c);  // from w, u, qt, kh, a_qk, decay, state
void output_bwd(StageChunk* c);        // from v_new, a_qk, d_o
void state_bwd(StageChunk* c);         // from dv_local, t_inv, w, qt, kh, decay, d_o, d_state
// wy_bwd and intra_bwd: from q, k, v, d_o, gcum, beta, kt, t_inv, state, d_state, x; v_new and
// d_a_qk are made again from these. dg is the gradient of g_ln.
void local_bwd(StageChunk* c);

// The chunks of a head with every stage run on exact inputs: forward in order, backward in reverse.
std::vector<StageChunk> run_all_stages(const ref::HeadInputs<double>& head, const Mat& d_o,
                                       const Mat& d_final_state);

// x * y, x^T * y, x * y^T
Mat product(const Mat& x, const Mat& y);
Mat product_tn(const Mat& x, const Mat& y);
Mat product_nt(const Mat& x, const Mat& y);

}  // namespace kda::test
