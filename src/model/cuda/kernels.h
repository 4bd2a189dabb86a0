// The launch functions behind DeviceKernels.
#pragma once

#include "model/device_kernels.h"

namespace kda::model::device {

void short_conv_forward(const DeviceConv& args);
void short_conv_backward(const DeviceConv& args);
void rms_norm_forward(const DeviceRmsNorm& args);
void rms_norm_backward(const DeviceRmsNorm& args);
void gated_norm_forward(const DeviceGatedNorm& args);
void gated_norm_backward(const DeviceGatedNorm& args);
void glu_forward(const DeviceGlu& args);
void glu_backward(const DeviceGlu& args);
void cross_entropy_rows(const DeviceCrossEntropy& args);
void attn_res_forward(const DeviceAttnRes& args);
void attn_res_backward(const DeviceAttnRes& args);

}  // namespace kda::model::device
