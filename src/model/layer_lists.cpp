#include "model/layer_lists.h"

#include <string>

namespace kda::model {

std::vector<std::int64_t> read_layer_lists(io::ConfigReader& reader, std::int64_t num_layers) {
  std::vector<std::int64_t> full;
  // 0: in no list; num_layers is checked before, so this is small.
  std::vector<char> owner(static_cast<std::size_t>(num_layers), 0);
  for (const char* key : {"kda_layers", "full_attn_layers"}) {
    if (!reader.has(key)) reader.fail(key, "required: layer numbers, counted from 1");
    std::vector<std::int64_t> layers;
    reader.read_ints(key, layers, 1, num_layers);
    std::int64_t before = 0;
    for (const std::int64_t layer : layers) {
      if (layer <= before) reader.fail(key, "expected rising layer numbers");
      before = layer;
      char& taken = owner[static_cast<std::size_t>(layer - 1)];
      if (taken != 0) {
        reader.fail(key, "layer " + std::to_string(layer) + " is in kda_layers already");
      }
      taken = 1;
    }
    full = std::move(layers);
  }
  for (std::size_t i = 0; i < owner.size(); ++i) {
    if (owner[i] == 0) {
      reader.fail("full_attn_layers", "layer " + std::to_string(i + 1) +
                                          " is in neither kda_layers nor full_attn_layers");
    }
  }
  return full;
}

}  // namespace kda::model
