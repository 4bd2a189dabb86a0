// What this machine can do, measured in the same process as the operators: the roofline's two
// lines. All figures are the best of the repetitions.
#pragma once

#include <cstddef>

namespace kda::bench {

// f32 multiply-adds from registers, GFLOP/s over `threads` threads.
double fma_gflops(int threads);

// One pass over `floats` elements per array, split over the threads; seconds.
void copy_pass(const float* from, float* to, std::size_t floats, int threads);
void scale_pass(float* x, std::size_t floats, int threads);

}  // namespace kda::bench
