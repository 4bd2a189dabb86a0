#include "model/weights.h"

#include <ATen/ops/equal.h>
#include <c10/core/GradMode.h>

#include <filesystem>
#include <map>
#include <set>

#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "kda/error.h"
#include "model/tensors.h"
#include "model/weight_file.h"
#include "model/weight_names.h"

namespace kda::model {
namespace {

constexpr std::size_t kMaxNames = 20;

io::StDtype stored_dtype(const Parameter& parameter, StoredType type) {
  if (parameter.tensor.scalar_type() == at::kDouble) return io::StDtype::kF64;
  if (type == StoredType::kBF16 && !is_always_wide(parameter)) return io::StDtype::kBF16;
  return io::StDtype::kF32;
}

std::string text_of(const std::vector<std::int64_t>& shape) {
  std::string text = "[";
  for (const std::int64_t extent : shape) {
    if (text.size() > 1) text += ',';
    text += std::to_string(extent);
  }
  return text + "]";
}

// A_log comes as [HV], [1,1,HV,1] or [n >= HV] with zeros behind.
bool fits_a_log(const WeightFile& file, const std::string& name, std::int64_t heads) {
  const auto& shape = file.shape(name);
  if (shape.size() == 4) return shape == std::vector<std::int64_t>{1, 1, heads, 1};
  if (shape.size() != 1 || shape[0] < heads) return false;
  if (shape[0] == heads) return true;
  const at::Tensor padding = file.read(name).narrow(0, heads, shape[0] - heads);
  return padding.count_nonzero().item<std::int64_t>() == 0;
}

bool fits(const StoredPart& part, const WeightFile& file) {
  if (!file.is_floating(part.name)) return false;
  if (part.name.ends_with(".A_log")) return fits_a_log(file, part.name, part.values.size(0));
  return file.shape(part.name) == part.values.sizes().vec();
}

// All that the file must hold: parameters, then buffers.
std::vector<Parameter> stored_tensors(const CausalLM& model) {
  std::vector<Parameter> all = model.parameters();
  const std::vector<Parameter> buffers = model.buffers();
  all.insert(all.end(), buffers.begin(), buffers.end());
  return all;
}

// In which parts the file holds a parameter: stacked experts may be there whole.
std::vector<StoredPart> parts_in(const WeightFile& file, const Parameter& parameter) {
  if (file.contains(parameter.name)) return {whole(parameter)};
  return released_parts(parameter);
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
void inspect_tied_head(const WeightFile& file, Inspection& found) {
  if (!file.contains(kHeadName) || !file.contains(kEmbeddingName)) return;
  const bool same = file.type_name(kHeadName) == file.type_name(kEmbeddingName) &&
                    file.shape(kHeadName) == file.shape(kEmbeddingName) &&
                    file.is_floating(kHeadName) &&
                    at::equal(file.read(kHeadName), file.read(kEmbeddingName));
  if (same) {
    found.warnings.push_back(std::string(kHeadName) + ": ignored, an equal copy of the embedding");
  } else {
    found.errors.push_back(std::string(kHeadName) +
                           ": differs from the embedding, but the config ties them");
  }
}

void inspect_part(const StoredPart& part, const Parameter& parameter, const WeightFile& file,
                  bool strict, Inspection& found) {
  const std::string& name = part.name;
  if (!file.contains(name)) {
    note(found, strict, name + ": missing");
  } else if (!fits(part, file)) {
    found.errors.push_back(name + ": expected " + shape_text(part.values) +
                           " of a floating type, got " + text_of(file.shape(name)) + " " +
                           file.type_name(name));
  } else if (is_always_wide(parameter) && file.is_narrow(name)) {
    found.warnings.push_back(name + ": stored as " + file.type_name(name) +
                             ", widened to F32; its precision is lost already");
  }
}

Inspection inspect(const std::vector<Parameter>& parameters, const WeightFile& file, bool tied,
                   bool strict) {
  Inspection found;
  std::set<std::string> expected;
  for (const Parameter& parameter : parameters) {
    for (const StoredPart& part : parts_in(file, parameter)) {
      expected.insert(part.name);
      inspect_part(part, parameter, file, strict, found);
    }
  }
  if (tied) {
    inspect_tied_head(file, found);
    expected.insert(kHeadName);
  }
  for (const std::string& name : file.names()) {
    if (!expected.contains(name)) note(found, strict, name + ": not part of this model");
  }
  if (file.num_vision_tensors() > 0) {
    found.warnings.push_back(std::to_string(file.num_vision_tensors()) +
                             " tensors of the vision part skipped (vision_tower.*, "
                             "mm_projector.*)");
  }
  return found;
}

}  // namespace

void save_weights(const CausalLM& model, const std::string& path, const SaveOptions& options) {
  const std::vector<Parameter> parameters = stored_tensors(model);
  std::vector<io::StSpec> specs;
  for (const Parameter& parameter : parameters) {
    specs.push_back(
        {parameter.name, stored_dtype(parameter, options.type), parameter.tensor.sizes().vec()});
  }
  std::map<std::string, std::string> metadata{{"format", "pt"}};
  for (const auto& [key, value] : options.metadata)
    metadata[key] = value;
  io::SafetensorsWriter writer(path, specs, metadata);
  for (std::size_t i = 0; i < parameters.size(); ++i)
    write_values(writer, specs[i], parameters[i].tensor);
  writer.commit();
}

std::vector<std::string> load_weights(CausalLM& model, const std::string& path,
                                      const LoadOptions& options) {
  const WeightFile file = WeightFile::open(path);
  const std::vector<Parameter> parameters = stored_tensors(model);
  Inspection found = inspect(parameters, file, model.config().tie_embeddings, options.strict);
  if (!found.errors.empty()) {
    throw Error(ErrorCode::kInvalidArgument,
                "weights " + path + " do not fit the model:" + listed(found.errors));
  }
  const c10::NoGradGuard no_grad;
  for (const Parameter& parameter : parameters) {
    for (const StoredPart& part : parts_in(file, parameter)) {
      if (!file.contains(part.name)) continue;
      at::Tensor target = part.values;
      const at::Tensor host = file.read(part.name).flatten();
      target.copy_(host.narrow(0, 0, target.numel()).view(target.sizes()));
    }
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
