/// The lists of layer numbers in JSON configs.
#pragma once

#include <cstdint>
#include <vector>

#include "io/config_reader.h"

namespace kda::model {

/// Reads "kda_layers" and "full_attn_layers" (counted from 1) of `reader`, checks that each rises
/// and that together they are every layer of 1..num_layers once, and returns the latter. Throws
/// kInvalidArgument naming the key.
std::vector<std::int64_t> read_layer_lists(io::ConfigReader& reader, std::int64_t num_layers);

}  // namespace kda::model
