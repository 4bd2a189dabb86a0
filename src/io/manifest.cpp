#include "io/manifest.h"

#include <system_error>

#include "io/atomic_file.h"
#include "io/config_reader.h"
#include "io/escape.h"
#include "kda/error.h"

namespace kda::io {
namespace {

constexpr std::string_view kFormat = "kda-manifest";
constexpr std::int64_t kVersion = 1;

/// A manifest must not point outside its folder: it is read from files that others may have made.
bool stays_inside(const std::filesystem::path& name) {
  if (name.empty() || name.is_absolute() || !name.has_filename()) return false;
  for (const auto& part : name) {
    if (part == ".." || part == ".") return false;
  }
  return true;
}

}  // namespace

Manifest write_manifest(const std::filesystem::path& folder, std::string_view kind,
                        const std::vector<std::string>& file_names, const Json& info) {
  Manifest manifest{std::string(kind), info, {}};
  Json files = Json::array();
  for (const auto& name : file_names) {
    if (!stays_inside(name)) {
      throw Error(ErrorCode::kInvalidArgument,
                  "manifest: expected a file name inside the folder, got " + escaped(name));
    }
    const FileDigest file = file_digest(folder / name);
    ManifestEntry entry{name, file.bytes, file.sha256};
    files.push_back({{"name", name}, {"bytes", entry.bytes}, {"sha256", to_hex(entry.sha256)}});
    manifest.files.push_back(std::move(entry));
  }
  write_json_file(folder / kManifestName, {{"format", kFormat},
                                           {"version", kVersion},
                                           {"kind", kind},
                                           {"info", info},
                                           {"files", std::move(files)}});
  return manifest;
}

Manifest read_manifest(const std::filesystem::path& folder) {
  const auto path = folder / kManifestName;
  const Json json = read_json_file(path);
  Manifest manifest;
  try {
    ConfigReader reader(json, "");
    if (const auto format = reader.require_string("format"); format != kFormat) {
      reader.fail("format", "expected \"kda-manifest\", got " + escaped(format));
    }
    reader.require_int("version", kVersion, kVersion);
    manifest.kind = reader.require_string("kind");
    if (const Json* info = reader.raw("info")) manifest.info = *info;
    const Json* files = reader.raw("files");
    if (files == nullptr || !files->is_array()) reader.fail("files", "expected an array");
    for (std::size_t i = 0; i < files->size(); ++i) {
      ConfigReader file((*files)[i], "files[" + std::to_string(i) + "]");
      ManifestEntry entry;
      entry.name = file.require_string("name");
      if (!stays_inside(entry.name)) {
        file.fail("name", "expected a name inside the folder, got " + escaped(entry.name));
      }
      entry.bytes = file.require_uint64("bytes");
      entry.sha256 = digest_from_hex(file.require_string("sha256"));
      file.finish();
      manifest.files.push_back(std::move(entry));
    }
    reader.finish();
  } catch (const Error& e) {
    throw Error(ErrorCode::kIo, escaped(path.string()) + ": " + e.what());
  }
  return manifest;
}

std::vector<std::string> verify_manifest(const std::filesystem::path& folder,
                                         const Manifest& manifest, VerifyLevel level) {
  std::vector<std::string> faults;
  for (const auto& entry : manifest.files) {
    const auto path = folder / entry.name;
    std::error_code error;
    const auto bytes = std::filesystem::file_size(path, error);
    if (error) {
      faults.push_back(escaped(path.string()) + ": " + error.message());
    } else if (bytes != entry.bytes) {
      faults.push_back(escaped(path.string()) + ": " + std::to_string(bytes) + " bytes, " +
                       std::to_string(entry.bytes) + " expected");
    } else if (level == VerifyLevel::kHashes) {
      try {
        if (sha256_file(path) != entry.sha256) {
          faults.push_back(escaped(path.string()) + ": content differs from its sha256");
        }
      } catch (const Error& e) {
        faults.emplace_back(e.what());
      }
    }
  }
  return faults;
}

}  // namespace kda::io
