#include "fuzz_target.h"
#include "io/manifest.h"
#include "io/safetensors.h"
#include "io/safetensors_writer.h"
#include "scratch_folder.h"

namespace {

/// Two small tensor files that an index may name.
const kda::fuzz::ScratchFolder& folder() {
  static const kda::fuzz::ScratchFolder kFolder("manifest");
  static const bool kWritten = [] {
    for (const char* name : {"a", "b"}) {
      kda::io::SafetensorsWriter writer(kFolder.path() / (std::string(name) + ".safetensors"),
                                        {{name, kda::io::StDtype::kU8, {2}}});
      writer.write(std::vector<std::byte>(2));
      writer.commit();
    }
    return true;
  }();
  static_cast<void>(kWritten);
  return kFolder;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using kda::fuzz::require;
  const auto& root = folder().path();
  folder().put(std::string(kda::io::kManifestName), data, size);
  kda::fuzz::refuse_or_pass([&] {
    const auto manifest = kda::io::read_manifest(root);
    for (const auto& entry : manifest.files) {
      // Nothing outside the folder is ever looked at.
      const auto path = (root / entry.name).lexically_normal();
      require(path != root && path.lexically_relative(root).begin()->string() != "..");
    }
    const auto faults = kda::io::verify_manifest(root, manifest, kda::io::VerifyLevel::kHashes);
    require(faults.size() <= manifest.files.size());
  });
  const auto index = folder().put("model.safetensors.index.json", data, size);
  kda::fuzz::refuse_or_pass([&] {
    const auto set = kda::io::SafetensorsSet::open(index);
    require(set.names().size() <= 2);
    for (const auto& name : set.names()) {
      require(set.contains(name) && set.info(name).num_elements() == 2);
    }
  });
  return 0;
}
