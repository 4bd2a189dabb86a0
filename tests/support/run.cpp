#include "support/run.h"

#include <algorithm>

#include "kda/ops/recurrent.h"

namespace kda::test {
namespace {

constexpr std::size_t kWorkspaceGuardBytes = 512;  // a multiple of kWorkspaceAlignment
constexpr unsigned char kPoison = 0xff;            // NaN in every floating type

// An uploaded copy of `values`, absent where they are.
DeviceTensor input(const TestBackend& backend, const HostTensor& values, DType dtype,
                   Layout layout) {
  if (!values.defined()) return {};
  DeviceTensor tensor(*backend.memory, dtype, values.shape, layout);
  tensor.upload(values);
  return tensor;
}

// The named outputs of one run.
class OutputSet {
 public:
  OutputSet(const TestBackend& backend, const Case& c) : backend_(backend), case_(c) {}

  TensorView add(Quantity quantity, DType dtype, std::vector<std::int64_t> shape, Layout layout) {
    DeviceTensor& tensor = tensors_[quantity];
    tensor = DeviceTensor(*backend_.memory, dtype, std::move(shape), layout);
    return tensor.view();
  }
  TensorView add_rows(Quantity quantity, DType dtype, std::int64_t heads, std::int64_t columns) {
    return add(quantity, dtype, {case_.B, case_.T, heads, columns}, case_.out_layout);
  }
  const DeviceTensor& operator[](Quantity quantity) const { return tensors_.at(quantity); }

  void collect(RunResult* result, bool keep_bits) const {
    for (const auto& [quantity, tensor] : tensors_) {
      result->values[quantity] = tensor.download();
      if (keep_bits) result->bits[quantity] = tensor.bits();
      const std::string damage = tensor.damage();
      if (!damage.empty()) {
        result->faults.push_back(std::string(name_of(quantity)) + ": " + damage);
      }
    }
  }

