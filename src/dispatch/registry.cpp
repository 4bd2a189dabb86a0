#include "dispatch/registry.h"

#include <array>
#include <atomic>
#include <string>

#include "core/check.h"
#include "cpu/cpu_backend.h"
#include "ref/ref_backend.h"

namespace kda {
namespace {

// The order kAuto tries. The oracle comes last: it serves what nothing faster does.
constexpr std::array<Backend, 3> kOrder = {Backend::kCuda, Backend::kCpu, Backend::kRef};

// Only the CUDA slot changes after start-up, when its library is loaded.
std::atomic<const BackendTable*>& slot(Backend backend) {
  static std::atomic<const BackendTable*> ref{ref::backend_table()};
  static std::atomic<const BackendTable*> cpu{cpu::backend_table()};
  static std::atomic<const BackendTable*> cuda{nullptr};
  switch (backend) {
    case Backend::kRef:
      return ref;
    case Backend::kCpu:
      return cpu;
    default:
      return cuda;
  }
}

std::string reason_against(const BackendTable* table, Op op, const core::Problem& problem) {
  if (table == nullptr) {
    return "not loaded (this build or process has no CUDA library of kda)";
  }
  const bool on_cuda = problem.space == MemorySpace::kCuda;
  if (on_cuda != (table->backend == Backend::kCuda)) {
    return std::string("the tensors are in ") + name_of(problem.space) + " memory";
  }
  return table->unsupported(op, problem);
}

}  // namespace

const char* name_of(Op op) {
  switch (op) {
    case Op::kGateForward:
      return "gate_forward";
    case Op::kGateBackward:
      return "gate_backward";
    case Op::kGateCumsumForward:
      return "gate_cumsum_forward";
    case Op::kL2NormForward:
      return "l2norm_forward";
    case Op::kL2NormBackward:
      return "l2norm_backward";
    case Op::kChunkForward:
      return "chunk_forward";
    case Op::kChunkBackward:
      return "chunk_backward";
    case Op::kRecurrentForward:
      return "recurrent_forward";
  }
  return "?";
}

void register_backend(const BackendTable* table) {
  if (table == nullptr || table->backend == Backend::kAuto) {
    throw Error(ErrorCode::kInternal, "register_backend: a table with a concrete backend expected");
  }
  slot(table->backend).store(table);
}

std::vector<Backend> available_backends() {
  std::vector<Backend> present;
  for (Backend backend : kOrder) {
    if (slot(backend).load() != nullptr) present.push_back(backend);
  }
  return present;
}

namespace dispatch {

BackendChoice explain(Op op, const core::Problem& problem) {
  BackendChoice choice;
  for (Backend backend : kOrder) {
    const BackendTable* table = slot(backend).load();
    std::string reason = reason_against(table, op, problem);
    if (reason.empty() && choice.chosen == Backend::kAuto) choice.chosen = backend;
    choice.verdicts.push_back({backend, table != nullptr, std::move(reason)});
  }
  return choice;
}

const BackendTable* cuda_table() { return slot(Backend::kCuda).load(); }

const BackendTable& select(Op op, const core::Problem& problem, const Context& context) {
  if (context.backend != Backend::kAuto) {
    const BackendTable* table = slot(context.backend).load();
    const std::string reason = reason_against(table, op, problem);
    if (reason.empty()) return *table;
    core::fail_unsupported(std::string(name_of(op)) + ": backend " + name_of(context.backend) +
                           " cannot serve this call: " + reason);
  }
  std::string reasons;
  for (Backend backend : kOrder) {
    const BackendTable* table = slot(backend).load();
    const std::string reason = reason_against(table, op, problem);
    if (reason.empty()) return *table;
    if (!reasons.empty()) reasons += "; ";
    reasons += std::string(name_of(backend)) + ": " + reason;
  }
  core::fail_unsupported(std::string(name_of(op)) + ": no backend can serve this call: " + reasons);
}

}  // namespace dispatch
}  // namespace kda
