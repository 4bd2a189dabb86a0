// Times of the CUDA backend on named shapes: one JSON line per case.
//
// Inputs are raw (gate, norm and sigmoid inside), bf16, f32 initial state in and final state out,
// as for a training step from raw activations. Every call is captured into a CUDA graph and
// replayed; the time is the median of the replays by CUDA events. Inputs of the large shapes exceed
// the L2 cache. Usage: cuda_bench [case substring] [gate: strong|weak|standard|init]
// [portable|whole]. portable: without the kernels for Hopper; whole: without segments there.
// strong: bounded gate, x ~ N(0,1); weak: bounded, x ~ N(-6,1); standard: no lower bound, x ~
// N(-4,1); init: no lower bound, x ~ N(0,1), parameters as a fresh layer has them.
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "copy_elementwise.h"
#include "kda/cuda.h"
#include "kda/kda.h"

namespace {

void check(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  std::fprintf(stderr, "%s: %s\n", what, cudaGetErrorString(status));
  std::exit(1);
}

std::uint16_t to_bf16(float value) {
  std::uint32_t bits = 0;
  std::memcpy(&bits, &value, sizeof(bits));
  return static_cast<std::uint16_t>((bits + 0x7fffU + ((bits >> 16) & 1U)) >> 16);
}

struct Shape {
  const char* name;
  std::int64_t B, T, H, HV, D;
  std::vector<std::int64_t> cu;
};

std::vector<std::int64_t> equal_lengths(std::int64_t n, std::int64_t length) {
  std::vector<std::int64_t> cu{0};
  for (std::int64_t i = 0; i < n; ++i)
    cu.push_back(cu.back() + length);
  return cu;
}

const std::vector<std::int64_t> kMixed = {0, 1300, 1847, 3895, 4858, 5129, 8192};

std::vector<Shape> shapes() {
  return {{"t8192_h96", 1, 8192, 96, 96, 128, {}},
          {"t8192_h64", 1, 8192, 64, 64, 128, {}},
          {"mixed_h96", 1, 8192, 96, 96, 128, kMixed},
          {"mixed_h64", 1, 8192, 64, 64, 128, kMixed},
          {"1024x8_h96", 1, 8192, 96, 96, 128, equal_lengths(8, 1024)},
          {"1024x8_h64", 1, 8192, 64, 64, 128, equal_lengths(8, 1024)},
          {"b2_t16384_h16", 2, 16384, 16, 16, 128, {}},
          {"t4096_h16", 1, 4096, 16, 16, 128, {}},
          {"t8192_h16", 1, 8192, 16, 16, 128, {}},
          {"t65536_h8", 1, 65536, 8, 8, 128, {}},
          {"b8_t2048_h32", 8, 2048, 32, 32, 128, {}},
          {"t8192_h64_d64", 1, 8192, 64, 64, 64, {}},
          {"t8192_h16_d64", 1, 8192, 16, 16, 64, {}},
          {"t65536_h8_d64", 1, 65536, 8, 8, 64, {}},
          {"t8192_h16_hv64", 1, 8192, 16, 64, 128, {}},
          {"t8192_h64_d32", 1, 8192, 64, 64, 32, {}},
          {"t8192_h64_d96", 1, 8192, 64, 64, 96, {}},
          {"t8192_h32_d256", 1, 8192, 32, 32, 256, {}}};
}

// Device memory that is freed at the end of a case; counts the bytes.
class Pool {
 public:
  ~Pool() {
    for (void* part : parts_)
      cudaFree(part);
  }
  void* take(std::size_t bytes) {
    void* data = nullptr;
    check(cudaMalloc(&data, std::max<std::size_t>(bytes, 256)), "cudaMalloc");
    parts_.push_back(data);
    bytes_ += bytes;
    return data;
  }
  // Random bf16 values, mean + deviation * N(0,1); one host block repeated over the tensor.
  void* random_bf16(std::int64_t count, float mean, float deviation) {
    constexpr std::int64_t kBlock = (1 << 20) + 7;
    std::vector<std::uint16_t> block(static_cast<std::size_t>(std::min(kBlock, count)));
    std::normal_distribution<float> normal(mean, deviation);
    for (std::uint16_t& x : block)
      x = to_bf16(normal(random_));
    auto* data = static_cast<std::uint16_t*>(take(static_cast<std::size_t>(count) * 2));
    for (std::int64_t at = 0; at < count; at += kBlock) {
      const auto n = static_cast<std::size_t>(std::min(kBlock, count - at));
      check(cudaMemcpy(data + at, block.data(), n * 2, cudaMemcpyHostToDevice), "cudaMemcpy");
    }
    return data;
  }
  void* random_f32(std::int64_t count, float deviation) {
    std::vector<float> block(static_cast<std::size_t>(count));
    std::normal_distribution<float> normal(0.0F, deviation);
    for (float& x : block)
      x = normal(random_);
    void* data = take(block.size() * 4);
    check(cudaMemcpy(data, block.data(), block.size() * 4, cudaMemcpyHostToDevice), "cudaMemcpy");
    return data;
  }
  void* uniform_f32(std::int64_t count, float low, float high) {
    std::vector<float> block(static_cast<std::size_t>(count));
    std::uniform_real_distribution<float> uniform(low, high);
    for (float& x : block)
      x = uniform(random_);
    void* data = take(block.size() * 4);
    check(cudaMemcpy(data, block.data(), block.size() * 4, cudaMemcpyHostToDevice), "cudaMemcpy");
    return data;
  }
  std::size_t bytes() const { return bytes_; }

