/// Fused kernels of the layers for CUDA devices, kept in a library of their own
/// (libkda_model_cuda.so, beside libkda_torch.so) that is loaded when a layer first meets a CUDA
/// tensor. Mathematics, storage and compute types are those of the host kernels (kernels/*.h);
/// storage is f32 or bf16, compute f32. All sums run in an order fixed by the shapes. Nothing
/// allocates or synchronises: scratch memory comes from the caller, work goes to `stream`.
#pragma once

#include <cstdint>

#include "kda/types.h"

namespace kda::model {

/// Most rows of partial sums that any kernel writes beside a gradient that is summed over tokens.
inline constexpr std::int64_t kDevicePartialRows = 1024;
/// Tokens of one block of the convolution: its gradients have tokens / this partial rows.
inline constexpr std::int64_t kDeviceConvRows = 32;

/// Convolution and SiLU over packed sequences. See model/short_conv.h.
struct DeviceConv {
  DType storage = DType::kBF16;
  void* stream = nullptr;
  std::int64_t tokens = 0;
  std::int64_t channels = 0;
  int width = 4;                             ///< W: 2, 3 or 4
  const std::int64_t* cu_seqlens = nullptr;  ///< [N+1]
  std::int64_t num_sequences = 0;
  const void* x = nullptr;  ///< [tokens,channels] storage type
  std::int64_t x_stride = 0;
  const float* weight = nullptr;  ///< [channels,W]

  // Forward. With a window [N,W-1,channels] its rows precede each sequence; it is advanced in place
  // after y is written.
  void* y = nullptr;  ///< out, [tokens,channels] contiguous
  float* window = nullptr;
  std::int64_t window_sequence_stride = 0;
  std::int64_t window_row_stride = 0;

  // Backward, without a window.
  const void* dy = nullptr;
  std::int64_t dy_stride = 0;
  void* dx = nullptr;        ///< out, [tokens,channels] contiguous
  float* dweight = nullptr;  ///< out, [channels,W]
  float* partial = nullptr;  ///< [ceil(tokens / kDeviceConvRows), channels, W]
};

/// Sum and RMSNorm. See model/rms_norm.h.
struct DeviceRmsNorm {
  DType storage = DType::kBF16;
  void* stream = nullptr;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  float eps = 0;
  const float* gain = nullptr;  ///< [width]

  const float* residual = nullptr;  ///< [rows,width]
  const void* delta = nullptr;      ///< [rows,width] storage type; null = 0
  float* sum = nullptr;             ///< out with delta; backward: in
  void* y = nullptr;                ///< out, storage type

  const void* dy = nullptr;
  const float* dsum = nullptr;  ///< null = 0
  float* dresidual = nullptr;   ///< out
  void* ddelta = nullptr;       ///< out, storage type; null = not wanted
  float* dgain = nullptr;       ///< out, [width]
  float* partial = nullptr;     ///< [kDevicePartialRows,width]
};

/// Norm of each head times the sigmoid of the gate. See model/gated_norm.h.
struct DeviceGatedNorm {
  DType storage = DType::kBF16;
  void* stream = nullptr;
  std::int64_t tokens = 0;
  std::int64_t heads = 0;
  std::int64_t width = 0;  ///< V
  float eps = 0;
  const void* x = nullptr;     ///< [tokens,heads,V]
  const void* gate = nullptr;  ///< [tokens,heads*V]
  std::int64_t gate_stride = 0;
  const float* gain = nullptr;  ///< [V]
  void* y = nullptr;            ///< out

  const void* dy = nullptr;
  void* dx = nullptr;
  void* dgate = nullptr;
  float* dgain = nullptr;
  float* partial = nullptr;  ///< [kDevicePartialRows,V]
};

/// The gated linear unit's product: silu(gate) * up, or SiTU with both caps. See model/swiglu.h and
/// model/situ_glu.h.
struct DeviceGlu {
  DType storage = DType::kBF16;
  void* stream = nullptr;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  float gate_cap = 0;  ///< beta_1 of SiTU; 0: SwiGLU
  float up_cap = 0;    ///< beta_2; 0: uncapped
  const void* gate = nullptr;
  const void* up = nullptr;
  std::int64_t stride = 0;  ///< elements from row to row of gate and of up
  void* y = nullptr;        ///< out, contiguous

  const void* dy = nullptr;  ///< contiguous
  void* dgate = nullptr;
  void* dup = nullptr;
  std::int64_t d_stride = 0;
};

/// Most sources of one attention over depth.
inline constexpr int kDeviceMaxSources = 64;

/// Attention over depth. See model/attn_res.h.
struct DeviceAttnRes {
  DType storage = DType::kBF16;  ///< of all sources
  void* stream = nullptr;
  std::int64_t rows = 0;
  std::int64_t width = 0;
  int count = 0;  ///< M
  float eps = 0;
  const void* sources[kDeviceMaxSources] = {};  ///< [rows,width] each
  const float* gain = nullptr;                  ///< [width]
  const float* query = nullptr;                 ///< [width]
  float* logits = nullptr;                      ///< [rows,M], out; backward: in
  float* scales = nullptr;                      ///< [rows,M], out; backward: in
  float* h = nullptr;                           ///< out, [rows,width]

  const float* dh = nullptr;               ///< [rows,width]
  void* dsources[kDeviceMaxSources] = {};  ///< out, as the sources
  float* pulled = nullptr;                 ///< out, [width]: sum over rows and i of ds_i k_i
  float* partial = nullptr;                ///< [kDevicePartialRows,width]
};

/// Softmax cross entropy over rows of f32 logits. See model/cross_entropy.h.
struct DeviceCrossEntropy {
  void* stream = nullptr;
  std::int64_t rows = 0;
  std::int64_t vocab = 0;
  const float* logits = nullptr;          ///< [rows,vocab] contiguous
  const std::int64_t* targets = nullptr;  ///< [rows], in range
  float* losses = nullptr;                ///< out, [rows]
  DType storage = DType::kBF16;           ///< of dlogits
  void* dlogits = nullptr;                ///< out, softmax - onehot; null = not wanted
};

struct DeviceKernels {
  void (*short_conv_forward)(const DeviceConv&);
  void (*short_conv_backward)(const DeviceConv&);
  void (*rms_norm_forward)(const DeviceRmsNorm&);
  void (*rms_norm_backward)(const DeviceRmsNorm&);
  void (*gated_norm_forward)(const DeviceGatedNorm&);
  void (*gated_norm_backward)(const DeviceGatedNorm&);
  void (*glu_forward)(const DeviceGlu&);
  void (*glu_backward)(const DeviceGlu&);
  void (*cross_entropy_rows)(const DeviceCrossEntropy&);
  void (*attn_res_forward)(const DeviceAttnRes&);
  void (*attn_res_backward)(const DeviceAttnRes&);
};

/// Loads the library at the first call. Throws kUnsupported when it is not there (a build without
/// -DKDA_CUDA=ON) or belongs to another version.
const DeviceKernels& device_kernels();

}  // namespace kda::model
