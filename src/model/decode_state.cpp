#include "model/decode_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <utility>

#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "kda/error.h"
#include "model/causal_lm.h"
#include "model/tensors.h"

namespace kda::model {
namespace {

constexpr const char* kFormat = "kda-decode-state";
constexpr const char* kVersion = "1";

std::string hex_text(std::uint64_t value) {
  static constexpr char kDigits[] = "0123456789abcdef";
  std::string text(16, '0');
  for (std::size_t i = 16; i-- > 0; value >>= 4)
    text[i] = kDigits[value & 15U];
  return text;
}

std::span<const std::byte> bytes_of(const at::Tensor& host) {
  return {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()};
}

// The tensors of a layer that exist, with their names in a file.
template <class Layer>
auto tensors_of(Layer& layer, std::size_t index) {
  using Pointer = decltype(&layer.latent);
  const std::string prefix = "layers." + std::to_string(index) + ".";
  std::vector<std::pair<std::string, Pointer>> found;
  if (layer.state_kv.defined()) found.emplace_back(prefix + "state_kv", &layer.state_kv);
  if (layer.conv_window.defined()) found.emplace_back(prefix + "conv_window", &layer.conv_window);
  if (layer.latent.defined()) found.emplace_back(prefix + "latent", &layer.latent);
  return found;
}

io::StDtype stored_type_of(const at::Tensor& tensor) {
  switch (tensor.scalar_type()) {
    case at::kDouble:
      return io::StDtype::kF64;
    case at::kBFloat16:
      return io::StDtype::kBF16;
    default:
      return io::StDtype::kF32;
  }
}

std::vector<std::int64_t> shape_of(const at::Tensor& tensor) { return tensor.sizes().vec(); }

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "decode state " + path + ": " + why);
}

// Reads one tensor of the file, which must have this shape and, but for latents, the dtype of
// `like`: checked before memory is taken, since the file may claim anything. Latents are f32 on the
// host and bf16 elsewhere in the same model, and change without loss.
at::Tensor read_like(const io::SafetensorsFile& file, const std::string& name,
                     const at::Tensor& like, const std::vector<std::int64_t>& shape,
                     bool is_latent) {
  const io::StTensor& stored = file.info(name);
  const bool fits = stored.dtype == stored_type_of(like) ||
                    (is_latent && like.scalar_type() != at::kDouble &&
                     (stored.dtype == io::StDtype::kF32 || stored.dtype == io::StDtype::kBF16));
  if (!fits || stored.shape != shape) {
    refuse(file.what(), name + " does not fit this model");
  }
  const at::ScalarType type = stored.dtype == io::StDtype::kF64    ? at::kDouble
                              : stored.dtype == io::StDtype::kBF16 ? at::kBFloat16
                                                                   : at::kFloat;
  const at::Tensor host = at::empty(shape, at::TensorOptions().dtype(type));
  if (!stored.data.empty()) {
    std::memcpy(host.mutable_data_ptr(), stored.data.data(), stored.data.size());
  }
  return host.to(like.options());
}

}  // namespace

DecodeState::DecodeState(std::vector<LayerState> layers, std::int64_t num_rows)
    : layers_(std::move(layers)), lengths_(static_cast<std::size_t>(num_rows), 0) {}

std::int64_t DecodeState::num_rows() const { return static_cast<std::int64_t>(lengths_.size()); }

std::int64_t DecodeState::size_bytes() const {
  std::size_t bytes = 0;
  for (const LayerState& layer : layers_) {
    for (const auto& [name, tensor] : tensors_of(layer, 0))
      bytes += tensor->nbytes();
  }
  return static_cast<std::int64_t>(bytes);
}

void DecodeState::select_rows(const std::vector<std::int64_t>& rows) {
  std::vector<std::int64_t> lengths;
  for (const std::int64_t row : rows) {
    if (row < 0 || row >= num_rows()) {
      throw Error(ErrorCode::kInvalidArgument, "rows: expected values in [0," +
                                                   std::to_string(num_rows()) + "), got " +
                                                   std::to_string(row));
    }
    lengths.push_back(lengths_[static_cast<std::size_t>(row)]);
  }
  for (LayerState& layer : layers_) {
    for (const auto& [name, tensor] : tensors_of(layer, 0))
      *tensor = tensor->index_select(0, index_tensor(rows, tensor->device()));
  }
  lengths_ = std::move(lengths);
}