 private:
  std::vector<void*> parts_;
  std::size_t bytes_ = 0;
  std::mt19937 random_{7};
};

kda::TensorView view(void* data, kda::DType dtype, std::initializer_list<std::int64_t> shape) {
  kda::TensorView v = kda::view_of(data, dtype, shape);
  v.space = kda::MemorySpace::kCuda;
  return v;
}

struct Times {
  double median, min, max;
};

// Replays `call`, captured once, and times each replay.
Times time_graph(cudaStream_t stream, const std::function<void()>& call) {
  call();
  check(cudaStreamSynchronize(stream), "first call");
  check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), "capture");
  call();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t exec = nullptr;
  check(cudaStreamEndCapture(stream, &graph), "end of capture");
  check(cudaGraphInstantiate(&exec, graph, 0), "instantiate");
  cudaEvent_t begin = nullptr;
  cudaEvent_t end = nullptr;
  check(cudaEventCreate(&begin), "event");
  check(cudaEventCreate(&end), "event");
  std::vector<double> times;
  for (int i = 0; i < 18; ++i) {
    check(cudaEventRecord(begin, stream), "record");
    check(cudaGraphLaunch(exec, stream), "launch");
    check(cudaEventRecord(end, stream), "record");
    check(cudaEventSynchronize(end), "synchronize");
    float ms = 0.0F;
    check(cudaEventElapsedTime(&ms, begin, end), "elapsed");
    if (i >= 3) times.push_back(ms);
  }
  cudaGraphExecDestroy(exec);
  cudaGraphDestroy(graph);
  cudaEventDestroy(begin);
  cudaEventDestroy(end);
  std::sort(times.begin(), times.end());
  return {times[times.size() / 2], times.front(), times.back()};
}

