#include "model/parameter.h"

namespace kda::model {

const char* name_of(ParameterKind kind) {
  switch (kind) {
    case ParameterKind::kMatrix:
      return "matrix";
    case ParameterKind::kEmbedding:
      return "embedding";
    case ParameterKind::kHead:
      return "head";
    case ParameterKind::kNorm:
      return "norm";
    case ParameterKind::kConv:
      return "conv";
    case ParameterKind::kGate:
      return "gate";
    case ParameterKind::kExperts:
      return "experts";
    case ParameterKind::kQuery:
      return "query";
    case ParameterKind::kRoutingBias:
      return "routing bias";
  }
  return "?";
}

}  // namespace kda::model
