// Calls as large as the operator promises: a million tokens in one sequence, more (row, head)
// pairs, sequences and chunks than a 16-bit grid dimension has. No oracle is that patient: with a
// bounded gate nothing is remembered for long, so a part of a large call must give the bits of a
// small call on that part's inputs.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstring>

#include "core/float16.h"
#include "cuda/cuda_backends.h"
#include "kda/kda.h"
#include "support/random.h"

namespace kda::test {
namespace {

constexpr std::int64_t kBlock = (1 << 18) + 7;  // no period of any shape below

// Device memory of one call; freed together.
class Tensors {
 public:
  ~Tensors() {
    for (void* part : parts_)
      cuda_memory().release(part);
  }
  void* bytes(std::size_t count) {
    parts_.push_back(cuda_memory().allocate(count));
    return parts_.back();
  }
  TensorView empty(DType dtype, std::initializer_list<std::int64_t> shape) {
    TensorView v = view_of(static_cast<void*>(nullptr), dtype, shape);
    const std::size_t size = static_cast<std::size_t>(v.numel()) * size_of(dtype);
    v.data = bytes(size);
    v.space = MemorySpace::kCuda;
    cuda_memory().fill(v.data, 0xff, size);  // NaN
    return v;
  }
  // N(0,1) in bf16: one random block, repeated.
  TensorView random(std::initializer_list<std::int64_t> shape, std::uint64_t seed) {
    const TensorView v = empty(DType::kBF16, shape);
    Random random(seed);
    std::vector<std::uint16_t> block(static_cast<std::size_t>(kBlock));
    for (std::uint16_t& x : block)
      x = core::float_to_bf16(static_cast<float>(random.normal()));
    auto* to = static_cast<std::uint16_t*>(v.data);
    for (std::int64_t at = 0; at < v.numel(); at += kBlock) {
      const auto count = static_cast<std::size_t>(std::min(kBlock, v.numel() - at));
      cuda_memory().upload(to + at, block.data(), 2 * count);
    }
    return v;
  }

