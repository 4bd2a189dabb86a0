// kda::explain: which backend would serve a call, and why not the others.
#include <ATen/ops/empty.h>
#include <torch/library.h>

#include <string>

#include "binding/convert.h"
#include "binding/stack.h"
#include "binding/widen.h"
#include "kda/ops/recurrent.h"

namespace kda::binding {
namespace {

BackendChoice choice_for(const std::string& op, const KdaArguments& a) {
  const Inputs inputs = make_inputs(a, op == "recurrent");
  if (op == "chunk_bwd") {
    ChunkBackwardParams params;
    params.in = inputs.in;
    params.chunk = chunk_of(a.chunk);
    return explain_chunk_backward(params);
  }
  const at::Tensor o = at::empty(a.v.sizes(), a.q.options());  // the checks want an output
  if (op == "chunk_fwd") {
    ChunkForwardParams params;
    params.in = inputs.in;
    params.chunk = chunk_of(a.chunk);
    params.o = output_view("o", o);
    return explain_chunk_forward(params);
  }
  if (op == "recurrent") {
    RecurrentForwardParams params;
    params.in = inputs.in;
    params.beta_v = inputs.beta_v;
    params.o = output_view("o", o);
    return explain_recurrent_forward(params);
  }
  throw Error(ErrorCode::kInvalidArgument,
              "op: expected chunk_fwd, chunk_bwd or recurrent, given '" + op + "'");
}

void explain(const c10::OperatorHandle&, Stack* stack) {
  translating_errors([&] {
    const std::size_t count = kSequenceCount + 1;
    const std::size_t first = stack->size() - count;
    const std::string op = (*stack)[first].toStringRef();
    const BackendChoice choice = choice_for(op, widened(arguments_at(*stack, first + 1)));
    c10::List<std::string> names;
    c10::List<bool> available;
    c10::List<std::string> reasons;
    for (const BackendVerdict& verdict : choice.verdicts) {
      names.push_back(name_of(verdict.backend));
      available.push_back(verdict.available);
      reasons.push_back(verdict.reason);
    }
    const std::string chosen = choice.chosen == Backend::kAuto ? "" : name_of(choice.chosen);
    return_values(stack, count, chosen, names, available, reasons);
  });
}

}  // namespace

TORCH_LIBRARY_IMPL(kda, CompositeImplicitAutograd, m) {
  m.impl("explain", torch::CppFunction::makeFromBoxedFunction<&explain>());
}

}  // namespace kda::binding
