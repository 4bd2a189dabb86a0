#include "model/device.h"

#include <c10/core/impl/VirtualGuardImpl.h>

namespace kda::model {

void* current_stream(const at::Tensor& tensor) {
  const c10::impl::VirtualGuardImpl device(tensor.device().type());
  return device.getStream(tensor.device()).native_handle();
}

bool has_kernels(const at::Tensor& tensor) {
  if (tensor.is_cpu()) return true;
  return tensor.is_cuda() &&
         (tensor.scalar_type() == at::kFloat || tensor.scalar_type() == at::kBFloat16);
}

}  // namespace kda::model