 private:
  std::vector<void*> parts_;
};

// Extents [first, first + count) of dimension `dim`.
template <typename View>
View narrow(View view, std::size_t dim, std::int64_t first, std::int64_t count) {
  if (!view.defined()) return view;
  const std::int64_t bytes =
      first * view.stride[dim] * static_cast<std::int64_t>(size_of(view.dtype));
  view.data = const_cast<char*>(static_cast<const char*>(view.data)) + bytes;
  view.shape[dim] = count;
  return view;
}

// The bits of a tensor whose rows beyond the first two dimensions are contiguous.
std::vector<unsigned char> bits(const TensorView& v) {
  std::size_t row = size_of(v.dtype);
  for (int d = 2; d < v.rank; ++d)
    row *= static_cast<std::size_t>(v.shape[static_cast<std::size_t>(d)]);
  std::vector<unsigned char> all(static_cast<std::size_t>(v.shape[0] * v.shape[1]) * row);
  const std::size_t per_batch = static_cast<std::size_t>(v.shape[1]) * row;
  for (std::int64_t b = 0; b < v.shape[0]; ++b) {
    const auto* from = static_cast<const char*>(v.data) +
                       b * v.stride[0] * static_cast<std::int64_t>(size_of(v.dtype));
    cuda_memory().download(all.data() + static_cast<std::size_t>(b) * per_batch, from, per_batch);
  }
  return all;
}

// Whether a bf16 tensor has an element that is not finite.
bool any_nan(const TensorView& v) {
  const std::vector<unsigned char> all = bits(v);
  for (std::size_t i = 0; i + 1 < all.size(); i += 2) {
    std::uint16_t x = 0;
    std::memcpy(&x, all.data() + i, 2);
    if ((x & 0x7f80U) == 0x7f80U) return true;
  }
  return false;
}

struct Call {
  Tensors memory;
  OperatorInputs in;
  TensorView d_o;
};

void make_call(std::int64_t B, std::int64_t T, std::int64_t HV, std::int64_t D, Call* call) {
  Tensors& m = call->memory;
  OperatorInputs& in = call->in;
  in.q = m.random({B, T, HV, D}, 1);
  in.k = m.random({B, T, HV, D}, 2);
  in.v = m.random({B, T, HV, D}, 3);
  in.g_raw = m.random({B, T, HV, D}, 4);
  in.beta_logit = m.random({B, T, HV}, 5);
  in.gate.lower_bound_ln = -5.0;
  in.qk_l2norm = true;
  call->d_o = m.random({B, T, HV, D}, 6);
}

// Batch rows [row, row + rows) and tokens [first, first + tokens) of a call.
OperatorInputs part(OperatorInputs in, std::int64_t row, std::int64_t rows, std::int64_t first,
                    std::int64_t tokens) {
  for (ConstTensorView* x : {&in.q, &in.k, &in.v, &in.g_raw, &in.beta_logit})
    *x = narrow(narrow(*x, 0, row, rows), 1, first, tokens);
  return in;
}

struct Results {
  TensorView o, dq, dk, dv, dg, dbeta;
  std::vector<TensorView> all() const { return {o, dq, dk, dv, dg, dbeta}; }
};
constexpr const char* kNames[] = {"o", "dq", "dk", "dv", "dg", "dbeta"};

Results run(const OperatorInputs& in, const ConstTensorView& d_o, Tensors* memory) {
  const std::int64_t B = in.v.shape[0];
  const std::int64_t T = in.v.shape[1];
  const std::int64_t HV = in.v.shape[2];
  const std::int64_t D = in.v.shape[3];
  Context context{.backend = Backend::kCuda, .stream = cuda_memory().stream()};
  Results r;
  ChunkForwardParams f;
  f.in = in;
  f.o = r.o = memory->empty(DType::kBF16, {B, T, HV, D});
  f.h_kv = memory->empty(DType::kBF16, {num_state_blocks(in), HV, D, D});
  ChunkBackwardParams b;
  b.in = in;
  b.h_kv = f.h_kv;
  b.d_o = d_o;
  b.dq = r.dq = memory->empty(DType::kBF16, {B, T, HV, D});
  b.dk = r.dk = memory->empty(DType::kBF16, {B, T, HV, D});
  b.dv = r.dv = memory->empty(DType::kBF16, {B, T, HV, D});
  b.dg = r.dg = memory->empty(DType::kBF16, {B, T, HV, D});
  b.dbeta = r.dbeta = memory->empty(DType::kBF16, {B, T, HV});
  const std::size_t wanted = std::max(chunk_forward_workspace_bytes(f, context),
                                      chunk_backward_workspace_bytes(b, context));
  context.workspace = {memory->bytes(wanted), wanted};
  chunk_forward(f, context);
  chunk_backward(b, context);
  return r;
}

// Skips where there is no GPU or too little memory on it.
#define KDA_NEED_GPU(gib)                                                                    \
  do {                                                                                       \
    std::string reason;                                                                      \
    if (!have_gpu(&reason)) GTEST_SKIP() << reason;                                          \
    cuda_backends();                                                                         \
    std::size_t free = 0;                                                                    \
    std::size_t total = 0;                                                                   \
    ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);                                   \
    if ((free >> 30U) < (gib)) GTEST_SKIP() << "needs " << (gib) << " GiB of device memory"; \
  } while (false)

void expect_same(const Results& large, const Results& small, std::int64_t row, std::int64_t rows,
                 std::int64_t first, std::int64_t tokens, std::int64_t skip) {
  for (std::size_t i = 0; i < large.all().size(); ++i) {
    const TensorView of_large =
        narrow(narrow(large.all()[i], 0, row, rows), 1, first + skip, tokens - skip);
    const TensorView of_small = narrow(small.all()[i], 1, skip, tokens - skip);
    EXPECT_TRUE(bits(of_large) == bits(of_small)) << kNames[i];
    EXPECT_FALSE(any_nan(of_large)) << kNames[i];
  }
}

// The last 4096 of 1,048,576 tokens, against those tokens alone; the first 1024 of them may still
// remember what was before.
void million_tokens(std::int64_t HV, std::int64_t D) {
  constexpr std::int64_t kTokens = 1 << 20;
  constexpr std::int64_t kTail = 4096;
  Call call;
  make_call(1, kTokens, HV, D, &call);
  const Results large = run(call.in, call.d_o, &call.memory);
  const OperatorInputs tail = part(call.in, 0, 1, kTokens - kTail, kTail);
  const Results small = run(tail, narrow(call.d_o, 1, kTokens - kTail, kTail), &call.memory);
  expect_same(large, small, 0, 1, kTokens - kTail, kTail, 1024);
}

TEST(CudaLimits, MillionTokens_K64) {
  KDA_NEED_GPU(24U);
  million_tokens(2, 64);
}
TEST(CudaLimits, MillionTokens_K128) {
  KDA_NEED_GPU(32U);
  million_tokens(2, 128);
}

// 70,400 (row, head) pairs of 65 tokens: 140,800 chunks.
TEST(CudaLimits, MoreRowsAndHeadsThanASixteenBitGrid) {
  KDA_NEED_GPU(40U);
  constexpr std::int64_t kRows = 1100;
  constexpr std::int64_t kTokens = 65;
  Call call;
  make_call(kRows, kTokens, 64, 64, &call);
  const Results large = run(call.in, call.d_o, &call.memory);
  for (const std::int64_t row : {std::int64_t{0}, std::int64_t{1024}, kRows - 1}) {
    const OperatorInputs one = part(call.in, row, 1, 0, kTokens);
    const Results small = run(one, narrow(call.d_o, 0, row, 1), &call.memory);
    expect_same(large, small, row, 1, 0, kTokens, 0);
  }
}

// 35,000 packed sequences of two heads, offsets on the device.
TEST(CudaLimits, MorePackedSequencesThanASixteenBitGrid) {
  KDA_NEED_GPU(32U);
  constexpr std::int64_t kSequences = 35000;
  std::vector<std::int64_t> offsets = {0};
  for (std::int64_t n = 0; n < kSequences; ++n)
    offsets.push_back(offsets.back() + n % 4);
  const std::int64_t T = offsets.back();
  Call call;
  make_call(1, T, 2, 64, &call);
  TensorView cu = call.memory.empty(DType::kI64, {kSequences + 1});
  cuda_memory().upload(cu.data, offsets.data(), offsets.size() * 8);
  OperatorInputs packed = call.in;
  packed.cu_seqlens = cu;
  const Results large = run(packed, call.d_o, &call.memory);
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{32770}, kSequences - 1}) {
    const std::int64_t first = offsets[static_cast<std::size_t>(n)];
    const std::int64_t tokens = offsets[static_cast<std::size_t>(n) + 1] - first;
    ASSERT_GT(tokens, 0);
    const Results small =
        run(part(call.in, 0, 1, first, tokens), narrow(call.d_o, 1, first, tokens), &call.memory);
    expect_same(large, small, 0, 1, first, tokens, 0);
  }
}

