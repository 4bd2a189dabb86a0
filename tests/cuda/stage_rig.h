// Device side of the stage tests: kernels of one stage are launched on tensors that the test fills,
// and what they wrote is compared with the stage model.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "cuda/args.h"
#include "cuda/stage_model.h"
#include "support/device_tensor.h"
#include "support/test_backends.h"

namespace kda::test {

enum class StageGate : std::uint8_t {
  kMild,      // ready decays, log sigmoid of N(0,1)
  kStrong,    // ready decays, -5 +- 1
  kSlow,      // ready decays, -1e-3
  kBounded,   // raw, lower bound -5
  kStandard,  // raw
};
const char* name_of(StageGate gate);

struct StageShape {
  std::int64_t T, H, HV, K, V;
};

// Heads of random data with every stage of the model run on it, and the arguments of the kernels.
class StageRig {
 public:
  StageRig(const TestBackend& backend, const StageShape& shape, StageGate gate);

  std::vector<std::vector<StageChunk>> heads;  // [HV][chunks]
  std::vector<Mat> g_slope;                    // [HV], [T,K]: d g_ln / d g of the kernel's input
  std::vector<Mat> g_raw;                      // [HV], [T,K]: raw gates
  Mat dt_bias, a_log;                          // [HV,K], [HV,1]
  cuda::ChunkArgs args;

  bool mma() const { return backend_.io != DType::kF32; }
  std::string path() const;  // "bf16 K=128 V=128"
  std::int64_t num_chunks() const { return static_cast<std::int64_t>(heads[0].size()); }
  void for_each(const std::function<void(StageChunk&)>& change);

  // Uploads of what the model holds, after rounding it there to what the kernels store.
  void place_inputs();    // q, k, v, g, beta, d_o, the gate's parameters
  void place_factors();   // kt, kh, qt, a_qk, t_inv, decay, beta
  void place_states();    // state before every chunk as args.h
  void place_d_states();  // d_state of every chunk
  void place_x();         // x of every chunk
  void place_ends();      // initial_state of the first chunks, d_final_state of the last
  // Poisoned outputs under these names.
  cuda::Tensor out(const std::string& name, DType dtype, std::vector<std::int64_t> shape);
  void make_factor_outputs();
  void make_scan_outputs();     // o, h, final_state
  void make_reverse_outputs();  // x, d_states, d_initial_state, dv
  void make_local_outputs();    // partial dq and dk, dg, dbeta, partial sums

  void prep();
  void scan_forward();
  void scan_reverse();
  void local();  // with what follows it in the f32 path
  void* stream() { return backend_.memory->stream(); }

  HostTensor get(const std::string& name) const { return buffers_.at(name).download(); }

  // Compares, chunk by chunk, a tile tensor [chunks,HV,64|K,X] or rows [1,T,HV,X] with the model's.
  using Of = std::function<Mat(const StageChunk&)>;
  void expect_tiles(const char* stage, const char* quantity, const std::string& name, const Of& of,
                    double limit, bool lower = false) const;
  void expect_rows(const char* stage, const char* quantity, const std::string& name, const Of& of,
                   double limit) const;
  void expect(const char* stage, const char* quantity, const std::vector<double>& got,
              const std::vector<double>& want, double limit) const;

 private:
  using Values = std::function<double(const StageChunk&, std::int64_t, std::int64_t)>;
  HostTensor tiles(std::int64_t rows, std::int64_t cols, const Values& value) const;
  HostTensor rows(std::int64_t heads, std::int64_t cols, const Values& value) const;
  cuda::Tensor put(const std::string& name, DType dtype, const HostTensor& values);
  void put_mats(const std::string& name, DType dtype, Mat StageChunk::*mat, std::int64_t num_rows,
                std::int64_t num_cols, cuda::Tensor* to);
  DType factor_type() const { return mma() ? DType::kBF16 : DType::kF32; }

  TestBackend backend_;
  StageShape shape_;
  StageGate gate_;
  std::map<std::string, DeviceTensor> buffers_;
};

// One comparison: a line of the stage table. The largest error of the run per stage, quantity and
// path is written as a Markdown table to the file that KDA_STAGE_TABLE names.
void expect_stage(const std::string& stage, const std::string& quantity, const std::string& path,
                  const std::string& label, const std::vector<double>& got,
                  const std::vector<double>& want, double limit);

}  // namespace kda::test
