// Takes the place of the units of device code in builds without sm_90a among their architectures.
#include "cuda/hopper/scan.h"
#include "kda/error.h"

namespace kda::cuda::hopper {

void launch_forward(const ChunkArgs&, void*) {
  throw Error(ErrorCode::kInternal, "hopper forward: not in this build");
}

void launch_reverse(const ChunkArgs&, void*) {
  throw Error(ErrorCode::kInternal, "hopper reverse scan: not in this build");
}

void launch_local(const ChunkArgs&, void*) {
  throw Error(ErrorCode::kInternal, "hopper local backward: not in this build");
}

DeviceSupport device_support() { return {}; }

}  // namespace kda::cuda::hopper
