#include "ref/gradients.h"

#include "ref/element.h"
#include "ref/gate.h"
#include "ref/gva_fold.h"
#include "ref/l2norm.h"

namespace kda::ref {
namespace {

// dq (or dk) of one sequence: fold, undo the normalisation, write.
template <typename Real>
void write_query_gradient(const std::vector<Matrix<Real>>& per_value_head, const ConstTensorView& x,
                          const TensorView& out, const core::Problem& problem,
                          const core::Sequence& sequence, bool normalised) {
  if (!out.defined()) return;
  std::vector<Matrix<Real>> folded = fold_value_heads(per_value_head, problem.dims.G());
  for (std::int64_t h = 0; h < problem.dims.H; ++h) {
    Matrix<Real>& dx = folded[static_cast<std::size_t>(h)];
    if (normalised) {
      const Matrix<Real> raw = read_rows<Real>(x, sequence, h);
      const Matrix<Real> dy = dx;
      for (std::int64_t t = 0; t < dx.rows(); ++t) {
        l2norm_backward_row(raw.row(t), dy.row(t), dx.row(t), dx.cols(),
                            static_cast<Real>(kL2NormEps));
      }
    }
    write_rows(dx, out, sequence, h);
  }
}

// Sums of the gate's parameter gradients over all sequences.
template <typename Real>
struct GateSums {
  Matrix<Real> da_log;     // [HV,1]
  Matrix<Real> d_dt_bias;  // [HV,K]
};

// dg of one sequence and head; adds to the parameter sums where the gate is in the call.
template <typename Real>
void write_gate_gradient(const Matrix<Real>& dg_ln, const ChunkBackwardParams& params,
                         const core::Problem& problem, const core::Sequence& sequence,
                         std::int64_t hv, GateSums<Real>* sums) {
  Matrix<Real> dg = dg_ln;
  if (problem.raw_gate) {
    const Matrix<Real> raw = read_rows<Real>(params.in.g_raw, sequence, hv);
    for (std::int64_t k = 0; k < dg.cols(); ++k) {
      const GateChannel<Real> gate = gate_channel<Real>(params.in.gate, hv, k);
      for (std::int64_t t = 0; t < dg.rows(); ++t) {
        const auto slopes = gate.slopes(raw(t, k));
        sums->da_log(hv, 0) += dg_ln(t, k) * slopes.da_log;
        sums->d_dt_bias(hv, k) += dg_ln(t, k) * slopes.dx;
        dg(t, k) = dg_ln(t, k) * slopes.dx;
      }
    }
  }
  if (params.dg.defined()) write_rows(dg, params.dg, sequence, hv);
}

template <typename Real>
void write_beta_gradient(const Matrix<Real>& dbeta, const ChunkBackwardParams& params,
                         const core::Problem& problem, const core::Sequence& sequence,
                         std::int64_t hv) {
  if (!params.dbeta.defined()) return;
  for (std::int64_t t = 0; t < dbeta.rows(); ++t) {
    const std::int64_t at = sequence.begin + t;
    Real d = dbeta(t, 0);
    if (problem.beta_is_logit) {
      const Real z = load<Real>(params.in.beta_logit, sequence.row, at, hv);
      d *= static_cast<Real>(params.in.beta_max) * sigmoid(z) * sigmoid(-z);
    }
    store(params.dbeta, d, sequence.row, at, hv);
  }
}

template <typename Real>
std::vector<Matrix<Real>> read_checkpoints(const ConstTensorView& h_kv,
                                           const core::Sequence& sequence, std::int64_t hv) {
  std::vector<Matrix<Real>> states;
  if (!h_kv.defined()) return states;
  const std::int64_t blocks = (sequence.length + kStateBlockTokens - 1) / kStateBlockTokens;
  for (std::int64_t i = 0; i < blocks; ++i) {
    states.push_back(read_state<Real>(h_kv, sequence.first_block + i, hv));
  }
  return states;
}

}  // namespace

template <typename Real>
void run_backward(const ChunkBackwardParams& params, const core::Problem& problem,
                  const HeadBackward<Real>& backward) {
  const Dims& d = problem.dims;
  GateSums<Real> sums{Matrix<Real>(d.HV, 1), Matrix<Real>(d.HV, d.K)};
  for (std::int64_t n = 0; n < d.N; ++n) {
    const core::Sequence sequence = problem.sequence(n);
    std::vector<Matrix<Real>> dq;
    std::vector<Matrix<Real>> dk;
    for (std::int64_t hv = 0; hv < d.HV; ++hv) {
      const HeadInputs<Real> head = read_head<Real>(params.in, {}, problem, n, hv);
      const Matrix<Real> d_o = params.d_o.defined() ? read_rows<Real>(params.d_o, sequence, hv)
                                                    : Matrix<Real>(sequence.length, d.V);
      const Matrix<Real> d_final = params.d_final_state_kv.defined()
                                       ? read_state<Real>(params.d_final_state_kv, n, hv)
                                       : Matrix<Real>(d.K, d.V);
      HeadGradients<Real> grad =
          backward(head, d_o, d_final, read_checkpoints<Real>(params.h_kv, sequence, hv));

      if (params.dv.defined()) write_rows(grad.dv, params.dv, sequence, hv);
      write_gate_gradient(grad.dg_ln, params, problem, sequence, hv, &sums);
      write_beta_gradient(grad.dbeta, params, problem, sequence, hv);
      if (params.d_initial_state_kv.defined()) {
        write_state(grad.dstate0, params.d_initial_state_kv, n, hv);
      }
      dq.push_back(std::move(grad.dq));
      dk.push_back(std::move(grad.dk));
    }
    write_query_gradient(dq, params.in.q, params.dq, problem, sequence, params.in.qk_l2norm);
    write_query_gradient(dk, params.in.k, params.dk, problem, sequence, params.in.qk_l2norm);
  }
  for (std::int64_t hv = 0; hv < d.HV; ++hv) {
    if (params.da_log.defined()) store(params.da_log, sums.da_log(hv, 0), hv);
    if (!params.d_dt_bias.defined()) continue;
    for (std::int64_t k = 0; k < d.K; ++k)
      store(params.d_dt_bias, sums.d_dt_bias(hv, k), hv, k);
  }
}

template void run_backward<float>(const ChunkBackwardParams&, const core::Problem&,
                                  const HeadBackward<float>&);
template void run_backward<double>(const ChunkBackwardParams&, const core::Problem&,
                                   const HeadBackward<double>&);

}  // namespace kda::ref
