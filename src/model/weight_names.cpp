#include "model/weight_names.h"

namespace kda::model {

StoredPart whole(const Parameter& parameter) { return {parameter.name, parameter.tensor.detach()}; }

std::vector<StoredPart> released_parts(const Parameter& parameter) {
  if (parameter.kind != ParameterKind::kExperts) return {whole(parameter)};
  const bool is_input = parameter.name.ends_with("gate_up_proj");
  const std::string prefix = parameter.name.substr(0, parameter.name.rfind('.') + 1);
  const at::Tensor all = parameter.tensor.detach();
  std::vector<StoredPart> parts;
  for (std::int64_t e = 0; e < all.size(0); ++e) {
    const std::string expert = prefix + std::to_string(e) + ".";
    const at::Tensor values = all.select(0, e);
    if (is_input) {
      const std::int64_t half = values.size(0) / 2;
      parts.push_back({expert + "w1.weight", values.narrow(0, 0, half)});
      parts.push_back({expert + "w3.weight", values.narrow(0, half, half)});
    } else {
      parts.push_back({expert + "w2.weight", values});
    }
  }
  return parts;
}

bool is_vision_name(std::string_view name) {
  return name.starts_with("vision_tower.") || name.starts_with("mm_projector.");
}

bool is_always_wide(const Parameter& parameter) {
  return parameter.kind == ParameterKind::kGate || parameter.kind == ParameterKind::kRoutingBias;
}

}  // namespace kda::model
