// Calls whose tensors have more elements than 32 bits count. There is no oracle of that size: the
// last tokens of a large call are compared with a small call of their own.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <vector>

#include "core/float16.h"
#include "cuda/cuda_backends.h"
#include "kda/error.h"
#include "kda/kda.h"
#include "support/random.h"

namespace kda::test {
namespace {

constexpr std::int64_t kD = 128;

using Bits = std::vector<std::uint16_t>;

// bf16 or f32 tensors of a call in plain device memory.
class LargeCall {
 public:
  LargeCall(std::int64_t T, std::int64_t H, std::vector<std::int64_t> cu)
      : T_(T), H_(H), cu_(std::move(cu)) {
    context_.backend = Backend::kCuda;
    context_.stream = cuda_memory().stream();  // before the copies that random() puts on it
    in.q = random({1, T, H, kD}, 1);
    in.k = random({1, T, H, kD}, 2);
    in.v = random({1, T, H, kD}, 3);
    in.g_raw = random({1, T, H, kD}, 4);
    in.beta_logit = random({1, T, H}, 5);
    in.gate.lower_bound_ln = -5.0;
    in.qk_l2norm = true;
    if (!cu_.empty()) {
      in.cu_seqlens = view_of(cu_.data(), {static_cast<std::int64_t>(cu_.size())});
    }
  }

  OperatorInputs in;

  // Values repeat after a prime number of elements; the pattern is that of a whole large tensor, so
  // a tail can be made on its own by starting at its first element.
  TensorView random(std::vector<std::int64_t> shape, std::uint64_t seed, std::int64_t first = 0) {
    constexpr std::int64_t kBlock = 1048583;
    Random generator(seed);
    Bits block(kBlock);
    for (std::uint16_t& x : block)
      x = core::float_to_bf16(static_cast<float>(generator.normal()));
    std::rotate(block.begin(), block.begin() + first % kBlock, block.end());
    TensorView view = make(shape);
    const std::int64_t count = elements(shape);
    auto* data = static_cast<std::uint16_t*>(view.data);
    auto* stream = static_cast<cudaStream_t>(context_.stream);
    std::int64_t done = std::min(kBlock, count);
    cuda_memory().upload(data, block.data(), static_cast<std::size_t>(done) * 2);
    while (done < count) {  // doubling keeps the period: whole blocks are copied
      const std::int64_t whole = done / kBlock * kBlock;
      const std::int64_t n = std::min(whole, count - done);
      EXPECT_EQ(cudaMemcpyAsync(data + done, data, static_cast<std::size_t>(n) * 2,
                                cudaMemcpyDeviceToDevice, stream),
                cudaSuccess);
      done += n;
    }
    return view;
  }

  void forward() {
    ChunkForwardParams p;
    p.in = in;
    p.o = o = make({1, T_, H_, kD});
    context_.workspace = workspace(chunk_forward_workspace_bytes(p, context_));
    chunk_forward(p, context_);
  }
  void backward(std::int64_t first) {
    ChunkBackwardParams p;
    p.in = in;
    p.d_o = random({1, T_, H_, kD}, 6, first * H_ * kD);
    p.dq = dq = make({1, T_, H_, kD});
    p.dk = dk = make({1, T_, H_, kD});
    p.dv = dv = make({1, T_, H_, kD});
    p.dg = dg = make({1, T_, H_, kD});
    context_.workspace = workspace(chunk_backward_workspace_bytes(p, context_));
    chunk_backward(p, context_);
  }
  TensorView o, dq, dk, dv, dg;

  // The last `tokens` tokens of an output.
  Bits tail(const TensorView& view, std::int64_t tokens) const {
    Bits bits(static_cast<std::size_t>(tokens * H_ * kD));
    const auto* data = static_cast<const std::uint16_t*>(view.data);
    cuda_memory().download(bits.data(), data + (T_ - tokens) * H_ * kD, bits.size() * 2);
    return bits;
  }

 private:
  static std::int64_t elements(const std::vector<std::int64_t>& shape) {
    std::int64_t n = 1;
    for (const std::int64_t extent : shape)
      n *= extent;
    return n;
  }
  TensorView make(const std::vector<std::int64_t>& shape) {
    TensorView view;
    view.dtype = DType::kBF16;
    view.space = MemorySpace::kCuda;
    view.rank = static_cast<int>(shape.size());
    std::int64_t stride = 1;
    for (std::size_t d = shape.size(); d-- > 0;) {
      view.shape[d] = shape[d];
      view.stride[d] = stride;
      stride *= shape[d];
    }
    view.data = take(static_cast<std::size_t>(stride) * 2);
    return view;
  }
  void* take(std::size_t bytes) {
    memory_.emplace_back(cuda_memory().allocate(bytes), [](void* x) { cuda_memory().release(x); });
    cuda_memory().fill(memory_.back().get(), 0xff, bytes);
    return memory_.back().get();
  }
  Workspace workspace(std::size_t bytes) { return {take(bytes), bytes}; }

