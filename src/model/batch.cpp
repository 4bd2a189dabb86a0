#include "model/batch.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/arange.h>

#include <algorithm>
#include <string>

#include "kda/error.h"
#include "model/sequences.h"
#include "model/tensors.h"

namespace kda::model {
namespace {

[[noreturn]] void refuse(const std::string& text) {
  throw Error(ErrorCode::kInvalidArgument, text);
}

}  // namespace

std::int64_t PackedIds::num_tokens() const { return ids.numel(); }

std::int64_t PackedIds::num_sequences() const {
  if (cu_seqlens.defined()) return cu_seqlens.numel() - 1;
  return ids.dim() == 2 ? ids.size(0) : 1;
}

at::Tensor PackedIds::boundaries() const {
  if (cu_seqlens.defined()) return cu_seqlens;
  const std::int64_t length = ids.size(-1);
  return at::arange(0, num_sequences() + 1, at::TensorOptions().dtype(at::kLong)) * length;
}

PackedIds pack(const std::vector<std::vector<std::int64_t>>& sequences) {
  if (sequences.empty()) refuse("prompts: expected at least one, got none");
  std::vector<std::int64_t> ids;
  std::vector<std::int64_t> cu{0};
  for (std::size_t n = 0; n < sequences.size(); ++n) {
    if (sequences[n].empty()) {
      refuse("prompts: expected at least one token, got prompt " + std::to_string(n) +
             " without any; begin it with the BOS token");
    }
    ids.insert(ids.end(), sequences[n].begin(), sequences[n].end());
    cu.push_back(static_cast<std::int64_t>(ids.size()));
  }
  return {index_tensor(ids), index_tensor(cu)};
}

void check(const PackedIds& packed, std::int64_t vocab_size) {
  const at::Tensor& ids = packed.ids;
  if (!ids.defined() || ids.scalar_type() != at::kLong || ids.dim() < 1 || ids.dim() > 2) {
    refuse("ids: expected an i64 tensor [tokens] or [B,T], got " +
           (ids.defined() ? std::string(c10::toString(ids.scalar_type())) + shape_text(ids)
                          : std::string("nothing")));
  }
  const at::Tensor host = ids.to(at::kCPU).contiguous();
  const auto values = host_span(host);
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values[i] < 0 || values[i] >= vocab_size) {
      refuse("ids: expected values in [0," + std::to_string(vocab_size) + "), got " +
             std::to_string(values[i]) + " at token " + std::to_string(i));
    }
  }
  if (!packed.cu_seqlens.defined()) return;
  const at::Tensor& cu = packed.cu_seqlens;
  if (cu.scalar_type() != at::kLong || cu.dim() != 1 || cu.numel() < 2 || !cu.is_cpu() ||
      !cu.is_contiguous()) {
    refuse("cu_seqlens: expected a contiguous i64 host tensor [N+1], got " +
           std::string(c10::toString(cu.scalar_type())) + shape_text(cu) + " on " +
           cu.device().str());
  }
  const auto offsets = host_span(cu);
  const auto tokens = static_cast<std::int64_t>(values.size());
  if (offsets.front() != 0 || offsets.back() != tokens ||
      !std::is_sorted(offsets.begin(), offsets.end())) {
    refuse("cu_seqlens: expected offsets rising from 0 to the number of tokens " +
           std::to_string(tokens) + ", got " + std::to_string(offsets.front()) + " ... " +
           std::to_string(offsets.back()));
  }
}

Sequences::Sequences(const at::Tensor& cu_seqlens, c10::Device device)
    : cu_host(cu_seqlens), cu_device(cu_seqlens.to(device)) {
  const auto offsets = host_span(cu_host);
  num_sequences = static_cast<std::int64_t>(offsets.size()) - 1;
  num_tokens = offsets.back();
  if (cu_device.is_cuda()) cu_i32 = cu_device.to(at::kInt);
  for (std::size_t n = 0; n + 1 < offsets.size(); ++n) {
    longest = std::max(longest, offsets[n + 1] - offsets[n]);
  }
  one_token_each = num_tokens == num_sequences && num_sequences > 0;
  for (std::size_t n = 0; one_token_each && n + 1 < offsets.size(); ++n) {
    one_token_each = offsets[n + 1] - offsets[n] == 1;
  }
}

}  // namespace kda::model
