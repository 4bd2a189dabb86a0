#include "cuda/plan.h"

#include "cuda/hopper/scan.h"
#include "cuda/tiling/instances.h"

namespace kda::cuda {
namespace {

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

void* take_elems(Arena* arena, Path path, std::int64_t count) {
  if (path == Path::kMma) return arena->take<std::uint16_t>(count);
  return arena->take<float>(count);
}

void plan_factors(const core::Problem& problem, Path path, Arena* arena, Factors* f) {
  const std::int64_t tiles = problem.num_state_blocks * problem.dims.HV;
  const std::int64_t K = padded_head(problem.dims.K, path);
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

std::int64_t padded_head(std::int64_t dim, Path path) {
  return path == Path::kSimt ? dim : mma_head(dim);
}

Path path_of(const core::Problem& problem) {
  const bool half = problem.io == DType::kBF16 || problem.io == DType::kF16;
  const bool fits = mma_head(problem.dims.K) > 0 && mma_head(problem.dims.V) > 0;
  return half && fits ? Path::kMma : Path::kSimt;
}

std::size_t plan_chunk_forward(const core::Problem& problem, void* base, ChunkArgs* args) {
  Arena arena(base);
  plan_map(problem, &arena, &args->map);
  plan_factors(problem, path_of(problem), &arena, &args->factors);
  return arena.used();
}

std::size_t plan_chunk_map(const core::Problem& problem, void* base, ChunkArgs* args) {
  Arena arena(base);
  plan_map(problem, &arena, &args->map);
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
  if (!hopper::backward_reason_against(params, problem).empty()) {
    plan_factors(problem, path, &arena, &args->factors);
  }
  if (!params.h_kv.defined()) {
    args->h = tile_tensor(take_elems(&arena, path, tiles * d.K * d.V), elem, d, d.K, d.V);
  }
  args->d_states = tile_tensor(take_elems(&arena, path, tiles * d.K * d.V), elem, d, d.K, d.V);
  args->x = tile_tensor(take_elems(&arena, path, tiles * kC * d.V), elem, d, kC, d.V);
  if (!mma) {
    args->u = arena.take<float>(tiles * kC * d.V);
    args->d_n = arena.take<float>(tiles * kC * kC);
    args->p = arena.take<float>(tiles * kC * kC);
  }
  if (!mma || d.G() > 1) {
    args->dq_part = arena.take<float>(tokens * d.HV * d.K);
    args->dk_part = arena.take<float>(tokens * d.HV * d.K);
  }
  args->beta_parts = mma ? 1 : static_cast<int>(ceil_div(d.K, 32));
  if (!mma) args->dbeta_part = arena.take<float>(args->beta_parts * tokens * d.HV);
  if (params.d_dt_bias.defined()) args->dbias_part = arena.take<float>(tiles * d.K);
  args->a_parts = mma ? 1 : static_cast<int>(ceil_div(d.K, 32));
  if (params.da_log.defined()) args->da_log_part = arena.take<float>(tiles * args->a_parts);
  return arena.used();
}

std::size_t plan_recurrent(const core::Problem& problem, void* base, std::int64_t** offsets) {
  Arena arena(base);
  if (problem.packed) *offsets = arena.take<std::int64_t>(problem.dims.N + 1);
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
