#include "fuzz_target.h"
#include "io/utf8.h"
#include "scratch_folder.h"
#include "text/corpus_reader.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using kda::fuzz::require;
  static const kda::fuzz::ScratchFolder kFolder("corpus");
  for (const char* name : {"text.txt", "lines.jsonl"}) {
    const auto path = kFolder.put(name, data, size);
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
  }
  return 0;
}
