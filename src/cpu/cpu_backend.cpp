// The SIMD backend as a function table.
#include "cpu/cpu_backend.h"

#include <string>

namespace kda::cpu {
namespace {

std::string unsupported(Op op, const core::Problem&) {
  return std::string(name_of(op)) + " is not part of the cpu backend of this build";
}

}  // namespace

const BackendTable* backend_table() {
  static const BackendTable table = [] {
    BackendTable t;
    t.backend = Backend::kCpu;
    t.unsupported = unsupported;
    return t;
  }();
  return &table;
}

}  // namespace kda::cpu