// One token of 1100 x 64 states of 128 x 128: 4.6 GB of them.
TEST(CudaLimits, RecurrentStatesBeyondASixteenBitGrid) {
  KDA_NEED_GPU(16U);
  constexpr std::int64_t kRows = 1100;
  Call call;
  make_call(kRows, 1, 64, 128, &call);
  const auto step = [&](const OperatorInputs& in) {
    const std::int64_t rows = in.q.shape[0];
    RecurrentForwardParams p;
    p.in = in;
    p.o = call.memory.empty(DType::kBF16, {rows, 1, 64, 128});
    p.final_state_kv = call.memory.empty(DType::kF32, {rows, 64, 128, 128});
    recurrent_forward(p, {.backend = Backend::kCuda, .stream = cuda_memory().stream()});
    return p;
  };
  const RecurrentForwardParams large = step(call.in);
  for (const std::int64_t row : {std::int64_t{0}, std::int64_t{1024}, kRows - 1}) {
    const RecurrentForwardParams small = step(part(call.in, row, 1, 0, 1));
    EXPECT_TRUE(bits(narrow(large.o, 0, row, 1)) == bits(small.o)) << row;
    EXPECT_TRUE(bits(narrow(large.final_state_kv, 0, row, 1)) == bits(small.final_state_kv)) << row;
    EXPECT_FALSE(any_nan(small.o));
  }
}

}  // namespace
}  // namespace kda::test
