// What libkda_model_cuda.so exports.
#include "kda/version.h"
#include "model/cuda/kernels.h"

extern "C" {

__attribute__((visibility("default"))) const kda::model::DeviceKernels* kda_model_cuda_kernels() {
  namespace device = kda::model::device;
  static const kda::model::DeviceKernels kernels{
      device::short_conv_forward, device::short_conv_backward, device::rms_norm_forward,
      device::rms_norm_backward,  device::gated_norm_forward,  device::gated_norm_backward,
      device::glu_forward,        device::glu_backward,        device::cross_entropy_rows,
      device::attn_res_forward,   device::attn_res_backward};
  return &kernels;
}

__attribute__((visibility("default"))) const char* kda_model_cuda_version() {
  return kda::version();
}
}
