// at::Tensor to the library's views and back, and its errors to torch's.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <exception>
#include <optional>
#include <type_traits>
#include <vector>

#include "binding/functional.h"
#include "kda/backend.h"
#include "kda/error.h"
#include "kda/ops/chunk.h"
#include "kda/tensor_view.h"

namespace kda::binding {

// Throws the c10 error that becomes the right Python type: ValueError (kInvalidArgument),
// NotImplementedError (kUnsupported), torch.OutOfMemoryError, RuntimeError for the rest.
[[noreturn]] void throw_as_torch_error(const Error& error);

// Runs a kernel with the library's errors translated.
template <typename Function>
auto translating_errors(Function&& function) -> std::invoke_result_t<Function> {
  try {
    return function();
  } catch (const Error& error) {
    throw_as_torch_error(error);
  }
}

ConstTensorView input_view(const char* name, const at::Tensor& tensor);
TensorView output_view(const char* name, const at::Tensor& tensor);

// Element type of parameters, states and sums: f64 when `io` is f64, else f32.
at::ScalarType accumulation_type(at::ScalarType io);

// Element type of the states kept at every 64th token. They cost half as much in bf16 on a GPU,
// whose kernels multiply in bf16 anyway; host backends keep them in the accumulation type.
at::ScalarType checkpoint_dtype(const at::Tensor& q);

// Throws kInvalidArgument when `tensor` is given and lies on another device than `like`: the
// library tells host from device memory, but not one GPU from the other.
void check_device(const char* name, const std::optional<at::Tensor>& tensor, const at::Tensor& like,
                  const char* like_name = "q");

// Token offsets may also lie in host memory, whatever the device of the call.
void check_offsets_device(const std::optional<at::Tensor>& cu_seqlens, const at::Tensor& like,
                          const char* like_name = "q");

// The chunk length; numbers beyond int become the largest one, which the library refuses.
int chunk_of(std::int64_t chunk);

// Views of a call's inputs, and the tensors that own their memory.
struct Inputs {
  OperatorInputs in;
  ConstTensorView beta_v;          // a recurrent call whose beta is [B,T,HV,V]
  std::vector<at::Tensor> owners;  // copies made for the CUDA backend's stride rule
};

// Checks what the library cannot know (devices, the layout of states) and makes the views.
Inputs make_inputs(const KdaArguments& arguments, bool recurrent);

// A state in the caller's layout as a kv view. `tensor` must be [N,HV,K,V], or [N,HV,V,K] when
// `v_first`; the error of the latter case shows the extents in the caller's order.
ConstTensorView state_input(const char* name, const at::Tensor& tensor, const KdaArguments& a);
TensorView state_output(const char* name, const at::Tensor& tensor, const KdaArguments& a);

// Number of sequences N of a call.
std::int64_t num_sequences(const KdaArguments& arguments);

// Where a call runs: backend by name, current stream of the tensors' device. `workspace_bytes` asks
// the library; only device calls use it, host backends allocate for themselves.
struct Launch {
  Context context;
  at::Tensor workspace;
};
Launch make_launch(const std::string& backend, const at::Tensor& on);
void reserve_workspace(Launch* launch, const at::Tensor& on, std::size_t bytes);
bool wants_workspace(const at::Tensor& on);

}  // namespace kda::binding
