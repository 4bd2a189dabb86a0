#include "model/decode_state.h"

#include <ATen/ops/empty.h>
#include <ATen/ops/index_select.h>

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

std::string state_name(std::size_t layer) {
  return "layers." + std::to_string(layer) + ".state_kv";
}
std::string window_name(std::size_t layer) {
  return "layers." + std::to_string(layer) + ".conv_window";
}

std::vector<std::int64_t> shape_of(const at::Tensor& tensor) { return tensor.sizes().vec(); }

[[noreturn]] void refuse(const std::string& path, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, "decode state " + path + ": " + why);
}

// Reads one tensor of the file, which must be `like` with `rows` rows: checked before memory is
// taken, since the file may claim anything.
at::Tensor read_like(const io::SafetensorsFile& file, const std::string& name,
                     const at::Tensor& like, std::int64_t rows) {
  const io::StTensor& stored = file.info(name);
  const auto wanted = like.scalar_type() == at::kDouble ? io::StDtype::kF64 : io::StDtype::kF32;
  std::vector<std::int64_t> shape = shape_of(like);
  shape[0] = rows;
  if (stored.dtype != wanted || stored.shape != shape) {
    refuse(file.what(), name + " does not fit this model");
  }
  const at::Tensor host = at::empty(shape, like.options().device(at::kCPU));
  std::memcpy(host.mutable_data_ptr(), stored.data.data(), stored.data.size());
  return host.to(like.device());
}

}  // namespace

DecodeState::DecodeState(std::vector<LayerState> layers, std::int64_t num_rows)
    : layers_(std::move(layers)), lengths_(static_cast<std::size_t>(num_rows), 0) {}

std::int64_t DecodeState::num_rows() const { return static_cast<std::int64_t>(lengths_.size()); }

std::int64_t DecodeState::size_bytes() const {
  std::size_t bytes = 0;
  for (const LayerState& layer : layers_) {
    bytes += layer.state_kv.nbytes() + layer.conv_window.nbytes();
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
    const at::Tensor index = index_tensor(rows, layer.state_kv.device());
    layer.state_kv = layer.state_kv.index_select(0, index);
    layer.conv_window = layer.conv_window.index_select(0, index);
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
      layer.state_kv.select(0, row).zero_();
      layer.conv_window.select(0, row).zero_();
    }
    lengths_[static_cast<std::size_t>(row)] = 0;
  }
}

DecodeState DecodeState::clone() const {
  DecodeState copy = *this;
  for (LayerState& layer : copy.layers_) {
    layer.state_kv = layer.state_kv.clone();
    layer.conv_window = layer.conv_window.clone();
  }
  return copy;
}

void DecodeState::advance(std::int64_t row, std::int64_t num_tokens) {
  lengths_[static_cast<std::size_t>(row)] += num_tokens;
}

void DecodeState::save(const std::string& path, const CausalLM& model) const {
  std::vector<io::StSpec> specs;
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    for (const auto& [name, tensor] : {std::pair(state_name(i), layers_[i].state_kv),
                                       std::pair(window_name(i), layers_[i].conv_window)}) {
      const bool wide = tensor.scalar_type() == at::kDouble;
      specs.push_back({name, wide ? io::StDtype::kF64 : io::StDtype::kF32, shape_of(tensor)});
    }
  }
  specs.push_back({"lengths", io::StDtype::kI64, {num_rows()}});
  io::SafetensorsWriter writer(
      path, specs,
      {{"format", kFormat}, {"version", kVersion}, {"model", hex_text(model.fingerprint())}});
  for (std::size_t i = 0; i < layers_.size(); ++i) {
    writer.write_tensor(state_name(i), bytes_of(layers_[i].state_kv.to(at::kCPU).contiguous()));
    writer.write_tensor(window_name(i), bytes_of(layers_[i].conv_window.to(at::kCPU).contiguous()));
  }
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
    layer.state_kv = read_like(file, state_name(i), layer.state_kv, rows);
    layer.conv_window = read_like(file, window_name(i), layer.conv_window, rows);
  }
  return state;
}

}  // namespace kda::model
