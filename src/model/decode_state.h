/// What a sequence carries from token to token: recurrent states and convolution windows.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <vector>

namespace kda::model {

class CausalLM;

/// The cache of one KDA layer.
struct LayerState {
  at::Tensor state_kv;  ///< [N,HV,K,V] f32 (f64 model: f64)
  /// [N, W-1, 2*H*K + HV*V] f32: the last W-1 inputs of the q, k and v convolutions, side by side,
  /// oldest first; zeros before the sequence starts.
  at::Tensor conv_window;
};

/// Its size does not grow with the number of tokens.
class DecodeState {
 public:
  DecodeState() = default;
  DecodeState(std::vector<LayerState> layers, std::int64_t num_rows);

  std::int64_t num_rows() const;
  std::int64_t size_bytes() const;

  /// Tokens that each row has consumed.
  const std::vector<std::int64_t>& lengths() const { return lengths_; }

  /// Row n becomes the old row `rows[n]`: beam search, dropping finished rows, duplicating a
  /// prompt. Any length; an index out of range throws kInvalidArgument.
  void select_rows(const std::vector<std::int64_t>& rows);

  /// Makes the rows empty again.
  void reset_rows(const std::vector<std::int64_t>& rows);

  DecodeState clone() const;

  /// A safetensors file, written whole or not at all, bound to the weights of `model`.
  void save(const std::string& path, const CausalLM& model) const;

  /// Throws kIo for a damaged file and kInvalidArgument for the state of another model.
  static DecodeState load(const std::string& path, const CausalLM& model);

  std::vector<LayerState>& layers() { return layers_; }
  const std::vector<LayerState>& layers() const { return layers_; }
  void advance(std::int64_t row, std::int64_t num_tokens);

 private:
  std::vector<LayerState> layers_;
  std::vector<std::int64_t> lengths_;
};

}  // namespace kda::model
