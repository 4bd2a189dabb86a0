// Sums of partial gradients, in an order fixed by the shape.
#include "model/cuda/element.cuh"

namespace kda::model::device {
namespace {

constexpr int kColumns = 32;
constexpr int kGroups = 8;

__global__ void sum_rows_kernel(const float* __restrict__ partial, std::int64_t rows,
                                std::int64_t size, float* __restrict__ out) {
  __shared__ float sums[kGroups][kColumns];
  const std::int64_t column = static_cast<std::int64_t>(blockIdx.x) * kColumns + threadIdx.x;
  float sum = 0;
  if (column < size) {
    for (std::int64_t r = threadIdx.y; r < rows; r += kGroups)
      sum += partial[r * size + column];
  }
  sums[threadIdx.y][threadIdx.x] = sum;
  __syncthreads();  // all groups' sums are there
  if (threadIdx.y != 0 || column >= size) return;
  float total = 0;
#pragma unroll
  for (int g = 0; g < kGroups; ++g)
    total += sums[g][threadIdx.x];
  out[column] = total;
}

}  // namespace

void sum_rows(const float* partial, std::int64_t rows, std::int64_t size, float* out,
              cudaStream_t stream) {
  const auto blocks = static_cast<unsigned>((size + kColumns - 1) / kColumns);
  sum_rows_kernel<<<blocks, dim3(kColumns, kGroups), 0, stream>>>(partial, rows, size, out);
  check_launch("sum_rows");
}

}  // namespace kda::model::device
