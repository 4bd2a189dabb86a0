#include "support/test_backends.h"

namespace kda::test {
namespace {

struct Registry {
  std::vector<TestBackend> added;
  bool host = true;
};
Registry& registry() {
  static Registry instance;
  return instance;
}

}  // namespace

AddTestBackends::AddTestBackends(std::vector<TestBackend> backends, bool alone) {
  for (TestBackend& backend : backends)
    registry().added.push_back(std::move(backend));
  if (alone) registry().host = false;
}

std::vector<TestBackend> test_backends() {
  std::vector<TestBackend> all;
  if (registry().host) {
    DeviceMemory* host = &host_memory();
    all = {
        {"ref_f64", Backend::kRef, DType::kF64, Arithmetic::kF64, host},
        {"ref_f32", Backend::kRef, DType::kF32, Arithmetic::kF32, host},
        {"ref_f16", Backend::kRef, DType::kF16, Arithmetic::kF32, host},
        {"cpu_f32", Backend::kCpu, DType::kF32, Arithmetic::kF32, host},
        {"cpu_bf16", Backend::kCpu, DType::kBF16, Arithmetic::kF32, host},
    };
  }
  for (const TestBackend& backend : registry().added)
    all.push_back(backend);
  return all;
}

}  // namespace kda::test
