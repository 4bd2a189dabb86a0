/// The one thread setting of the process.
#pragma once

namespace kda {

/// Sets the number of threads of every parallel region of this library (OpenMP) from now on;
/// `count` <= 0 restores the default (OMP_NUM_THREADS, else the cores this process may use).
/// The torch binding forwards it to torch's pools, so one call rules the whole process.
void set_num_threads(int count);

/// The number in effect.
int num_threads();

}  // namespace kda
