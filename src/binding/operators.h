// Typed calls of the operators through the dispatcher, for code above the kernels.
#pragma once

#include <ATen/core/Tensor.h>

#include <array>
#include <optional>
#include <tuple>

#include "binding/functional.h"
#include "binding/stack.h"

namespace kda::binding::operators {

struct ChunkForwardResult {
  at::Tensor o;
  at::Tensor final_state;
  at::Tensor h;
  at::Tensor kept;
};

ChunkForwardResult chunk_fwd(const KdaArguments& arguments, std::optional<at::ScalarType> h_dtype,
                             const c10::SymInt& kept_bytes = 0);

std::array<at::Tensor, 8> chunk_bwd(const KdaArguments& arguments,
                                    const std::optional<at::Tensor>& h,
                                    const std::optional<at::Tensor>& d_o,
                                    const std::optional<at::Tensor>& d_final_state,
                                    const std::array<bool, 8>& output_mask,
                                    const std::optional<at::Tensor>& kept = std::nullopt);

std::tuple<at::Tensor, at::Tensor> recurrent_fwd(const KdaArguments& arguments,
                                                 const OutputNormArguments& norm);
at::Tensor recurrent_pool(const KdaArguments& arguments, const PoolArguments& pool,
                          const OutputNormArguments& norm);

}  // namespace kda::binding::operators