 private:
  const TestBackend& backend_;
  const Case& case_;
  std::map<Quantity, DeviceTensor> tensors_;
};

// Calls `op` with the workspace that `workspace_bytes` asks for.
template <typename Params>
void call(const TestBackend& backend, const Params& params, const RunOptions& options,
          void (*op)(const Params&, const Context&),
          std::size_t (*workspace_bytes)(const Params&, const Context&), RunResult* result,
          std::size_t* asked = nullptr) {
  Context context;
  context.backend = backend.backend;
  context.stream = backend.memory->stream();
  const std::size_t bytes = options.give_workspace ? workspace_bytes(params, context) : 0;
  if (asked != nullptr) *asked = bytes;
  const GuardedWorkspace workspace(*backend.memory, bytes);
  context.workspace = workspace.get();
  context.workspace.bytes -= std::min(bytes, options.workspace_shortfall);
  op(params, context);
  const std::string damage = workspace.damage();
  if (!damage.empty()) result->faults.push_back("workspace: " + damage);
}

// Bytes of the factors that the backend can keep for this case.
std::size_t kept_bytes_of(const TestBackend& backend, const Case& c, const OperatorInputs& in) {
  Dims dims;
  dims.B = c.B, dims.T = c.T, dims.N = c.N();
  dims.H = c.H, dims.HV = c.HV, dims.K = c.K, dims.V = c.V;
  return static_cast<std::size_t>(num_state_blocks(in)) *
         chunk_kept_bytes_per_block(dims, backend.io, in.q.space);
}

ChunkForwardParams forward_params(const Case& c, const OperatorInputs& in, DType accum, DType io,
                                  OutputSet* out) {
  ChunkForwardParams p;
  p.in = in;
  p.chunk = c.chunk;
  p.o = out->add_rows(Quantity::kO, io, c.HV, c.V);
  if (c.final_state) {
    p.final_state_kv =
        out->add(Quantity::kFinalState, accum, {c.N(), c.HV, c.K, c.V}, c.state_layout);
  }
  if (c.h_kv) {
    p.h_kv = out->add(Quantity::kH, c.narrow_states ? io : accum,
                      {num_state_blocks(in), c.HV, c.K, c.V}, Layout::kContiguous);
  }
  return p;
}

ChunkBackwardParams backward_params(const Case& c, const DeviceInputs& inputs, DType io,
                                    const std::optional<Quantity>& only, OutputSet* out) {
  const CaseDTypes dtype = dtypes_of(c, io);
  const auto wanted = [&](Quantity quantity) { return only.value_or(quantity) == quantity; };
  ChunkBackwardParams p;
  p.in = inputs.operator_inputs(c);
  p.chunk = c.chunk;
  p.d_o = inputs.d_o.view();
  p.d_final_state_kv = inputs.d_final_state.view();
  if (c.h_kv) p.h_kv = (*out)[Quantity::kH].view();
  if (wanted(Quantity::kDq)) p.dq = out->add_rows(Quantity::kDq, dtype.gradient, c.H, c.K);
  if (wanted(Quantity::kDk)) p.dk = out->add_rows(Quantity::kDk, dtype.gradient, c.H, c.K);
  if (wanted(Quantity::kDv)) p.dv = out->add_rows(Quantity::kDv, dtype.gradient, c.HV, c.V);
  if (wanted(Quantity::kDg)) {
    p.dg = out->add_rows(Quantity::kDg, dtype.gradient_gate_beta, c.HV, c.K);
  }
  if (wanted(Quantity::kDbeta)) {
    p.dbeta = out->add(Quantity::kDbeta, dtype.gradient_gate_beta, {c.B, c.T, c.HV}, c.out_layout);
  }
  if (c.has_a_log() && wanted(Quantity::kDaLog)) {
    p.da_log = out->add(Quantity::kDaLog, dtype.params, {c.HV}, Layout::kContiguous);
  }
  if (c.raw_gate() && wanted(Quantity::kDDtBias)) {
    p.d_dt_bias = out->add(Quantity::kDDtBias, dtype.params, {c.HV, c.K}, Layout::kContiguous);
  }
  if (c.initial_state && wanted(Quantity::kDState0)) {
    p.d_initial_state_kv =
        out->add(Quantity::kDState0, dtype.params, {c.N(), c.HV, c.K, c.V}, c.state_layout);
  }
  return p;
}

}  // namespace

DeviceInputs::DeviceInputs(const TestBackend& backend, const Case& c, const CaseData& data) {
  const CaseDTypes dtype = dtypes_of(c, backend.io);
  q = input(backend, data.q, dtype.io, c.in_layout);
  k = input(backend, data.k, dtype.io, c.in_layout);
  v = input(backend, data.v, dtype.io, c.in_layout);
  g = input(backend, data.g, dtype.gate_beta, c.in_layout);
  beta = input(backend, data.beta, dtype.gate_beta, c.in_layout);
  a_log = input(backend, data.a_log, dtype.params, Layout::kContiguous);
  dt_bias = input(backend, data.dt_bias, dtype.params, Layout::kContiguous);
  state0 = input(backend, data.state0, dtype.params, c.state_layout);
  d_o = input(backend, data.d_o, dtype.io, c.in_layout);
  d_final_state = input(backend, data.d_final_state, dtype.params, c.state_layout);
  if (!c.cu.empty()) {
    cu = DeviceTensor(host_memory(), c.cu_i32 ? DType::kI32 : DType::kI64,
                      {static_cast<std::int64_t>(c.cu.size())}, Layout::kContiguous);
    cu.upload(c.cu);
  }
}

OperatorInputs DeviceInputs::operator_inputs(const Case& c) const {
  OperatorInputs in;
  in.q = q.view();
  in.k = k.view();
  in.v = v.view();
  (c.raw_gate() ? in.g_raw : in.g_ln) = g.view();
  in.gate.a_log = a_log.view();
  in.gate.dt_bias = dt_bias.view();
  if (c.safe_gate()) in.gate.lower_bound_ln = -5.0;
  (c.beta_is_logit() ? in.beta_logit : in.beta) = beta.view();
  in.beta_max = c.beta_max();
  in.qk_l2norm = c.qk_l2norm;
  in.scale = c.scale;
  in.initial_state_kv = state0.view();
  in.cu_seqlens = cu.view();
  return in;
}

std::string DeviceInputs::changed() const {
  std::string names;
  const auto look = [&names](const char* name, const DeviceTensor& tensor) {
    if (tensor.changed()) names += std::string(names.empty() ? "" : ", ") + name;
  };
  look("q", q);
  look("k", k);
  look("v", v);
  look("g", g);
  look("beta", beta);
  look("a_log", a_log);
  look("dt_bias", dt_bias);
  look("initial_state_kv", state0);
  look("cu_seqlens", cu);
  look("d_o", d_o);
  look("d_final_state_kv", d_final_state);
  return names;
}

GuardedWorkspace::GuardedWorkspace(DeviceMemory& memory, std::size_t bytes)
    : memory_(&memory), size_(bytes) {
  if (bytes == 0) return;
  const std::size_t all = bytes + 2 * kWorkspaceGuardBytes;
  allocation_ =
      std::shared_ptr<void>(memory.allocate(all), [&memory](void* data) { memory.release(data); });
  memory.fill(allocation_.get(), kPoison, all);
}

Workspace GuardedWorkspace::get() const {
  if (size_ == 0) return {};
  return {static_cast<unsigned char*>(allocation_.get()) + kWorkspaceGuardBytes, size_};
}

void GuardedWorkspace::poison() {
  if (size_ > 0) memory_->fill(get().data, kPoison, size_);
}

std::string GuardedWorkspace::damage() const {
  if (size_ == 0) return {};
  std::vector<unsigned char> guard(kWorkspaceGuardBytes);
  for (const std::size_t start : {std::size_t{0}, kWorkspaceGuardBytes + size_}) {
    memory_->download(guard.data(), static_cast<unsigned char*>(allocation_.get()) + start,
                      guard.size());
    const auto at = std::find_if(guard.begin(), guard.end(), [](auto x) { return x != kPoison; });
    if (at == guard.end()) continue;
    const auto byte = static_cast<std::ptrdiff_t>(start) + (at - guard.begin()) -
                      static_cast<std::ptrdiff_t>(kWorkspaceGuardBytes);
    return "byte " + std::to_string(byte) + " of " + std::to_string(size_) + " was written";
  }
  return {};
}

RunResult run_chunk(const TestBackend& backend, const Case& c, const CaseData& data,
                    const RunOptions& options) {
  RunResult result;
  const DType accum = dtypes_of(c, backend.io).params;
  const DeviceInputs inputs(backend, c, data);
  OutputSet out(backend, c);
  if (options.keep_factors) {
    result.kept_bytes = kept_bytes_of(backend, c, inputs.operator_inputs(c));
  }
  GuardedWorkspace kept(*backend.memory, result.kept_bytes);
  result.unsupported = refusal_of([&] {
    if (options.forward) {
      ChunkForwardParams p = forward_params(c, inputs.operator_inputs(c), accum, backend.io, &out);
      p.kept = kept.get();
      call(backend, p, options, chunk_forward, chunk_forward_workspace_bytes, &result);
    }
    if (options.backward) {
      if (options.spoil_kept_factors) kept.poison();
      ChunkBackwardParams p = backward_params(c, inputs, backend.io, options.only_gradient, &out);
      p.kept = kept.get();
      call(backend, p, options, chunk_backward, chunk_backward_workspace_bytes, &result,
           &result.backward_workspace);
    }
  });
  if (!kept.damage().empty()) result.faults.push_back("kept factors: " + kept.damage());
  if (!result.unsupported.empty()) return result;
  out.collect(&result, options.keep_bits);
  const std::string changed = inputs.changed();
  if (!changed.empty()) result.faults.push_back("inputs were written: " + changed);
  return result;
}

RunResult run_recurrent(const TestBackend& backend, const Case& c, const CaseData& data,
                        const RunOptions& options) {
  RunResult result;
  const DType accum = dtypes_of(c, backend.io).params;
  const DeviceInputs inputs(backend, c, data);
  OutputSet out(backend, c);
  result.unsupported = refusal_of([&] {
    RecurrentForwardParams p;
    p.in = inputs.operator_inputs(c);
    p.o = out.add_rows(Quantity::kO, backend.io, c.HV, c.V);
    if (c.final_state) {
      p.final_state_kv =
          out.add(Quantity::kFinalState, accum, {c.N(), c.HV, c.K, c.V}, c.state_layout);
    }
    call(backend, p, options, recurrent_forward, recurrent_forward_workspace_bytes, &result);
  });
  if (!result.unsupported.empty()) return result;
  out.collect(&result, options.keep_bits);
  const std::string changed = inputs.changed();
  if (!changed.empty()) result.faults.push_back("inputs were written: " + changed);
  return result;
}

}  // namespace kda::test
