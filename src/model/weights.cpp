#include "model/weights.h"

#include <ATen/ops/empty.h>
#include <c10/core/GradMode.h>

#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "io/atomic_file.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "kda/error.h"
#include "model/tensors.h"

namespace kda::model {
namespace {

constexpr const char* kHeadName = "lm_head.weight";
constexpr const char* kEmbeddingName = "model.embed_tokens.weight";
constexpr std::size_t kMaxNames = 20;

// Gate parameters decide decays close to 1, which bf16 cannot tell apart.
bool is_always_wide(const Parameter& parameter) { return parameter.kind == ParameterKind::kGate; }

io::StDtype stored_dtype(const Parameter& parameter, StoredType type) {
  if (parameter.tensor.scalar_type() == at::kDouble) return io::StDtype::kF64;
  if (type == StoredType::kBF16 && !is_always_wide(parameter)) return io::StDtype::kBF16;
  return io::StDtype::kF32;
}

at::ScalarType scalar_of(io::StDtype dtype) {
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

std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) {
    if (text.size() > 1) text += ',';
    text += std::to_string(extent);
  }
  return text + "]";
}

// The file's tensor on the host, in its own dtype. The mapping may be unaligned, hence the copy.
at::Tensor to_host(const io::StTensor& stored) {
  at::Tensor host = at::empty(stored.shape, at::TensorOptions().dtype(scalar_of(stored.dtype)));
  if (!stored.data.empty()) {
    std::memcpy(host.mutable_data_ptr(), stored.data.data(), stored.data.size());
  }
  return host;
}

// A_log comes as [HV], [1,1,HV,1] or [n >= HV] with zeros behind.
bool fits_a_log(const io::StTensor& stored, std::int64_t heads) {
  const auto& shape = stored.shape;
  if (shape.size() == 4) return shape == std::vector<std::int64_t>{1, 1, heads, 1};
  if (shape.size() != 1 || shape[0] < heads) return false;
  if (shape[0] == heads) return true;
  const at::Tensor host = to_host(stored);
  return host.narrow(0, heads, shape[0] - heads).count_nonzero().item<std::int64_t>() == 0;
}

bool fits(const Parameter& parameter, const io::StTensor& stored) {
  if (scalar_of(stored.dtype) == at::ScalarType::Undefined) return false;
  const auto wanted = parameter.tensor.sizes().vec();
  if (parameter.name.ends_with(".A_log")) return fits_a_log(stored, wanted[0]);
  return stored.shape == wanted;
}

std::string listed(const std::vector<std::string>& problems) {
  std::string text;
  for (std::size_t i = 0; i < problems.size() && i < kMaxNames; ++i)
    text += "\n  " + problems[i];
  if (problems.size() > kMaxNames) {
    text += "\n  and " + std::to_string(problems.size() - kMaxNames) + " more";
  }
  return text;
}

// What a look at names and shapes finds, before anything is copied.
struct Inspection {
  std::vector<std::string> errors;
  std::vector<std::string> warnings;
};

void note(Inspection& found, bool is_error, const std::string& text) {
  (is_error ? found.errors : found.warnings).push_back(text);
}

// A tied model may come with its head: an equal copy is dropped, another one is an error.
void inspect_tied_head(const io::SafetensorsSet& file, Inspection& found) {
  if (!file.contains(kHeadName) || !file.contains(kEmbeddingName)) return;
  const io::StTensor& head = file.info(kHeadName);
  const io::StTensor& embedding = file.info(kEmbeddingName);
  const bool same = head.dtype == embedding.dtype && head.shape == embedding.shape &&
                    std::memcmp(head.data.data(), embedding.data.data(), head.data.size()) == 0;
  if (same) {
    found.warnings.push_back(std::string(kHeadName) + ": ignored, an equal copy of the embedding");
  } else {
    found.errors.push_back(std::string(kHeadName) +
                           ": differs from the embedding, but the config ties them");
  }
}

Inspection inspect(const std::vector<Parameter>& parameters, const io::SafetensorsSet& file,
                   bool tied, bool strict) {
  Inspection found;
  std::set<std::string> expected;
  for (const Parameter& parameter : parameters) {
    const std::string& name = parameter.name;
    expected.insert(name);
    if (!file.contains(name)) {
      note(found, strict, name + ": missing");
      continue;
    }
    const io::StTensor& stored = file.info(name);
    if (!fits(parameter, stored)) {
      found.errors.push_back(name + ": expected " + shape_text(parameter.tensor) +
                             " of a floating type, got " + text_of(stored.shape) + " " +
                             std::string(io::name_of(stored.dtype)));
    } else if (is_always_wide(parameter) && io::size_of(stored.dtype) < 4) {
      found.warnings.push_back(name + ": stored as " + std::string(io::name_of(stored.dtype)) +
                               ", widened to F32; its precision is lost already");
    }
  }
  if (tied) {
    inspect_tied_head(file, found);
    expected.insert(kHeadName);
  }
  for (const std::string& name : file.names()) {
    if (!expected.contains(name)) note(found, strict, name + ": not part of this model");
  }
  return found;
}

}  // namespace

