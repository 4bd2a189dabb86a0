// Schemas of the torch operators `kda::*`.
//
// `_fwd` and `_bwd` are the kernels with their autograd formula; the names without a suffix
// (`chunk`, `recurrent`, `gate`) widen narrow operands first and are what callers use. Optional
// results that were not asked for are empty tensors. Every tensor shape is a function of the input
// shapes alone: `h` of a packed call has the bound T/64 + N as first extent.
#include <torch/library.h>

#include <string>

#include "binding/functional.h"
#include "binding/stack.h"
#include "kda/backend.h"
#include "kda/version.h"

namespace kda::binding {
namespace {

constexpr std::int64_t kMaxThreads = 4096;

std::vector<std::string> backend_names() {
  std::vector<std::string> names;
  for (Backend backend : available_backends())
    names.emplace_back(name_of(backend));
  return names;
}

}  // namespace

TORCH_LIBRARY(kda, m) {
  const std::string sequence = kSequenceSchema;
  const auto define = [&m](const std::string& schema) { m.def(schema.c_str()); };

  define("chunk(" + sequence + ") -> (Tensor o, Tensor final_state)");
  define("chunk_states(" + sequence + ") -> (Tensor o, Tensor final_state, Tensor h)");
  define("chunk_fwd(" + sequence +
         ", ScalarType? h_dtype=None, SymInt kept_bytes=0)"
         " -> (Tensor o, Tensor final_state, Tensor h, Tensor kept)");
  define("chunk_bwd(" + sequence +
         ", Tensor? h=None, Tensor? d_o=None, "
         "Tensor? d_final_state=None, "
         "bool[8] output_mask=[True, True, True, True, True, True, True, True], "
         "Tensor? kept=None)"
         " -> (Tensor dq, Tensor dk, Tensor dv, Tensor dg, Tensor dbeta, Tensor da_log, "
         "Tensor d_dt_bias, Tensor d_initial_state)");

  const std::string token_by_token = sequence + kNormSchema;
  define("recurrent(" + token_by_token + ") -> (Tensor o, Tensor final_state)");
  define("recurrent_fwd(" + token_by_token + ") -> (Tensor o, Tensor final_state)");
  define("recurrent_out(Tensor(a!) out, " + token_by_token + ") -> Tensor final_state");
  const std::string pool = "Tensor slots, Tensor? num_accepted, " + token_by_token;
  define("recurrent_pool(Tensor(a!) pool, " + pool + ") -> Tensor o");
  define("recurrent_pool_out(Tensor(a!) out, Tensor(b!) pool, " + pool + ") -> ()");

  const std::string gate = "float? lower_bound=None, str backend='auto'";
  const std::string raw = "Tensor g_raw, Tensor? a_log=None, Tensor? dt_bias=None, *, " + gate;
  define("gate(" + raw + ") -> Tensor");
  define("gate_fwd(" + raw + ") -> Tensor g_ln");
  define("gate_bwd(Tensor g_raw, Tensor? a_log, Tensor? dt_bias, Tensor dg_ln, *, " + gate +
         ", bool[3] output_mask=[True, True, True])"
         " -> (Tensor dg_raw, Tensor da_log, Tensor d_dt_bias)");
  define(
      "gate_cumsum(Tensor g, Tensor? a_log=None, Tensor? dt_bias=None, "
      "Tensor? cu_seqlens=None, *, bool raw_gate=False, int chunk=64, " +
      gate + ") -> Tensor gcum_log2");

  define("l2norm_fwd(Tensor x, float eps=1e-6, *, str backend='auto') -> (Tensor y, Tensor rstd)");
  define("l2norm_bwd(Tensor x, Tensor dy, float eps=1e-6, *, str backend='auto') -> Tensor dx");

  define("explain(str op, " + sequence +
         ") -> (str chosen, str[] backends, bool[] available, str[] reasons)");
  m.def("backends() -> str[]", backend_names);
  m.def("version() -> str", [] { return std::string(version()); });
  m.def("set_num_threads(int count) -> ()", [](std::int64_t count) {
    TORCH_CHECK_VALUE(count <= kMaxThreads, "count: expected at most ", kMaxThreads, ", given ",
                      count);
    set_num_threads(count > 0 ? static_cast<int>(count) : 0);
  });
  m.def("num_threads() -> int", [] { return static_cast<std::int64_t>(num_threads()); });
}

}  // namespace kda::binding
