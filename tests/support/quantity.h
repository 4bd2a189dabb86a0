// The results that tests compare, under the names that errors and reports use.
#pragma once

#include <cstdint>
#include <map>

#include "support/host_tensor.h"

namespace kda::test {

enum class Quantity : std::uint8_t {
  kO,
  kFinalState,
  kH,
  kDq,
  kDk,
  kDv,
  kDg,
  kDbeta,
  kDaLog,
  kDDtBias,
  kDState0,
  kGLn,
  kGcum,
  kY,
  kRstd,
  kDx,
};

constexpr const char* name_of(Quantity quantity) {
  constexpr const char* kNames[] = {
      "o",         "final_state",     "h_kv", "dq",        "dk", "dv",   "dg", "dbeta", "da_log",
      "d_dt_bias", "d_initial_state", "g_ln", "gcum_log2", "y",  "rstd", "dx"};
  return kNames[static_cast<std::size_t>(quantity)];
}

using Outputs = std::map<Quantity, HostTensor>;

}  // namespace kda::test
