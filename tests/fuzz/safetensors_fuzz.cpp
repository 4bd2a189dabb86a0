#include "fuzz_target.h"
#include "io/safetensors.h"

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using kda::fuzz::require;
  kda::fuzz::refuse_or_pass([&] {
    const auto bytes = std::as_bytes(std::span(data, size));
    const auto file = kda::io::SafetensorsFile::parse(bytes, "fuzz");
    // Whatever was accepted lies inside the input, is dense and fits its shape.
    const std::byte* expected = nullptr;
    for (const auto& name : file.names()) {
      const auto& tensor = file.info(name);
      require(expected == nullptr || tensor.data.data() == expected);
      require(tensor.data.data() >= bytes.data());
      expected = tensor.data.data() + tensor.data.size();
      require(expected <= bytes.data() + bytes.size());
      std::int64_t elements = 1;
      for (const auto dim : tensor.shape)
        elements *= dim;
      require(elements == tensor.num_elements());
      unsigned sum = 0;
      for (const std::byte b : tensor.data)
        sum += static_cast<unsigned>(b);
      require(sum <= 255 * tensor.data.size());
    }
    require(expected == nullptr || expected == bytes.data() + bytes.size());
  });
  return 0;
}
