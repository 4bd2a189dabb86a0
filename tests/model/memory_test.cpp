// The memory estimate of a training step against what libtorch's host allocator hands out. A
// program of its own: it replaces that allocator.
#include <c10/core/CPUAllocator.h>
#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <atomic>
#include <cstdlib>
#include <cstring>
#include <new>

#include "model/causal_lm.h"
#include "model/cost.h"
#include "model/model_test_support.h"

namespace kda::test {
namespace {

using model::AttnResMode;
using model::KDAConfig;

class CountingAllocator : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    auto* block = new Block{nullptr, static_cast<std::int64_t>(bytes)};
    if (bytes > 0 && posix_memalign(&block->data, 64, bytes) != 0) throw std::bad_alloc();
    const std::int64_t now = in_use += block->bytes;
    std::int64_t seen = peak;
    while (now > seen && !peak.compare_exchange_weak(seen, now)) {
    }
    return {block->data, block, &release, c10::Device(c10::kCPU)};
  }
  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    std::memcpy(to, from, bytes);
  }

  static inline std::atomic<std::int64_t> in_use = 0;
  static inline std::atomic<std::int64_t> peak = 0;

 private:
  struct Block {
    void* data;
    std::int64_t bytes;
  };
  static void release(void* context) {
    auto* block = static_cast<Block*>(context);
    in_use -= block->bytes;
    std::free(block->data);
    delete block;
  }
};

struct MemoryCase {
  const char* name;
  const char* preset;
  AttnResMode depth;
};

class Memory_Estimate : public testing::TestWithParam<MemoryCase> {};

TEST_P(Memory_Estimate, IsNearTheMeasuredPeak) {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/100);
  constexpr std::int64_t kTokens = 512;
  KDAConfig c = KDAConfig::preset(GetParam().preset);
  c.vocab_size = 512;  // logits and embeddings must not hide the layers
  c.attn_res.mode = GetParam().depth;
  for (const DType compute : {DType::kF32, DType::kBF16}) {
    const model::CausalLM lm = make_model(c, compute);
    const model::PackedIds ids{index(random_ids(kTokens, c.vocab_size, 3)).view({2, -1}), {}};
    for (const bool recompute : {false, true}) {
      model::ForwardOptions options;
      options.recompute_blocks = recompute;
      for (int step = 0; step < 2; ++step) {  // the first makes the gradients
        CountingAllocator::peak = CountingAllocator::in_use.load();
        torch::autograd::backward({lm.loss(ids, ids.ids.roll(-1), options).loss_sum}, {});
      }
      model::TrainingShape shape;
      shape.tokens_per_micro_batch = kTokens;
      shape.compute = compute;
      shape.recompute_blocks = recompute;
      shape.optimizer_bytes_per_parameter = 0;
      const auto estimate =
          static_cast<double>(model::estimate_training_memory(c, shape).total_bytes());
      const auto measured = static_cast<double>(CountingAllocator::peak.load());
      EXPECT_NEAR(estimate / measured, 1.0, 0.15)
          << name_of(compute) << ", recompute " << recompute << ": estimated " << estimate / 1e6
          << " MB, measured " << measured / 1e6 << " MB";
    }
  }
}

// Examples of a few tokens to a hundred: most blocks of the operator's states are partly filled.
TEST(Memory_EstimateOfExamples, CountsTheirStates) {
  static CountingAllocator allocator;
  c10::SetCPUAllocator(&allocator, /*priority=*/100);
  KDAConfig c = KDAConfig::preset("toy");
  c.vocab_size = 512;
  c.head_k_dim = c.head_v_dim = 128;
  const model::CausalLM lm = make_model(c, DType::kF32);
  std::vector<std::vector<std::int64_t>> sequences;
  std::int64_t tokens = 0;
  for (std::int64_t length = 3; tokens < 600; length = length * 7 % 31 + 3) {
    sequences.push_back(random_ids(length, c.vocab_size, length));
    tokens += length;
  }
  const model::PackedIds ids = model::pack(sequences);
  for (int step = 0; step < 2; ++step) {
    CountingAllocator::peak = CountingAllocator::in_use.load();
    torch::autograd::backward({lm.loss(ids, ids.ids.roll(-1), {}).loss_sum}, {});
  }
  model::TrainingShape shape;
  shape.tokens_per_micro_batch = tokens;
  shape.optimizer_bytes_per_parameter = 0;
  const auto ratio = [&] {
    return static_cast<double>(model::estimate_training_memory(c, shape).total_bytes()) /
           static_cast<double>(CountingAllocator::peak.load());
  };
  EXPECT_LT(ratio(), 0.85) << "without the states of partly filled blocks";
  shape.sequences_per_micro_batch = static_cast<std::int64_t>(sequences.size());
  EXPECT_NEAR(ratio(), 1.0, 0.1);
}

INSTANTIATE_TEST_SUITE_P(Presets, Memory_Estimate,
                         testing::Values(MemoryCase{"Plain", "toy", AttnResMode::kOff},
                                         MemoryCase{"K3", "k3-toy", AttnResMode::kOff},
                                         MemoryCase{"K3Block", "k3-toy", AttnResMode::kBlock},
                                         MemoryCase{"K3Full", "k3-toy", AttnResMode::kFull}),
                         [](const auto& param) { return std::string(param.param.name); });

}  // namespace
}  // namespace kda::test
