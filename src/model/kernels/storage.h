// Element types of the host kernels: tensors are stored as f32, bf16 or f64, and computed in f32
// (f64 for f64).
#pragma once

#include <cstdint>
#include <string>

#include "kda/error.h"
#include "kda/types.h"

namespace kda::model {

/// A bf16 element in memory.
struct Bf16 {
  std::uint16_t bits;
};

/// Calls f(Storage{}, Compute{}) for the storage type.
template <class F>
void with_storage(DType storage, F&& f) {
  switch (storage) {
    case DType::kF32:
      return f(float{}, float{});
    case DType::kBF16:
      return f(Bf16{}, float{});
    case DType::kF64:
      return f(double{}, double{});
    default:
      throw Error(ErrorCode::kInternal,
                  std::string("model kernels: no storage type ") + name_of(storage));
  }
}

/// Rows of work below which a second thread costs more than it brings.
constexpr bool worth_threads(std::int64_t elements) { return elements >= 1 << 15; }

}  // namespace kda::model