  std::int64_t T_, H_;
  std::vector<std::int64_t> cu_;
  Context context_;
  std::vector<std::shared_ptr<void>> memory_;
};

// The call that starts at token `first` of the large one.
void shift(LargeCall* call, std::int64_t T, std::int64_t H, std::int64_t first) {
  call->in.q = call->random({1, T, H, kD}, 1, first * H * kD);
  call->in.k = call->random({1, T, H, kD}, 2, first * H * kD);
  call->in.v = call->random({1, T, H, kD}, 3, first * H * kD);
  call->in.g_raw = call->random({1, T, H, kD}, 4, first * H * kD);
  call->in.beta_logit = call->random({1, T, H}, 5, first * H);
}

class CudaLarge : public ::testing::Test {
 protected:
  void SetUp() override {
    std::string reason;
    if (!have_gpu(&reason)) GTEST_SKIP() << reason;
    cuda_backends();
  }
  // True, with a skip, where the GPU has too little memory left.
  static bool too_small(std::size_t gib) {
    std::size_t left = 0, all = 0;
    return cudaMemGetInfo(&left, &all) != cudaSuccess || left < gib << 30U;
  }
};

// 262,145 tokens of 64 heads: 2,147,491,840 elements.
TEST_F(CudaLarge, MoreElementsThan32Bits) {
  if (too_small(100)) GTEST_SKIP() << "needs 100 GiB of GPU memory";
  constexpr std::int64_t kT = 262145, kH = 64, kTail = 193;
  LargeCall large(kT, kH, {0, kT - kTail, kT});
  large.forward();
  large.backward(0);
  LargeCall small(kTail, kH, {});
  shift(&small, kTail, kH, kT - kTail);
  small.forward();
  small.backward(kT - kTail);
  EXPECT_EQ(large.tail(large.o, kTail), small.tail(small.o, kTail));
  EXPECT_EQ(large.tail(large.dq, kTail), small.tail(small.dq, kTail));
  EXPECT_EQ(large.tail(large.dk, kTail), small.tail(small.dk, kTail));
  EXPECT_EQ(large.tail(large.dv, kTail), small.tail(small.dv, kTail));
  EXPECT_EQ(large.tail(large.dg, kTail), small.tail(small.dg, kTail));
}

// A million tokens in one sequence. Decays of 2.5 nat per token forget what lies 1024 tokens back.
TEST_F(CudaLarge, AMillionTokens) {
  if (too_small(60)) GTEST_SKIP() << "needs 60 GiB of GPU memory";
  constexpr std::int64_t kT = 1048576, kH = 8, kTail = 2048;
  LargeCall large(kT, kH, {});
  large.forward();
  large.backward(0);
  LargeCall small(kTail, kH, {});
  shift(&small, kTail, kH, kT - kTail);
  small.forward();
  small.backward(kT - kTail);
  const auto near = [&](const TensorView& a, const TensorView& b, const char* name) {
    const Bits x = large.tail(a, kTail / 2);
    const Bits y = small.tail(b, kTail / 2);
    double error = 0.0, size = 0.0;
    for (std::size_t i = 0; i < x.size(); ++i) {
      const double value = core::bf16_to_float(y[i]);
      ASSERT_TRUE(std::isfinite(value)) << name << ": element " << i << " of the small call";
      ASSERT_TRUE(std::isfinite(core::bf16_to_float(x[i])))
          << name << ": element " << i << " of the last " << x.size() << ", bits " << x[i];
      const double difference = core::bf16_to_float(x[i]) - value;
      error += difference * difference;
      size += value * value;
    }
    EXPECT_GT(size, 0.0) << name;
    EXPECT_LE(std::sqrt(error / size), 1e-3) << name;  // NaN fails too
  };
  near(large.o, small.o, "o");
  near(large.dq, small.dq, "dq");
  near(large.dk, small.dk, "dk");
  near(large.dv, small.dv, "dv");
  near(large.dg, small.dg, "dg");
}

}  // namespace
}  // namespace kda::test