void DecodeState::reset_rows(const std::vector<std::int64_t>& rows) {
  for (const std::int64_t row : rows) {
    if (row < 0 || row >= num_rows()) {
      throw Error(ErrorCode::kInvalidArgument, "rows: expected values in [0," +
                                                   std::to_string(num_rows()) + "), got " +
                                                   std::to_string(row));
    }
  }
  for (const std::int64_t row : rows) {
    for (LayerState& layer : layers_) {
      for (const auto& [name, tensor] : tensors_of(layer, 0))
        tensor->select(0, row).zero_();
    }
    lengths_[static_cast<std::size_t>(row)] = 0;
  }
}

DecodeState DecodeState::clone() const {
  DecodeState copy = *this;
  for (LayerState& layer : copy.layers_) {
    for (const auto& [name, tensor] : tensors_of(layer, 0))
      *tensor = tensor->clone();
  }
  return copy;
}

void DecodeState::advance(std::int64_t row, std::int64_t num_tokens) {
  lengths_[static_cast<std::size_t>(row)] += num_tokens;
}

std::int64_t DecodeState::longest() const {
  return lengths_.empty() ? 0 : *std::max_element(lengths_.begin(), lengths_.end());
}

void DecodeState::save(const std::string& path, const CausalLM& model) const {
  std::vector<io::StSpec> specs;
  std::vector<at::Tensor> tensors;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    for (const auto& [name, tensor] : tensors_of(layers_[i], i)) {
      // Of the latents only the places in use.
      const bool latent = tensor == &layers_[i].latent;
      tensors.push_back(latent ? tensor->narrow(1, 0, longest()) : *tensor);
      specs.push_back({name, stored_type_of(*tensor), shape_of(tensors.back())});
    }
  }
  specs.push_back({"lengths", io::StDtype::kI64, {num_rows()}});
  io::SafetensorsWriter writer(
      path, specs,
      {{"format", kFormat}, {"version", kVersion}, {"model", hex_text(model.fingerprint())}});
  for (std::size_t i = 0; i < tensors.size(); ++i)
    writer.write_tensor(specs[i].name, bytes_of(tensors[i].to(at::kCPU).contiguous()));
  writer.write_tensor("lengths", std::as_bytes(std::span(lengths_)));
  writer.commit();
}

DecodeState DecodeState::load(const std::string& path, const CausalLM& model) {
  const auto file = io::SafetensorsFile::open(path);
  const auto& metadata = file.metadata();
  const auto field = [&](const char* key) {
    const auto found = metadata.find(key);
    return found == metadata.end() ? std::string() : found->second;
  };
  if (field("format") != kFormat)
    refuse(path, "is not a decode state (no format \"kda-decode-state\")");
  if (field("version") != kVersion) {
    refuse(path, "has version \"" + field("version") + "\", this program reads " + kVersion);
  }
  const std::string fingerprint = hex_text(model.fingerprint());
  if (field("model") != fingerprint) {
    refuse(path, "belongs to another model (fingerprint " + field("model") + ", this model has " +
                     fingerprint + ")");
  }
  const io::StTensor& lengths = file.info("lengths");
  if (lengths.dtype != io::StDtype::kI64 || lengths.shape.size() != 1) {
    refuse(path, "lengths is not an I64 vector");
  }
  const std::int64_t rows = lengths.shape[0];
  DecodeState state = model.new_state(0);
  state.lengths_.resize(static_cast<std::size_t>(rows));
  std::memcpy(state.lengths_.data(), lengths.data.data(), lengths.data.size());
  for (const std::int64_t tokens : state.lengths_) {
    if (tokens < 0)
      refuse(path, "lengths: expected counts of tokens, got " + std::to_string(tokens));
  }
  for (std::size_t i = 0; i < state.layers_.size(); ++i) {
    LayerState& layer = state.layers_[i];
    for (const auto& [name, tensor] : tensors_of(layer, i)) {
      const bool latent = tensor == &layer.latent;
      std::vector<std::int64_t> shape = shape_of(*tensor);
      shape[0] = rows;
      if (latent) shape[1] = state.longest();
      *tensor = read_like(file, name, *tensor, shape, latent);
    }
  }
  return state;
}

}  // namespace kda::model