void run_chunk(const Shape& shape, const std::string& gate, cudaStream_t stream) {
  using kda::DType;
  Pool pool;
  const std::int64_t B = shape.B;
  const std::int64_t T = shape.T;
  const std::int64_t D = shape.D;
  const std::int64_t N = shape.cu.empty() ? B : static_cast<std::int64_t>(shape.cu.size()) - 1;
  const std::int64_t qk = B * T * shape.H * D;
  const std::int64_t vo = B * T * shape.HV * D;
  const std::int64_t states = N * shape.HV * D * D;
  kda::OperatorInputs in;
  in.q = view(pool.random_bf16(qk, 0.0F, 1.0F), DType::kBF16, {B, T, shape.H, D});
  in.k = view(pool.random_bf16(qk, 0.0F, 1.0F), DType::kBF16, {B, T, shape.H, D});
  in.v = view(pool.random_bf16(vo, 0.0F, 1.0F), DType::kBF16, {B, T, shape.HV, D});
  in.g_raw = view(pool.random_bf16(vo,
                                   gate == "weak"       ? -6.0F
                                   : gate == "standard" ? -4.0F
                                                        : 0.0F,
                                   1.0F),
                  DType::kBF16, {B, T, shape.HV, D});
  in.beta_logit =
      view(pool.random_bf16(B * T * shape.HV, 0.0F, 1.0F), DType::kBF16, {B, T, shape.HV});
  // A fresh layer: e^A from 1 to 16, softplus(dt_bias) from .001 to .1.
  const bool init = gate == "init";
  in.gate.a_log = view(
      init ? pool.uniform_f32(shape.HV, 0.0F, std::log(16.0F)) : pool.random_f32(shape.HV, 0.1F),
      DType::kF32, {shape.HV});
  in.gate.dt_bias = view(
      init ? pool.uniform_f32(shape.HV * D, -6.9F, -2.25F) : pool.random_f32(shape.HV * D, 0.1F),
      DType::kF32, {shape.HV, D});
  if (gate != "standard" && !init) in.gate.lower_bound_ln = -5.0;
  in.qk_l2norm = true;
  in.initial_state_kv = view(pool.random_f32(states, 0.1F), DType::kF32, {N, shape.HV, D, D});
  if (!shape.cu.empty()) {
    in.cu_seqlens = kda::view_of(shape.cu.data(), {static_cast<std::int64_t>(shape.cu.size())});
  }
  const std::int64_t blocks = kda::num_state_blocks(in);

  kda::ChunkForwardParams fwd;
  fwd.in = in;
  fwd.o = view(pool.take(static_cast<std::size_t>(vo) * 2), DType::kBF16, {B, T, shape.HV, D});
  fwd.final_state_kv =
      view(pool.take(static_cast<std::size_t>(states) * 4), DType::kF32, {N, shape.HV, D, D});
  const kda::TensorView h = view(pool.take(static_cast<std::size_t>(blocks * shape.HV * D * D) * 2),
                                 DType::kBF16, {blocks, shape.HV, D, D});

  kda::ChunkBackwardParams bwd;
  bwd.in = in;
  bwd.h_kv = h;
  bwd.d_o = view(pool.random_bf16(vo, 0.0F, 1.0F), DType::kBF16, {B, T, shape.HV, D});
  bwd.d_final_state_kv = view(pool.random_f32(states, 0.1F), DType::kF32, {N, shape.HV, D, D});
  bwd.dq = view(pool.take(static_cast<std::size_t>(qk) * 2), DType::kBF16, {B, T, shape.H, D});
  bwd.dk = view(pool.take(static_cast<std::size_t>(qk) * 2), DType::kBF16, {B, T, shape.H, D});
  bwd.dv = view(pool.take(static_cast<std::size_t>(vo) * 2), DType::kBF16, {B, T, shape.HV, D});
  bwd.dg = view(pool.take(static_cast<std::size_t>(vo) * 2), DType::kBF16, {B, T, shape.HV, D});
  bwd.dbeta = view(pool.take(static_cast<std::size_t>(B * T * shape.HV) * 2), DType::kBF16,
                   {B, T, shape.HV});
  bwd.da_log = view(pool.take(static_cast<std::size_t>(shape.HV) * 4), DType::kF32, {shape.HV});
  bwd.d_dt_bias =
      view(pool.take(static_cast<std::size_t>(shape.HV * D) * 4), DType::kF32, {shape.HV, D});
  bwd.d_initial_state_kv =
      view(pool.take(static_cast<std::size_t>(states) * 4), DType::kF32, {N, shape.HV, D, D});

  kda::Context context;
  context.backend = kda::Backend::kCuda;
  context.stream = stream;
  const std::size_t fwd_bytes = kda::chunk_forward_workspace_bytes(fwd, context);
  const std::size_t bwd_bytes = kda::chunk_backward_workspace_bytes(bwd, context);
  const std::size_t tensor_bytes = pool.bytes();
  context.workspace.bytes = std::max(fwd_bytes, bwd_bytes);
  context.workspace.data = pool.take(context.workspace.bytes);

  const Times inference = time_graph(stream, [&] { kda::chunk_forward(fwd, context); });
  fwd.h_kv = h;
  const Times forward = time_graph(stream, [&] { kda::chunk_forward(fwd, context); });
  const Times backward = time_graph(stream, [&] { kda::chunk_backward(bwd, context); });
  const Times step = time_graph(stream, [&] {
    kda::chunk_forward(fwd, context);
    kda::chunk_backward(bwd, context);
  });
  // The same with what the backward recomputes kept by the forward.
  kda::ChunkForwardParams keep_fwd = fwd;
  kda::ChunkBackwardParams keep_bwd = bwd;
  kda::Dims dims;
  dims.B = B, dims.T = T, dims.H = shape.H, dims.HV = shape.HV, dims.K = dims.V = D, dims.N = N;
  keep_fwd.kept.bytes =
      static_cast<std::size_t>(blocks) *
      kda::chunk_kept_bytes_per_block(dims, DType::kBF16, kda::MemorySpace::kCuda);
  keep_fwd.kept.data = pool.take(keep_fwd.kept.bytes);
  keep_bwd.kept = keep_fwd.kept;
  const Times keep_step = time_graph(stream, [&] {
    kda::chunk_forward(keep_fwd, context);
    kda::chunk_backward(keep_bwd, context);
  });
  kda::ChunkBackwardParams replay = bwd;
  replay.h_kv = {};
  const std::size_t replay_bytes = kda::chunk_backward_workspace_bytes(replay, context);
  const double gib = 1024.0 * 1024.0 * 1024.0;
  std::printf(
      "{\"case\":\"%s\",\"gate\":\"%s\",\"inference_ms\":%.4f,\"forward_ms\":%.4f,\"backward_ms\":%"
      ".4f,"
      "\"keep_step_ms\":%.4f,\"kept_gib\":%.3f,"
      "\"step_ms\":%.4f,\"step_min_ms\":%.4f,\"step_max_ms\":%.4f,\"tensors_gib\":%.3f,"
      "\"forward_workspace_gib\":%.3f,\"backward_workspace_gib\":%.3f,\"replay_workspace_gib\":%."
      "3f,"
      "\"peak_gib\":%.3f}\n",
      shape.name, gate.c_str(), inference.median, forward.median, backward.median, keep_step.median,
      static_cast<double>(keep_fwd.kept.bytes) / gib, step.median, step.min, step.max,
      static_cast<double>(tensor_bytes) / gib, static_cast<double>(fwd_bytes) / gib,
      static_cast<double>(bwd_bytes) / gib, static_cast<double>(replay_bytes) / gib,
      static_cast<double>(pool.bytes() - keep_fwd.kept.bytes) / gib);
  std::fflush(stdout);
}

