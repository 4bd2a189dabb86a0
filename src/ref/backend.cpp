// The oracle as a backend: double where the tensors are f64, float otherwise.
#include "ref/chunk.h"
#include "ref/gate.h"
#include "ref/l2norm.h"
#include "ref/recurrent.h"
#include "ref/ref_backend.h"

namespace kda::ref {
namespace {

std::string unsupported(Op, const core::Problem&) { return {}; }  // it serves every legal call

// Calls the float or the double instance of an operator.
template <typename Params, void (*kFloat)(const Params&, const core::Problem&),
          void (*kDouble)(const Params&, const core::Problem&)>
void call(const Params& params, const core::Problem& problem, const Context&) {
  (problem.accum == DType::kF64 ? kDouble : kFloat)(params, problem);
}

}  // namespace

const BackendTable* backend_table() {
  static const BackendTable table = [] {
    BackendTable t;
    t.backend = Backend::kRef;
    t.unsupported = unsupported;
    t.gate_forward = call<GateForwardParams, gate_forward<float>, gate_forward<double>>;
    t.gate_backward = call<GateBackwardParams, gate_backward<float>, gate_backward<double>>;
    t.gate_cumsum_forward =
        call<GateCumsumForwardParams, gate_cumsum_forward<float>, gate_cumsum_forward<double>>;
    t.l2norm_forward = call<L2NormForwardParams, l2norm_forward<float>, l2norm_forward<double>>;
    t.l2norm_backward = call<L2NormBackwardParams, l2norm_backward<float>, l2norm_backward<double>>;
    t.chunk_forward = call<ChunkForwardParams, chunk_forward<float>, chunk_forward<double>>;
    t.chunk_backward = call<ChunkBackwardParams, chunk_backward<float>, chunk_backward<double>>;
    t.recurrent_forward =
        call<RecurrentForwardParams, recurrent_forward<float>, recurrent_forward<double>>;
    return t;
  }();
  return &table;
}

}  // namespace kda::ref
