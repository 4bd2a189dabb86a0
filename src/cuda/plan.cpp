#include "cuda/plan.h"

#include <string>

#include "cuda/hopper/scan.h"
#include "cuda/hopper/segment_rule.h"
#include "cuda/launch/launch.h"
#include "cuda/tiling/instances.h"
#include "kda/error.h"

namespace kda::cuda {
namespace {

// What the tensor-core stages may take: that of compute capability 8.0.
constexpr int kMmaSharedBytes = 163 * 1024;

constexpr std::int64_t kC = kStateBlockTokens;

std::int64_t ceil_div(std::int64_t a, std::int64_t b) { return (a + b - 1) / b; }

void plan_map(const core::Problem& problem, Arena* arena, ChunkMap* map) {
  map->num_chunks = problem.num_state_blocks;
  map->T = problem.dims.T;
  map->per_row = ceil_div(problem.dims.T, kC);
  if (!problem.packed) return;
  map->offsets = arena->take<std::int64_t>(problem.dims.N + 1);
  map->first_chunk = arena->take<std::int64_t>(problem.dims.N + 1);
  map->chunk_seq = arena->take<std::int32_t>(map->num_chunks);
}

// Hopper: what segments make of states, and the pieces that the scans of packed calls work on.
void plan_segments(const core::Problem& problem, Arena* arena, ChunkArgs* args) {
  Segments& segments = args->segments;
  const Dims& d = problem.dims;
  segments.cuts = hopper::cut_sequences(problem);
  segments.most = segments.cuts > 0 ? hopper::most_segments(d.HV, d.K) : 1;
  const std::int64_t others = segments.cuts * (segments.most - 1);  // ranks but one
  if (others > 0) {
    segments.ends = arena->take<float>(others * d.HV * d.K * d.V);
    const std::int64_t words = d.K == 128 ? 1 + others * d.HV : 0;  // of the chain, 32 bits each
    segments.maps = arena->take<float>(others * d.HV * d.K * d.V + words);
  }
  if (!problem.packed) return;
  const std::int64_t more = hopper::first_pass_pieces(segments.most) - 1;
  segments.pieces[0] = arena->take<Piece>(d.N + segments.cuts * more);
  segments.pieces[1] = arena->take<Piece>(others);
  segments.counts = arena->take<std::int32_t>(3);
}

void* take_elems(Arena* arena, Path path, std::int64_t count) {
  if (path == Path::kMma) return arena->take<std::uint16_t>(count);
  return arena->take<float>(count);
}

void plan_factors(const Dims& dims, Path path, std::int64_t blocks, Arena* arena, Factors* f) {
  const std::int64_t tiles = blocks * dims.HV;
  const std::int64_t K = padded_key(dims, path);
  f->kt = take_elems(arena, path, tiles * kC * K);
  f->kh = take_elems(arena, path, tiles * kC * K);
  f->qt = take_elems(arena, path, tiles * kC * K);
  f->n = take_elems(arena, path, tiles * kC * kC);
  f->a = take_elems(arena, path, tiles * kC * kC);
  f->decay = arena->take<float>(tiles * K);
  f->beta = arena->take<float>(tiles * kC);
}

Tensor tile_tensor(void* data, Elem elem, const Dims& d, std::int64_t rows, std::int64_t cols) {
  Tensor t;
  t.data = data;
  t.elem = elem;
  t.s0 = d.HV * rows * cols;
  t.s1 = rows * cols;
  t.s2 = cols;
  t.s3 = 1;
  t.vector = cols * (elem == Elem::kBF16 ? 2 : 4) % 16 == 0;
  return t;
}

}  // namespace

std::int64_t padded_key(const Dims& dims, Path path) {
  return path == Path::kSimt ? dims.K : mma_heads(dims.K, dims.V).K;
}

bool is_wide(const Dims& dims, Path path) {
  return path == Path::kMma && !has_local(mma_heads(dims.K, dims.V));
}

Path path_of(const Dims& dims, DType io) {
  const bool half = io == DType::kBF16 || io == DType::kF16;
  // GPUs with less shared memory (8.6, 8.9, 12.0: 99 KiB) take the f32 kernels.
  const bool fits =
      mma_heads(dims.K, dims.V).K > 0 && device_limits().shared_bytes >= kMmaSharedBytes;
  return half && fits ? Path::kMma : Path::kSimt;
}

std::size_t plan_chunk_forward(const ChunkForwardParams& params, const core::Problem& problem,
                               void* base, ChunkArgs* args) {
  Arena arena(base);
  plan_map(problem, &arena, &args->map);
  args->factor_columns = static_cast<int>(padded_key(problem.dims, path_of(problem)));
  if (params.kept.data == nullptr) {
    plan_factors(problem.dims, path_of(problem), problem.num_state_blocks, &arena, &args->factors);
  }
  return arena.used();
}

std::size_t kept_bytes_per_block(const Dims& dims, DType io) {
  Arena arena(nullptr);  // the parts of several blocks are rounded up less often, never more
  Factors factors;
  plan_factors(dims, path_of(dims, io), 1, &arena, &factors);
  return arena.used();
}

void plan_kept(const Workspace& kept, const core::Problem& problem, ChunkArgs* args) {
  const auto blocks = static_cast<std::size_t>(problem.num_state_blocks);
  const std::size_t wanted = blocks * kept_bytes_per_block(problem.dims, problem.io);
  if (kept.bytes < wanted) {
    throw Error(ErrorCode::kInvalidArgument,
                "kept: expected at least num_state_blocks * chunk_kept_bytes_per_block = " +
                    std::to_string(wanted) + " bytes, given " + std::to_string(kept.bytes));
  }
  if (reinterpret_cast<std::uintptr_t>(kept.data) % kWorkspaceAlignment != 0) {
    throw Error(ErrorCode::kInvalidArgument,
                "kept: expected data aligned to " + std::to_string(kWorkspaceAlignment) + " bytes");
  }
  Arena arena(kept.data);
  plan_factors(problem.dims, path_of(problem), problem.num_state_blocks, &arena, &args->factors);
}

std::size_t plan_chunk_map(const core::Problem& problem, void* base, ChunkArgs* args) {
  Arena arena(base);
  plan_map(problem, &arena, &args->map);
  plan_segments(problem, &arena, args);
  return arena.used();
}

std::size_t plan_chunk_backward(const ChunkBackwardParams& params, const core::Problem& problem,
                                void* base, ChunkArgs* args) {
  Arena arena(base);
  const Dims& d = problem.dims;
  const Path path = path_of(problem);
  const bool mma = path == Path::kMma;
  const Elem elem = mma ? Elem::kBF16 : Elem::kF32;
  const std::int64_t tiles = problem.num_state_blocks * d.HV;
  const std::int64_t tokens = d.B * d.T;
  plan_map(problem, &arena, &args->map);
  args->factor_columns = static_cast<int>(padded_key(problem.dims, path_of(problem)));
  const bool fused = hopper::backward_reason_against(params, problem).empty();
  if (fused) plan_segments(problem, &arena, args);
  const bool retries = fused && hopper::retries_chunks(params);
  if (retries || (!fused && params.kept.data == nullptr)) {
    plan_factors(d, path, problem.num_state_blocks, &arena, &args->factors);
  }
  if (retries) args->retry = arena.take<std::uint32_t>(tiles);
  if (!params.h_kv.defined()) {
    args->h = tile_tensor(take_elems(&arena, path, tiles * d.K * d.V), elem, d, d.K, d.V);
  }
  args->d_states = tile_tensor(take_elems(&arena, path, tiles * d.K * d.V), elem, d, d.K, d.V);
  args->x = tile_tensor(take_elems(&arena, path, tiles * kC * d.V), elem, d, kC, d.V);
  const bool wide = is_wide(d, path);
  if (wide) {
    args->u_half = arena.take<std::uint16_t>(tiles * kC * d.V);
    args->pairs = arena.take<std::uint16_t>(tiles * 2 * kC * kC);
  } else if (!mma) {
    args->u = arena.take<float>(tiles * kC * d.V);
    args->d_n = arena.take<float>(tiles * kC * kC);
    args->p = arena.take<float>(tiles * kC * kC);
  }
  if (wide || !mma || d.G() > 1) {
    args->dq_part = arena.take<float>(tokens * d.HV * d.K);
    args->dk_part = arena.take<float>(tokens * d.HV * d.K);
  }
  // Partial sums over slices of channels.
  const int slices = static_cast<int>(wide ? ceil_div(d.K, 128) : mma ? 1 : ceil_div(d.K, 32));
  args->beta_parts = slices;
  if (wide || !mma) args->dbeta_part = arena.take<float>(slices * tokens * d.HV);
  if (params.d_dt_bias.defined()) args->dbias_part = arena.take<float>(tiles * d.K);
  args->a_parts = slices;
  if (params.da_log.defined()) args->da_log_part = arena.take<float>(tiles * args->a_parts);
  return arena.used();
}

std::size_t plan_recurrent(const core::Problem& problem, bool norm_is_a_pass, void* base,
                           RecurrentPlan* plan) {
  Arena arena(base);
  const Dims& d = problem.dims;
  if (problem.packed) plan->offsets = arena.take<std::int64_t>(d.N + 1);
  if (norm_is_a_pass) plan->o = arena.take<float>(d.B * d.T * d.HV * d.V);
  return arena.used();
}

std::size_t plan_gate_backward(const GateBackwardParams& params, const core::Problem& problem,
                               void* base, GatePartials* partials) {
  Arena arena(base);
  const Dims& d = problem.dims;
  partials->num_blocks = ceil_div(d.B * d.T, kGateBlockTokens);
  if (params.d_dt_bias.defined()) {
    partials->dbias = arena.take<float>(partials->num_blocks * d.HV * d.K);
  }
  if (params.da_log.defined()) {
    partials->da_log = arena.take<float>(partials->num_blocks * d.HV);
  }
  return arena.used();
}

}  // namespace kda::cuda
