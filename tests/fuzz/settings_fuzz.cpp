#include "fuzz_target.h"
#include "model/config.h"
#include "train/options.h"

/// config.json of a model, and the training options of a run's config.
int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using kda::fuzz::require;
  const std::string text(kda::fuzz::as_text(data, size));
  kda::fuzz::refuse_or_pass([&] {
    const auto config = kda::model::KDAConfig::from_json(text);
    config.validate();  // what was read can be built
    require(kda::model::KDAConfig::from_json(config.to_json()) == config);
  });
  kda::fuzz::refuse_or_pass([&] {
    const auto options = kda::train::options_from_json(text, "fuzz");
    const auto written = kda::train::options_to_json(options);
    require(kda::train::options_to_json(kda::train::options_from_json(written, "again")) ==
            written);
  });
  return 0;
}
