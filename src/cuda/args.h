// What host code hands to kernels: plain structs, passed by value.
#pragma once

#include <cstdint>

namespace kda::cuda {

// Element types a kernel can load or store; the branch on them is uniform in a launch.
enum class Elem : std::int32_t { kF32, kBF16, kF16, kI32, kI64 };

// Up to four dimensions, strides in elements; data == nullptr: absent. Inputs are only read.
struct Tensor {
  void* data = nullptr;
  std::int64_t s0 = 0, s1 = 0, s2 = 0, s3 = 0;
  Elem elem = Elem::kF32;
  bool vector = false;  // rows along the last dimension may be moved 16 bytes at a time
};

// What the kernels have lean code for; anything else takes their general code.
constexpr bool is_plain(const Tensor& t) { return t.vector && t.elem == Elem::kBF16; }

struct Shape {
  std::int64_t B = 0, T = 0, N = 0;
  int H = 0, HV = 0, G = 0, K = 0, V = 0;
};

// Which tokens a 64-token chunk covers. Dense: chunk c is chunk c % per_row of row c / per_row.
// Packed: tables in device memory, made by launch/meta.cu. A chunk with seq < 0 does not exist.
struct ChunkMap {
  std::int64_t num_chunks = 0;  // launch bound
  std::int64_t per_row = 0;     // dense only
  std::int64_t T = 0;
  std::int64_t* offsets = nullptr;      // [N+1]
  std::int64_t* first_chunk = nullptr;  // [N+1]
  std::int32_t* chunk_seq = nullptr;    // [num_chunks]
};

// Lowest bound, nat per token, for which the kernels of bounded gates serve.
inline constexpr float kBoundedLimit = -7.0F;

enum class GateKind : std::int32_t { kReady, kStandard, kBounded };

struct Gate {
  GateKind kind = GateKind::kReady;
  const float* a_log = nullptr;    // [HV]
  const float* dt_bias = nullptr;  // [HV,K]
  float lower_bound = 0.0F;
};

struct Inputs {
  Tensor q, k, v, g, beta;  // [B,T,H|HV,K|V], beta [B,T,HV]
  Gate gate;
  bool beta_is_logit = false;
  float beta_max = 1.0F;
  bool l2norm = false;
  float scale = 1.0F;
  Tensor initial_state;  // [N,HV,K,V]
};

// Per-chunk factors that the prep stage makes and the scans and the local stage read; contiguous,
// [num_chunks, HV, ...]. Rows past the end of a sequence are zero. W is bf16 or f32.
//   kt  = k 2^Gc                     [64,K]
//   kh  = k 2^(Gc_last - Gc)         [64,K]
//   qt  = scale q 2^Gc               [64,K]
//   n   = scale N                    [64,64] lower triangular; what is above is not read
//   a   = (I + Lo)^-1                [64,64] lower triangular; what is above is not read
//   decay = 2^Gc_last  [K] f32,  beta [64] f32
struct Factors {
  void* kt = nullptr;
  void* kh = nullptr;
  void* qt = nullptr;
  void* n = nullptr;
  void* a = nullptr;
  float* decay = nullptr;
  float* beta = nullptr;
};

// What one block of a Hopper scan does for a head of a packed call.
struct alignas(16) Piece {
  std::int32_t n = 0;      // sequence
  std::int32_t which = 0;  // of its pieces in this pass
  std::int32_t cut = -1;   // among the sequences that are cut; -1: it is not
};

// Sequences cut into segments (Hopper). A scan meets the segments of a sequence by rank: 0 is the
// one that it starts with. Matrices are f32, one per (sequence, rank but the last, value head).
struct Segments {
  int most = 1;           // of any sequence; dense calls: of every one; 1: none is cut
  std::int64_t cuts = 0;  // sequences that are cut, at most
  int pass = 0;           // 0: whole sequences, 1: first ranks and maps, 2: the other ranks
  float* ends = nullptr;  // [.,HV,K,V] states at the ends of ranks
  // [.,HV,V,K] what a rank makes of a state S: map S + end, transposed; where two blocks
  // share a head (K = 128), behind it the words of hopper/chain.cuh.
  float* maps = nullptr;
  // Packed calls: pieces of passes 0 or 1 and of pass 2, longest first; their numbers, and that of
  // the sequences that are cut. Made on the device, as the lengths may be known nowhere else.
  Piece* pieces[2] = {nullptr, nullptr};
  std::int32_t* counts = nullptr;
};

// Everything one chunk call needs; stages read the parts that concern them.
struct ChunkArgs {
  Shape shape;
  ChunkMap map;
  Inputs in;
  Factors factors;
  int factor_columns = 0;  // of kt, kh, qt: K, padded on tensor cores; 0: K
  Tensor h;                // [num_chunks,HV,K,V] states at chunk starts: written by forward scans
  Tensor o;                // [B,T,HV,V]
  Tensor final_state;      // [N,HV,K,V]

  // backward
  Tensor d_o;                       // [B,T,HV,V]
  Tensor d_final_state;             // [N,HV,K,V]
  Tensor d_states;                  // [num_chunks,HV,K,V] gradients of the states at chunk ends
  Tensor x;                         // [num_chunks,HV,64,V]: A^T dU
  std::uint16_t* u_half = nullptr;  // [num_chunks,HV,64,V] bf16 (wide heads only)
  std::uint16_t* pairs = nullptr;   // [num_chunks,HV,2,64,64] bf16: dN, P (wide heads only)
  float* u = nullptr;               // [num_chunks,HV,64,V] (f32 stages only)
  float* d_n = nullptr;             // [num_chunks,HV,64,64] (f32 stages only)
  float* p = nullptr;               // [num_chunks,HV,64,64] (f32 stages only)
  float* dq_part = nullptr;         // [B*T,HV,K] per value head, before the fold and the norm
  float* dk_part = nullptr;         // [B*T,HV,K]
  float* dbeta_part = nullptr;      // [beta_parts,B*T,HV]
  int beta_parts = 0;
  float* dbias_part = nullptr;   // [num_chunks,HV,K]
  float* da_log_part = nullptr;  // [num_chunks,HV,a_parts]
  int a_parts = 0;
  Tensor dq, dk, dv, dg, dbeta;  // outputs, any may be absent
  float* da_log = nullptr;       // [HV]
  float* d_dt_bias = nullptr;    // [HV,K]
  Tensor d_initial_state;

  Segments segments;

  // Chunk-local backward on Hopper, standard gates: [num_chunks,HV], not zero where a chunk decays
  // too much for it; prep and the local stage for any GPU then do these, and no others.
  std::uint32_t* retry = nullptr;
};

// Gated RMS norm of the output of a recurrent call.
struct OutNorm {
  const float* weight = nullptr;  // [V]; null: no norm
  Tensor gate;                    // [B,T,HV,V], may be absent
  float eps = 0.0F;
};

struct RecurrentArgs {
  Shape shape;
  Inputs in;
  OutNorm norm;
  const std::int64_t* offsets = nullptr;  // [N+1] when packed, else null
  Tensor beta_v;                          // [B,T,HV,V]
  Tensor o;
  Tensor final_state;
  Tensor pool;  // [S,HV,K,V]
  std::int64_t num_slots = 0;
  Tensor slots;                   // [N] or [N,Tmax]
  std::int64_t slot_columns = 0;  // 0: one slot per row, else Tmax
  Tensor num_accepted;            // [N]
};

}  // namespace kda::cuda
