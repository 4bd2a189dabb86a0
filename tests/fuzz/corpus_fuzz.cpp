#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>

#include "fuzz_target.h"
#include "io/utf8.h"
#include "text/corpus_reader.h"

namespace {

/// One file per process, in memory where the system has /dev/shm.
const std::filesystem::path& file_for(bool jsonl) {
  static const auto make = [](const char* extension) {
    const std::filesystem::path shm = "/dev/shm";
    const auto folder = std::filesystem::exists(shm) ? shm : std::filesystem::temp_directory_path();
    return folder / ("kda-corpus-fuzz-" + std::to_string(::getpid()) + extension);
  };
  static const auto kText = make(".txt");
  static const auto kJsonl = make(".jsonl");
  return jsonl ? kJsonl : kText;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using kda::fuzz::require;
  for (const bool jsonl : {false, true}) {
    const auto& path = file_for(jsonl);
    std::ofstream(path, std::ios::binary | std::ios::trunc)
        .write(reinterpret_cast<const char*>(data), static_cast<std::streamsize>(size));
    for (const auto mode : {kda::text::InvalidUtf8::kError, kda::text::InvalidUtf8::kReplace}) {
      kda::fuzz::refuse_or_pass([&] {
        kda::text::CorpusOptions options;
        options.invalid_utf8 = mode;
        std::uint64_t bytes = 0;
        const auto stats =
            kda::text::read_corpus({path}, options, [&](const kda::text::CorpusDocument& d) {
              require(!d.text.empty() && kda::io::is_utf8(d.text) && d.line > 0);
              bytes += d.text.size();
              return true;
            });
        require(stats.bytes == bytes);
      });
    }
    std::filesystem::remove(path);
  }
  return 0;
}
