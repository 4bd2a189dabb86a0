/// Weight files under the model's own names, whatever form they are stored in.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "io/safetensors.h"
#include "io/safetensors_writer.h"

namespace kda::model {

/// A safetensors set seen as language-model tensors: the prefix of multimodal checkpoints is taken
/// off, vision tensors are put aside, and a matrix that is stored in MXFP4 (`X_packed` and
/// `X_scale` for `X`) appears under its own name with the shape it unpacks to.
class WeightFile {
 public:
  /// Opens a file, an index or a folder. Throws kIo when it is malformed, two tensors would have
  /// the same name, or the halves of an MXFP4 matrix do not belong together.
  static WeightFile open(const std::string& path);

  bool contains(std::string_view name) const { return tensors_.contains(name); }
  const std::vector<std::int64_t>& shape(std::string_view name) const;
  /// The stored type: "F32", "BF16", ..., "MXFP4".
  std::string type_name(std::string_view name) const;
  /// Whether the values can be read as numbers of a model.
  bool is_floating(std::string_view name) const;
  /// Whether an element has fewer bits than f32.
  bool is_narrow(std::string_view name) const;

  /// The values on the host in their own type, MXFP4 as f32.
  at::Tensor read(std::string_view name) const;

  const std::vector<std::string>& names() const { return names_; }
  std::size_t num_vision_tensors() const { return num_vision_; }

 private:
  struct Stored {
    const io::StTensor* values = nullptr;  // or the packed halves
    const io::StTensor* scales = nullptr;  // MXFP4 only
    std::vector<std::int64_t> shape;
  };

  const Stored& stored(std::string_view name) const;

  explicit WeightFile(io::SafetensorsSet set) : set_(std::move(set)) {}

  io::SafetensorsSet set_;
  std::map<std::string, Stored, std::less<>> tensors_;
  std::vector<std::string> names_;
  std::size_t num_vision_ = 0;
};

/// Writes the next tensor that `writer` was told of, converted to the type of `spec` (F64, F32 or
/// BF16).
void write_values(io::SafetensorsWriter& writer, const io::StSpec& spec, const at::Tensor& values);

}  // namespace kda::model
