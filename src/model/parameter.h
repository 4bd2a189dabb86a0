/// What the optimizer, the loader and the inspector need to know of one model parameter.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace kda::model {

/// The role of a parameter: what decides weight decay and the choice of optimizer.
enum class ParameterKind : std::uint8_t {
  kMatrix,       ///< weight [out,in] of a linear layer
  kEmbedding,    ///< [vocab,d]; the head too when tied
  kHead,         ///< untied output head [vocab,d]
  kNorm,         ///< gain of a norm
  kConv,         ///< depthwise convolution [C,1,W]
  kGate,         ///< A_log [HV] and dt_bias [HV*K]: fp32 always, never decayed
  kExperts,      ///< [E,out,in]: a matrix for each expert
  kQuery,        ///< pseudo-query [1,d] of attention residuals: starts at zero, never decayed
  kRoutingBias,  ///< [E], f32 always: moved by load balancing, never by an optimizer (a buffer)
};

const char* name_of(ParameterKind kind);

/// Decay belongs on matrices and embeddings; norms, convolutions, gate parameters and
/// pseudo-queries have none.
constexpr bool takes_weight_decay(ParameterKind kind) {
  return kind == ParameterKind::kMatrix || kind == ParameterKind::kEmbedding ||
         kind == ParameterKind::kHead || kind == ParameterKind::kExperts;
}

struct Parameter {
  std::string name;   ///< name in the weight file, e.g. "model.layers.0.self_attn.q_proj.weight"
  at::Tensor tensor;  ///< leaf; requires grad unless a buffer; shares memory with the model
  ParameterKind kind = ParameterKind::kMatrix;
  std::int64_t head_blocks =
      1;  ///< row blocks that belong to different heads (per-head optimizers)
};

}  // namespace kda::model
