/// Host kernels of attention residuals. See model/attn_res.h for the mathematics. "compute type" is
/// f32, or f64 when storage is f64.
#pragma once

#include <cstdint>
#include <vector>

#include "kda/types.h"

namespace kda::model {

struct AttnResForward {
  DType storage = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  double eps = 0;
  std::vector<const void*> sources;  ///< M of [rows,width] storage type, contiguous
  const void* gain = nullptr;        ///< [width] compute type
  const void* query = nullptr;       ///< [width] compute type
  void* logits = nullptr;            ///< out, [rows,M] compute type
  void* scales = nullptr;            ///< out, [rows,M] compute type: 1 / rms of each source
  void* h = nullptr;                 ///< out, [rows,width] compute type
};

struct AttnResBackward {
  AttnResForward forward;       ///< logits and scales are read, h is not used
  const void* dh = nullptr;     ///< [rows,width] compute type
  std::vector<void*> dsources;  ///< out, as the sources
  void* pulled = nullptr;       ///< out, [width] compute type: sum of ds_i k_i
};

void attn_res_forward(const AttnResForward& args);
void attn_res_backward(const AttnResBackward& args);

}  // namespace kda::model
