#include "model/weight_file.h"

#include <ATen/ops/empty.h>

#include <cstring>
#include <span>
#include <utility>

#include "io/escape.h"
#include "io/mxfp4.h"
#include "kda/error.h"
#include "model/tensors.h"
#include "model/weight_names.h"

namespace kda::model {
namespace {

constexpr std::string_view kPacked = "_packed";
constexpr std::string_view kScale = "_scale";

at::ScalarType floating_type_of(io::StDtype dtype) {
  switch (dtype) {
    case io::StDtype::kF64:
      return at::kDouble;
    case io::StDtype::kF32:
      return at::kFloat;
    case io::StDtype::kF16:
      return at::kHalf;
    case io::StDtype::kBF16:
      return at::kBFloat16;
    default:
      return at::ScalarType::Undefined;
  }
}

std::string_view model_name(std::string_view name) {
  if (name.starts_with(kLanguagePrefix)) name.remove_prefix(kLanguagePrefix.size());
  return name;
}

// [rows, columns/2] bytes and [rows, columns/32] scales.
bool is_mxfp4_pair(const io::StTensor& packed, const io::StTensor& scales) {
  return packed.dtype == io::StDtype::kU8 && scales.dtype == io::StDtype::kU8 &&
         packed.shape.size() == 2 && scales.shape.size() == 2 &&
         packed.shape[0] == scales.shape[0] && packed.shape[1] > 0 &&
         packed.shape[1] % (io::kMxfp4Block / 2) == 0 &&
         scales.shape[1] == packed.shape[1] / (io::kMxfp4Block / 2);
}

}  // namespace

WeightFile WeightFile::open(const std::string& path) {
  WeightFile file(io::SafetensorsSet::open(path));
  std::map<std::string, const io::StTensor*, std::less<>> all;
  std::vector<std::string> order;
  for (const std::string& stored : file.set_.names()) {
    const std::string name(model_name(stored));
    if (is_vision_name(name)) {
      ++file.num_vision_;
    } else if (!all.emplace(name, &file.set_.info(stored)).second) {
      throw Error(ErrorCode::kIo, path + ": tensor " + io::escaped(name) +
                                      " stands there twice, with and without the prefix " +
                                      std::string(kLanguagePrefix));
    } else {
      order.push_back(name);
    }
  }
  for (const std::string& name : order) {
    const io::StTensor& values = *all.at(name);
    const bool is_half = name.ends_with(kPacked) || name.ends_with(kScale);
    const std::string base = name.substr(0, name.rfind('_'));
    const auto packed = is_half ? all.find(base + std::string(kPacked)) : all.end();
    const auto scales = is_half ? all.find(base + std::string(kScale)) : all.end();
    if (packed == all.end() || scales == all.end()) {
      file.tensors_[name] = {&values, nullptr, values.shape};
      file.names_.push_back(name);
      continue;
    }
    if (name.ends_with(kScale)) continue;  // told of with its other half
    if (!is_mxfp4_pair(*packed->second, *scales->second)) {
      throw Error(ErrorCode::kIo, path + ": tensors " + io::escaped(packed->first) + " and " +
                                      io::escaped(scales->first) +
                                      " are no MXFP4 matrix: expected U8 [rows,columns/2] and U8 "
                                      "[rows,columns/32]");
    }
    if (all.contains(base)) {
      throw Error(ErrorCode::kIo,
                  path + ": tensor " + io::escaped(base) + " is stored both plain and in MXFP4");
    }
    file.tensors_[base] = {&values, scales->second, {values.shape[0], values.shape[1] * 2}};
    file.names_.push_back(base);
  }
  return file;
}

void write_values(io::SafetensorsWriter& writer, const io::StSpec& spec, const at::Tensor& values) {
  const at::ScalarType type = spec.dtype == io::StDtype::kF64    ? at::kDouble
                              : spec.dtype == io::StDtype::kBF16 ? at::kBFloat16
                                                                 : at::kFloat;
  const at::Tensor host = values.detach().to(at::kCPU, type).contiguous();
  writer.write_tensor(spec.name,
                      {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()});
}

const WeightFile::Stored& WeightFile::stored(std::string_view name) const {
  const auto found = tensors_.find(name);
  if (found == tensors_.end()) {
    throw Error(ErrorCode::kIo, "weights: no tensor " + io::escaped(name));
  }
  return found->second;
}

const std::vector<std::int64_t>& WeightFile::shape(std::string_view name) const {
  return stored(name).shape;
}

std::string WeightFile::type_name(std::string_view name) const {
  const Stored& s = stored(name);
  return s.scales != nullptr ? "MXFP4" : std::string(io::name_of(s.values->dtype));
}

bool WeightFile::is_floating(std::string_view name) const {
  const Stored& s = stored(name);
  return s.scales != nullptr || floating_type_of(s.values->dtype) != at::ScalarType::Undefined;
}

bool WeightFile::is_narrow(std::string_view name) const {
  const Stored& s = stored(name);
  return s.scales != nullptr || io::size_of(s.values->dtype) < sizeof(float);
}

at::Tensor WeightFile::read(std::string_view name) const {
  const Stored& s = stored(name);
  if (s.scales == nullptr) {
    // The mapping may be unaligned, hence the copy.
    at::Tensor host =
        at::empty(s.shape, at::TensorOptions().dtype(floating_type_of(s.values->dtype)));
    if (!s.values->data.empty()) {
      std::memcpy(host.mutable_data_ptr(), s.values->data.data(), s.values->data.size());
    }
    return host;
  }
  at::Tensor host = at::empty(s.shape, at::TensorOptions().dtype(at::kFloat));
  io::dequantise_mxfp4(s.values->data, s.scales->data, s.shape[1],
                       {host.mutable_data_ptr<float>(), static_cast<std::size_t>(host.numel())});
  return host;
}

}  // namespace kda::model
