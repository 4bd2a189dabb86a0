// What the forward and the backward chunk kernels are given: the validated call and its sizes.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>

#include "core/problem.h"
#include "cpu/chunk_plan.h"
#include "cpu/rows.h"
#include "kda/ops/chunk.h"

namespace kda::cpu {

// Sizes in elements, padded to the vector length of the target that runs.
struct ChunkSizes {
  std::size_t k, v;          // as given
  std::size_t k_pad, v_pad;  // rounded up to whole vectors and whole row tiles
  std::size_t ld_k, ld_v;    // row strides in scratch
};

inline ChunkSizes chunk_sizes(const Dims& dims, std::size_t lanes) {
  const std::size_t step = lanes < kTileRows ? kTileRows : lanes;
  ChunkSizes s{};
  s.k = static_cast<std::size_t>(dims.K);
  s.v = static_cast<std::size_t>(dims.V);
  s.k_pad = (s.k + step - 1) / step * step;
  s.v_pad = (s.v + step - 1) / step * step;
  s.ld_k = padded_row(s.k_pad);
  s.ld_v = padded_row(s.v_pad);
  return s;
}

// The rows that one value head of one sequence reads.
struct HeadInputs {
  Rows q, k, v, g, beta;
};

inline HeadInputs head_inputs(const OperatorInputs& in, const core::Problem& p,
                              const core::Sequence& seq, std::int64_t hv) {
  const std::int64_t h = hv / p.dims.G();
  HeadInputs head;
  head.q = rows_of(in.q, seq.row, seq.begin, h);
  head.k = rows_of(in.k, seq.row, seq.begin, h);
  head.v = rows_of(in.v, seq.row, seq.begin, hv);
  head.g = rows_of(p.raw_gate ? in.g_raw : in.g_ln, seq.row, seq.begin, hv);
  head.beta = rows_of(p.beta_is_logit ? in.beta_logit : in.beta, seq.row, seq.begin, hv);
  return head;
}

// The gate of value head hv; `bias` gets K elements and zeros up to `width`.
inline HeadGate head_gate(const GateParams& gate, bool raw, std::int64_t hv, std::size_t k,
                          std::size_t width, float* bias) {
  HeadGate head;
  head.raw = raw;
  head.bias = bias;
  if (!raw) return head;
  head.bounded = gate.lower_bound_ln.has_value();
  if (head.bounded) head.lower_bound_ln = static_cast<float>(*gate.lower_bound_ln);
  if (gate.a_log.defined()) head.exp_a = std::exp(static_cast<const float*>(gate.a_log.data)[hv]);
  for (std::size_t d = 0; d < width; ++d)
    bias[d] = 0.0F;
  if (gate.dt_bias.defined()) {
    const auto* from =
        static_cast<const float*>(gate.dt_bias.data) + hv * static_cast<std::int64_t>(k);
    for (std::size_t d = 0; d < k; ++d)
      bias[d] = from[d];
  }
  return head;
}

// Strided [.,.,K,V] state of (n, hv).
template <typename View>
auto* state_at(const View& view, std::int64_t n, std::int64_t hv) {
  using Float = std::conditional_t<std::is_const_v<std::remove_pointer_t<decltype(view.data)>>,
                                   const float, float>;
  return static_cast<Float*>(view.data) + n * view.stride[0] + hv * view.stride[1];
}

// Scratch of one K x V state, from and to a tensor with any strides.
inline void load_state(const ConstTensorView& view, std::int64_t n, std::int64_t hv, float* s,
                       std::size_t ld) {
  const float* from = state_at(view, n, hv);
  for (std::int64_t k = 0; k < view.shape[2]; ++k) {
    for (std::int64_t v = 0; v < view.shape[3]; ++v) {
      s[static_cast<std::size_t>(k) * ld + static_cast<std::size_t>(v)] =
          from[k * view.stride[2] + v * view.stride[3]];
    }
  }
}
inline void store_state(const float* s, std::size_t ld, const TensorView& view, std::int64_t n,
                        std::int64_t hv) {
  float* to = state_at(view, n, hv);
  for (std::int64_t k = 0; k < view.shape[2]; ++k) {
    for (std::int64_t v = 0; v < view.shape[3]; ++v) {
      to[k * view.stride[2] + v * view.stride[3]] =
          s[static_cast<std::size_t>(k) * ld + static_cast<std::size_t>(v)];
    }
  }
}

}  // namespace kda::cpu
