#include "support/natural_scale.h"

#include <algorithm>
#include <cmath>

namespace kda::test {
namespace {

double rms_of(const Outputs& outputs, Quantity quantity) {
  const auto found = outputs.find(quantity);
  return found == outputs.end() ? 0.0 : rms(found->second);
}

// rms of x (.) dx, the terms that dg is made of.
double rms_of_product(const HostTensor& x, const Outputs& outputs, Quantity quantity) {
  const auto found = outputs.find(quantity);
  if (found == outputs.end()) return 0.0;
  double sum = 0.0;
  for (std::size_t i = 0; i < x.data.size(); ++i) {
    const double term = x.data[i] * found->second.data[i];
    sum += term * term;
  }
  return x.data.empty() ? 0.0 : std::sqrt(sum / static_cast<double>(x.data.size()));
}

}  // namespace

double natural_scale(Quantity quantity, const Case& c, const CaseData& data,
                     const Outputs& expected) {
  const double own = rms_of(expected, quantity);
  const auto tokens = static_cast<double>(c.B * c.T);
  const double dg_terms = std::max(rms_of_product(data.q, expected, Quantity::kDq) +
                                       rms_of_product(data.k, expected, Quantity::kDk),
                                   rms_of(expected, Quantity::kDg));
  switch (quantity) {
    case Quantity::kDg:
      return dg_terms;
    case Quantity::kDDtBias:  // a sum of dg over tokens
      return std::max(own, dg_terms * std::sqrt(tokens));
    case Quantity::kDaLog:  // and over channels, weighted with g or x + b; dg itself is a sum over
                            // the rest of its chunk, so that one rounding error enters many times:
                            // a random walk of 32 steps on average
      return std::max(own, dg_terms * std::sqrt(tokens * static_cast<double>(c.K)) *
                               std::max(1.0, rms(data.g)) *
                               std::sqrt(std::min(32.0, std::max(1.0, 0.5 * tokens))));
    case Quantity::kDbeta:  // dv . r / beta
      return std::max(own, rms_of(expected, Quantity::kDv) * rms(data.v));
    case Quantity::kDState0:
    case Quantity::kH:
    case Quantity::kFinalState: {
      const double scale = c.scale.value_or(1.0 / std::sqrt(static_cast<double>(c.K)));
      const double through_o = scale * rms(data.q) * rms(data.d_o);
      const double forward = rms(data.k) * rms(data.v);
      return std::max(own, quantity == Quantity::kDState0 ? through_o + rms(data.d_final_state)
                                                          : forward + rms(data.state0));
    }
    default:
      return own;
  }
}

}  // namespace kda::test
