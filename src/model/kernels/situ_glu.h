/// Host kernels of SiTU-GLU. See model/situ_glu.h. The arguments are SwiGLU's, and two caps.
#pragma once

#include "model/kernels/swiglu.h"

namespace kda::model {

struct SituCaps {
  double gate = 0;    ///< > 0
  double linear = 0;  ///< 0: not capped
};

void situ_forward(const SwigluForward& args, const SituCaps& caps);
void situ_backward(const SwigluBackward& args, const SituCaps& caps);

}  // namespace kda::model
