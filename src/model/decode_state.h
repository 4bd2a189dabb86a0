/// What a sequence carries from token to token: recurrent states, convolution windows, latents.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <span>
#include <string>
#include <vector>

namespace kda::model {

class CausalLM;

/// The cache of one layer: the first two of a KDA layer, the last of an MLA layer.
struct LayerState {
  at::Tensor state_kv;  ///< [N,HV,K,V] f32 (f64 model: f64)
  /// [N, W-1, 2*H*K + HV*V] f32: the last W-1 inputs of the q, k and v convolutions, side by side,
  /// oldest first; zeros before the sequence starts.
  at::Tensor conv_window;
  /// [N, capacity, rho+r]: normed latent and shared key of each token, zeros behind a row's last;
  /// f32 (f64) on the host, the activation dtype elsewhere. The capacity doubles when it is full.
  at::Tensor latent;
};

/// One layer's part of a decode state, for the sequences of one call.
struct LayerCache {
  LayerState* state = nullptr;
  at::Tensor rows;  ///< [N] i64: which rows the sequences are, in decode steps only; undefined: all
  std::span<const std::int64_t> host_rows;  ///< the same on the host; empty: all rows, in order
  std::span<const std::int64_t> past;       ///< [N] tokens that each has consumed before this call

  std::int64_t row(std::size_t sequence) const {
    return host_rows.empty() ? static_cast<std::int64_t>(sequence) : host_rows[sequence];
  }
};

/// KDA layers need the same space for any number of tokens, MLA layers a latent for each.
class DecodeState {
 public:
  DecodeState() = default;
  DecodeState(std::vector<LayerState> layers, std::int64_t num_rows);

  std::int64_t num_rows() const;
  std::int64_t size_bytes() const;

  /// Tokens that each row has consumed.
  const std::vector<std::int64_t>& lengths() const { return lengths_; }

  /// Tokens of the row that has consumed most.
  std::int64_t longest() const;

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
