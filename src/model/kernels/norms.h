/// Host kernels of the two norms. See model/rms_norm.h and model/gated_norm.h for the mathematics.
/// "compute type" is f32, or f64 when storage is f64.
#pragma once

#include <cstdint>

#include "kda/types.h"

namespace kda::model {

/// sum = residual + delta; y = rms_norm(sum) * gain.
struct AddRmsNormForward {
  DType storage = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  double eps = 0;
  const void* residual = nullptr;  ///< [rows,width] compute type
  const void* delta = nullptr;     ///< [rows,width] storage type; null = 0
  const void* gain = nullptr;      ///< [width] compute type
  void* sum = nullptr;             ///< out, [rows,width] compute type; not written without delta
  void* y = nullptr;               ///< out, [rows,width] storage type
};

struct AddRmsNormBackward {
  DType storage = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  double eps = 0;
  const void* sum = nullptr;   ///< [rows,width] compute type
  const void* gain = nullptr;  ///< [width] compute type
  const void* dy = nullptr;    ///< [rows,width] storage type; null = 0
  const void* dsum = nullptr;  ///< [rows,width] compute type; null = 0
  void* dresidual = nullptr;   ///< out, [rows,width] compute type
  void* ddelta = nullptr;      ///< out, the same in the storage type; null = not wanted
  void* dgain = nullptr;       ///< out, [width] compute type
};

void add_rms_norm_forward(const AddRmsNormForward& args);
void add_rms_norm_backward(const AddRmsNormBackward& args);

/// y = rms_norm(x over V) * gain * sigmoid(gate), for every token and head.
struct GatedNormForward {
  DType storage = DType::kF32;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t width = 0;  ///< V
  double eps = 0;
  const void* x = nullptr;       ///< [tokens,heads,V] storage type, contiguous
  const void* gate = nullptr;    ///< [tokens,heads*V] storage type
  std::int64_t gate_stride = 0;  ///< elements from token to token
  const void* gain = nullptr;    ///< [V] compute type
  void* y = nullptr;             ///< out, [tokens,heads,V] storage type, contiguous
};

struct GatedNormBackward {
  GatedNormForward forward;  ///< y is not used
  const void* dy = nullptr;  ///< [tokens,heads,V] storage type, contiguous
  void* dx = nullptr;        ///< out, as x
  void* dgate = nullptr;     ///< out, [tokens,heads*V] storage type, contiguous
  void* dgain = nullptr;     ///< out, [V] compute type
};

void gated_norm_forward(const GatedNormForward& args);
void gated_norm_backward(const GatedNormBackward& args);

}  // namespace kda::model