void save_weights(const CausalLM& model, const std::string& path, const SaveOptions& options) {
  const std::vector<Parameter> parameters = model.parameters();
  std::vector<io::StSpec> specs;
  for (const Parameter& parameter : parameters) {
    specs.push_back(
        {parameter.name, stored_dtype(parameter, options.type), parameter.tensor.sizes().vec()});
  }
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  for (const auto& [key, value] : options.metadata)
    metadata[key] = value;
  io::SafetensorsWriter writer(path, specs, metadata);
  for (std::size_t i = 0; i < parameters.size(); ++i) {
    const at::Tensor host =
        parameters[i].tensor.detach().to(at::kCPU, scalar_of(specs[i].dtype)).contiguous();
    writer.write_tensor(parameters[i].name,
                        {static_cast<const std::byte*>(host.const_data_ptr()), host.nbytes()});
  }
  writer.commit();
}

std::vector<std::string> load_weights(CausalLM& model, const std::string& path,
                                      const LoadOptions& options) {
  const auto file = io::SafetensorsSet::open(path);
  const std::vector<Parameter> parameters = model.parameters();
  Inspection found = inspect(parameters, file, model.config().tie_embeddings, options.strict);
  if (!found.errors.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "weights " + path + " do not fit the model:" + listed(found.errors));
  }
  const c10::NoGradGuard no_grad;
  for (const Parameter& parameter : parameters) {
    if (!file.contains(parameter.name)) continue;
    at::Tensor target = parameter.tensor;
    const at::Tensor host = to_host(file.info(parameter.name)).flatten();
    target.copy_(host.narrow(0, 0, target.numel()).view(target.sizes()));
  }
  return std::move(found.warnings);
}

void save_model(const CausalLM& model, const std::string& folder, const SaveOptions& options) {
  std::error_code error;
  std::filesystem::create_directories(folder, error);
  if (error) {
    throw Error(ErrorCode::kIo, "cannot create folder " + folder + ": " + error.message());
  }
  save_weights(model, (std::filesystem::path(folder) / "model.safetensors").string(), options);
  save_config(model.config(), (std::filesystem::path(folder) / "config.json").string());
}

CausalLM load_model(const std::string& folder, const ModelOptions& options,
                    std::vector<std::string>* warnings) {
  const KDAConfig config = load_config((std::filesystem::path(folder) / "config.json").string());
  CausalLM model(config, options);
  std::vector<std::string> notes;
  try {
    notes = load_weights(model, folder);
  } catch (const Error& error) {
    if (error.code() != ErrorCode::kInvalidArgument) throw;
    // The config is of the same folder: it is the folder that is wrong, not the caller.
    throw Error(ErrorCode::kIo, error.what());
  }
  if (warnings != nullptr) warnings->insert(warnings->end(), notes.begin(), notes.end());
  return model;
}

}  // namespace kda::model