void run_decode(std::int64_t B, kda::DType state, bool norm, cudaStream_t stream) {
  using kda::DType;
  Pool pool;
  const std::int64_t H = 96;
  const std::int64_t D = 128;
  kda::RecurrentForwardParams p;
  p.in.q = view(pool.random_bf16(B * H * D, 0.0F, 1.0F), DType::kBF16, {B, 1, H, D});
  p.in.k = view(pool.random_bf16(B * H * D, 0.0F, 1.0F), DType::kBF16, {B, 1, H, D});
  p.in.v = view(pool.random_bf16(B * H * D, 0.0F, 1.0F), DType::kBF16, {B, 1, H, D});
  p.in.g_raw = view(pool.random_bf16(B * H * D, 0.0F, 1.0F), DType::kBF16, {B, 1, H, D});
  p.in.beta_logit = view(pool.random_bf16(B * H, 0.0F, 1.0F), DType::kBF16, {B, 1, H});
  p.in.gate.a_log = view(pool.random_f32(H, 0.1F), DType::kF32, {H});
  p.in.gate.dt_bias = view(pool.random_f32(H * D, 0.1F), DType::kF32, {H, D});
  p.in.gate.lower_bound_ln = -5.0;
  p.in.qk_l2norm = true;
  const std::size_t bytes = static_cast<std::size_t>(B * H * D * D) * kda::size_of(state);
  void* states = pool.take(bytes);
  check(cudaMemset(states, 0, bytes), "memset");
  p.pool.pool_kv = view(states, state, {B, H, D, D});
  std::vector<std::int64_t> slots;
  for (std::int64_t b = 0; b < B; ++b)
    slots.push_back(B - 1 - b);
  void* device_slots = pool.take(slots.size() * 8);
  check(cudaMemcpy(device_slots, slots.data(), slots.size() * 8, cudaMemcpyHostToDevice), "copy");
  p.pool.slots = view(device_slots, DType::kI64, {B});
  p.o = view(pool.take(static_cast<std::size_t>(B * H * D) * 2), DType::kBF16, {B, 1, H, D});
  kda::Context context;
  context.backend = kda::Backend::kCuda;
  context.stream = stream;
  if (norm) {
    p.out_norm.weight = view(pool.random_f32(D, 1.0F), DType::kF32, {D});
    p.out_norm.gate = view(pool.random_bf16(B * H * D, 0.0F, 1.0F), DType::kBF16, {B, 1, H, D});
  }
  const Times t = time_graph(stream, [&] { kda::recurrent_forward(p, context); });
  std::printf(
      "{\"case\":\"decode_b%lld\",\"state\":\"%s\",\"norm\":%s,\"us\":%.2f,\"min_us\":%.2f,\"tb_"
      "per_s\":%.3f}"
      "\n",
      static_cast<long long>(B), kda::name_of(state), norm ? "true" : "false", 1e3 * t.median,
      1e3 * t.min, 2.0 * static_cast<double>(bytes) / (t.median * 1e-3) / 1e12);
  std::fflush(stdout);
}

