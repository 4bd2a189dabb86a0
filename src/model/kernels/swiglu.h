/// Host kernels of y = silu(gate) * up. See model/swiglu.h.
#pragma once

#include <cstdint>

#include "kda/types.h"

namespace kda::model {

struct SwigluForward {
  DType storage = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  const void* gate = nullptr;  ///< [rows,width] storage type
  const void* up = nullptr;    ///< [rows,width] storage type
  std::int64_t stride = 0;     ///< elements from row to row of gate and of up
  void* y = nullptr;           ///< out, [rows,width] storage type, contiguous
};

struct SwigluBackward {
  SwigluForward forward;      ///< y is not used
  const void* dy = nullptr;   ///< [rows,width] storage type, contiguous
  void* dgate = nullptr;      ///< out, [rows,width] storage type
  void* dup = nullptr;        ///< out, [rows,width] storage type
  std::int64_t d_stride = 0;  ///< elements from row to row of dgate and of dup
};

void swiglu_forward(const SwigluForward& args);
void swiglu_backward(const SwigluBackward& args);

}  // namespace kda::model
