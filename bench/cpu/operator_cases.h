// The operator calls that are timed, on random data, with their FLOPs and bytes by formula.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "kda/kda.h"

namespace kda::bench {

struct Shape {
  std::string name;
  std::int64_t B, T, H, HV, K, V;
};

// One operator on one shape. `run` may be called any number of times.
class Case {
 public:
  virtual ~Case() = default;
  virtual void run() = 0;
  virtual std::string op() const = 0;
  virtual double flops() const = 0;  // by formula; see each case
  virtual double bytes() const = 0;  // tensors and states, each read or written once
  // Relative RMS error of the results against the f64 oracle.
  virtual double error() = 0;
  // Decode only: the state, for the copy that is timed beside it. Floats; 0 = none.
  virtual std::size_t state_floats() const { return 0; }
};

std::unique_ptr<Case> make_forward(const Shape& shape, DType dtype);
// Forward that writes checkpoints, then backward that reads them.
std::unique_ptr<Case> make_training_step(const Shape& shape, DType dtype);
// One token per sequence on a pool of f32 states, in place.
std::unique_ptr<Case> make_decode(const Shape& shape, DType dtype);

}  // namespace kda::bench
