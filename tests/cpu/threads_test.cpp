// The number of threads, and who else is running, never shows in a result.
#include <gtest/gtest.h>
#include <omp.h>

#include "conformance/expect.h"
#include "cpu/tasks.h"
#include "kda/parallel.h"
#include "support/run.h"

namespace kda::test {
namespace {

const TestBackend kCpuF32 = {"cpu_f32", Backend::kCpu, DType::kF32, Arithmetic::kF32,
                             &host_memory()};

Case many_heads() {
  return {.name = "many_heads",
          .T = 90,
          .H = 3,
          .HV = 6,
          .K = 24,
          .V = 20,
          .cu = {0, 17, 17, 90},
          .gate = GateInput::kStandard};
}

void expect_same(const RunResult& a, const RunResult& b, const std::string& what) {
  for (const auto& [quantity, bits] : a.bits) {
    EXPECT_TRUE(bits == b.bits.at(quantity)) << what << ": " << name_of(quantity);
  }
}

TEST(Threads_Results, SameBitsForAnyCount) {
  const Case c = many_heads();
  const CaseData data = make_data(c, DType::kF32);
  const RunOptions options{.keep_bits = true};
  set_num_threads(1);
  const RunResult one = run_chunk(kCpuF32, c, data, options);
  for (int threads : {2, 3, 5, 16}) {
    set_num_threads(threads);
    expect_same(one, run_chunk(kCpuF32, c, data, options), std::to_string(threads) + " threads");
  }
  set_num_threads(0);
}

TEST(Threads_Nested, CallsFromAParallelRegionAgree) {
  const Case c = many_heads();
  const CaseData data = make_data(c, DType::kF32);
  const RunOptions options{.keep_bits = true};
  set_num_threads(1);
  const RunResult alone = run_chunk(kCpuF32, c, data, options);
  set_num_threads(2);
  std::vector<RunResult> results(2);
#pragma omp parallel for num_threads(2)
  for (int i = 0; i < 2; ++i) {
    results[static_cast<std::size_t>(i)] = run_chunk(kCpuF32, c, data, options);
  }
  for (const RunResult& result : results)
    expect_same(alone, result, "inside a parallel region");
  set_num_threads(0);
}

TEST(Threads_RunTasks, EveryTaskOnceAndTheCallersFloatModeRestored) {
  for (int threads : {1, 2, 4}) {
    std::vector<int> seen(37, 0);
    cpu::run_tasks(37, threads, [&](std::int64_t task, int thread) {
      EXPECT_GE(thread, 0);
      EXPECT_LT(thread, threads);
      ++seen[static_cast<std::size_t>(task)];
    });
    for (int count : seen)
      EXPECT_EQ(count, 1);
    volatile float tiny = 1e-40F;  // a subnormal survives outside of the tasks
    EXPECT_NE(tiny * 1.0F, 0.0F);
  }
}

}  // namespace
}  // namespace kda::test