void run_copy(cudaStream_t stream) {
  Pool pool;
  const std::size_t bytes = std::size_t{4} << 30;
  void* from = pool.take(bytes);
  void* to = pool.take(bytes);
  const Times t = time_graph(stream, [&] {
    check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice, stream), "copy");
  });
  const Times kernel = time_graph(stream, [&] { copy_elementwise(from, to, bytes, stream); });
  const Times in_place = time_graph(stream, [&] { copy_elementwise(to, to, bytes, stream); });
  const auto rate = [&](const Times& x) {
    return 2.0 * static_cast<double>(bytes) / (x.median * 1e-3) / 1e12;
  };
  std::printf(
      "{\"case\":\"copy\",\"memcpy_tb_per_s\":%.3f,\"kernel_tb_per_s\":%.3f,"
      "\"in_place_tb_per_s\":%.3f}\n",
      rate(t), rate(kernel), rate(in_place));
}

}  // namespace

int main(int argc, char** argv) {
  try {
    kda::cuda::register_backend();
    const std::string filter = argc > 1 ? argv[1] : "";
    const std::string gate = argc > 2 ? argv[2] : "strong";
    const std::string kernels = argc > 3 ? argv[3] : "";
    if (gate != "strong" && gate != "weak" && gate != "standard" && gate != "init") {
      throw kda::Error(kda::ErrorCode::kInvalidArgument,
                       "second argument: expected strong, weak, standard or init, given " + gate);
    }
    if (!kernels.empty() && kernels != "portable" && kernels != "whole") {
      throw kda::Error(kda::ErrorCode::kInvalidArgument,
                       "third argument: expected portable or whole, given " + kernels);
    }
    if (kernels == "portable") kda::cuda::set_hopper_enabled(false);
    if (kernels == "whole") kda::cuda::set_hopper_segments(false);
    cudaStream_t stream = nullptr;
    check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "stream");
    const auto wanted = [&](const std::string& name) {
      return filter.empty() || name.find(filter) != std::string::npos;
    };
    if (wanted("copy")) run_copy(stream);
    for (const Shape& shape : shapes()) {
      if (wanted(shape.name)) run_chunk(shape, gate, stream);
    }
    for (std::int64_t B : {1, 8, 64, 256}) {
      for (kda::DType state : {kda::DType::kF32, kda::DType::kBF16}) {
        if (!wanted("decode_b" + std::to_string(B))) continue;
        for (const bool norm : {false, true})
          run_decode(B, state, norm, stream);
      }
    }
  } catch (const kda::Error& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
  return 0;
}
