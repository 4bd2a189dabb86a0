/// The list of a folder's files with sizes and hashes; written last, so its presence means that the
/// folder is complete.
#pragma once

#include <cstdint>
#include <filesystem>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "io/json.h"
#include "io/sha256.h"

namespace kda::io {

inline constexpr std::string_view kManifestName = "manifest.json";

struct ManifestEntry {
  std::string name;  ///< relative to the folder, no "..", no leading "/"
  std::uint64_t bytes = 0;
  Sha256Digest sha256{};
};

/// Content of `manifest.json`:
/// `{"format": "kda-manifest", "version": 1, "kind": "...", "info": {...}, "files": [...]}`.
struct Manifest {
  std::string kind;            ///< what the folder is, e.g. "checkpoint", "token-shards"
  Json info = Json::object();  ///< counters and settings of the kind
  std::vector<ManifestEntry> files;
};

/// How much `verify_manifest` reads.
enum class VerifyLevel : std::uint8_t {
  kSizes,   ///< existence and size of each file
  kHashes,  ///< sha256 too
};

/// Hashes `file_names` in `folder`, then writes the manifest atomically. Call after every other
/// file of the folder was committed.
Manifest write_manifest(const std::filesystem::path& folder, std::string_view kind,
                        const std::vector<std::string>& file_names, const Json& info);

/// Parses the manifest of `folder`; Error(kIo) if it is missing or malformed.
Manifest read_manifest(const std::filesystem::path& folder);

/// Compares the folder with its manifest. Returns one sentence per fault, empty if all is well.
std::vector<std::string> verify_manifest(const std::filesystem::path& folder,
                                         const Manifest& manifest, VerifyLevel level);

}  // namespace kda::io
