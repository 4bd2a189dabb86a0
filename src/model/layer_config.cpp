#include "model/layer_config.h"

namespace kda::model {

const char* name_of(ActivationKind kind) {
  switch (kind) {
    case ActivationKind::kSilu:
      return "silu";
    case ActivationKind::kSitu:
      return "situ";
  }
  return "?";
}

const char* name_of(AttnResMode mode) {
  switch (mode) {
    case AttnResMode::kOff:
      return "off";
    case AttnResMode::kBlock:
      return "block";
    case AttnResMode::kFull:
      return "full";
  }
  return "?";
}

}  // namespace kda::model
