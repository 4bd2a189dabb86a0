#include <string>
#include <vector>

#include "fuzz_target.h"
#include "io/utf8.h"
#include "text/tokenizer.h"

namespace {

const std::string& sample() {
  static const std::string kText =
      "The quick  brown fox\n\t１２３ ，？！今天天气很好 ▁▁ é \xF0\x9F\x98\x80 aaaa abab </s> "
      "<0x41>" +
      std::string(200, 'a') + std::string("\0", 1);
  return kText;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using kda::fuzz::require;
  kda::fuzz::refuse_or_pass([&] {
    const auto tokenizer = kda::text::Tokenizer::from_bytes(kda::fuzz::as_text(data, size), "fuzz");
    std::vector<std::int32_t> all;
    for (std::int32_t id = 0; id < tokenizer.vocab_size(); ++id)
      all.push_back(id);
    require(kda::io::is_utf8(tokenizer.decode(all)));
    const auto ids = tokenizer.encode(sample());
    for (const auto id : ids)
      require(id >= 0 && id < tokenizer.vocab_size());
    const std::string text = tokenizer.decode(ids);
    require(kda::io::is_utf8(text));
    if (tokenizer.info().lossless) require(text == sample());
  });
  return 0;
}
