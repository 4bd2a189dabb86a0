/// Host kernel of the softmax cross entropy over rows of logits. See model/cross_entropy.h.
#pragma once

#include <cstdint>

#include "kda/types.h"

namespace kda::model {

/// loss = log(sum exp(logits)) - logits[target]; with gradients, logits become
/// softmax(logits) - onehot(target) in place. Rows whose target is negative give 0 and a zero row.
struct CrossEntropyRows {
  DType storage = DType::kF32;
  std::int64_t rows = 0;
  std::int64_t vocab = 0;
  void* logits = nullptr;                 ///< [rows,vocab] storage type, contiguous, in and out
  const std::int64_t* targets = nullptr;  ///< [rows], in range or negative
  bool gradient = false;
  void* losses = nullptr;  ///< out, [rows] compute type (f32; f64 when storage is)
};

void cross_entropy_rows(const CrossEntropyRows& args);

}  // namespace kda::model
