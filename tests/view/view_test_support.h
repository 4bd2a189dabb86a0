/// Arrays and files for tests of the viewer.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "io/io_test_support.h"
#include "io/safetensors_writer.h"
#include "view/array.h"

namespace kda::view::testing {

/// An f32 array and the memory that it looks at.
struct OwnedArray {
  std::vector<float> values;
  io::StTensor tensor;
  Array array;

  OwnedArray(std::vector<float> numbers, std::vector<std::int64_t> shape)
      : values(std::move(numbers)),
        tensor{io::StDtype::kF32, std::move(shape), std::as_bytes(std::span(values))},
        array(array_of(tensor)) {}
  OwnedArray(const OwnedArray&) = delete;
  OwnedArray& operator=(const OwnedArray&) = delete;
};

/// 0, 1, 2, ...
inline std::vector<float> counting(std::size_t count) {
  std::vector<float> values(count);
  std::iota(values.begin(), values.end(), 0.0F);
  return values;
}

/// All elements in row-major order.
inline std::vector<double> elements_of(const Array& array) {
  std::vector<double> all;
  for_each_line(array, [&](std::int64_t offset, std::int64_t stride, std::int64_t count) {
    std::vector<double> line(static_cast<std::size_t>(count));
    read_elements(array, offset, stride, line);
    all.insert(all.end(), line.begin(), line.end());
  });
  return all;
}

/// A safetensors file of f32 tensors 0, 1, 2, ... of these shapes.
inline void write_counting(const std::filesystem::path& path,
                           const std::vector<std::pair<std::string, std::vector<std::int64_t>>>& of,
                           const std::map<std::string, std::string>& metadata = {}) {
  std::vector<io::StSpec> specs;
  for (const auto& [name, shape] : of)
    specs.push_back({name, io::StDtype::kF32, shape});
  io::SafetensorsWriter writer(path, specs, metadata);
  for (const auto& [name, shape] : of) {
    std::size_t count = 1;
    for (const std::int64_t dim : shape)
      count *= static_cast<std::size_t>(dim);
    writer.write_tensor(name, test::bytes_of(counting(count)));
  }
  writer.commit();
}

inline constexpr const char* kTraceText =
    R"({"format": "kda-trace", "version": 1, "tokens": [{"id": 1, "text": "a"}],
 "phases": [{"kind": "forward", "first_node": 0, "last_node": 2},
            {"kind": "backward", "first_node": 2, "last_node": 3}],
 "modules": [{"path": "model", "kind": "model", "parent": ""}],
 "nodes": [
  {"label": "input_1_0:1", "function": "input", "kind": "input", "phase": 0, "module": "",
   "parents": [], "stage_of": null, "outputs": [{"shape": [3], "dtype": "i64"}]},
  {"label": "chunk_kda_1_1:1", "function": "chunk_kda", "kind": "operation", "phase": 0,
   "module": "model", "parents": ["input_1_0:1"], "stage_of": null, "duration_ns": 5},
  {"label": "gradient_1_2:1", "function": "gradient", "kind": "gradient", "phase": 1, "module": "",
   "parents": ["chunk_kda_1_1:1"], "stage_of": null},
  {"label": "chunk_kda_1_1:1/gate", "function": "gate", "kind": "stage", "phase": 0,
   "module": "model", "parents": [], "stage_of": "chunk_kda_1_1:1"}]})";

}  // namespace kda::view::testing
