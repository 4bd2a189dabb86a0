/// Element types and memory spaces of the operator's tensors.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kda {

/// Element type of a tensor.
enum class DType : std::uint8_t { kF64, kF32, kBF16, kF16, kI64, kI32 };

/// Where a tensor's memory lives. Host code may read only `kHost` memory.
enum class MemorySpace : std::uint8_t { kHost, kCuda };

/// Size of one element in bytes.
constexpr std::size_t size_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
    case DType::kI64:
      return 8;
    case DType::kF32:
    case DType::kI32:
      return 4;
    case DType::kBF16:
    case DType::kF16:
      return 2;
  }
  return 0;
}

/// Short lower-case name: "f64", "f32", "bf16", "f16", "i64", "i32".
constexpr const char* name_of(DType dtype) {
  switch (dtype) {
    case DType::kF64:
      return "f64";
    case DType::kF32:
      return "f32";
    case DType::kBF16:
      return "bf16";
    case DType::kF16:
      return "f16";
    case DType::kI64:
      return "i64";
    case DType::kI32:
      return "i32";
  }
  return "?";
}

/// "host" or "cuda".
constexpr const char* name_of(MemorySpace space) {
  return space == MemorySpace::kHost ? "host" : "cuda";
}

/// A number of the computation.
constexpr bool is_floating(DType dtype) {
  return dtype == DType::kF64 || dtype == DType::kF32 || dtype == DType::kBF16 ||
         dtype == DType::kF16;
}

/// What offsets and slots may be.
constexpr bool is_index(DType dtype) { return dtype == DType::kI64 || dtype == DType::kI32; }

}  // namespace kda
