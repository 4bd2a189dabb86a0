#include "fuzz_target.h"
#include "io/jsonl_log.h"
#include "scratch_folder.h"

namespace {

constexpr std::int64_t kResumeStep = 5;

bool after_resume(const kda::io::Json& line) {
  const auto step = line.find("step");
  if (step == line.end() || !step->is_number_integer()) return false;
  if (step->is_number_unsigned()) return step->get<std::uint64_t>() > kResumeStep;
  return step->get<std::int64_t>() > kResumeStep;
}

}  // namespace

int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using kda::fuzz::require;
  static const kda::fuzz::ScratchFolder kFolder("jsonl");
  const auto path = kFolder.put("metrics.jsonl", data, size);
  kda::fuzz::refuse_or_pass([&] {
    std::uint64_t kept = 0;
    {
      kda::io::JsonlLog log(path, kResumeStep);
      kept = log.recovery().kept_lines;
      log.append({{"step", kResumeStep}});
    }
    // What was recovered is sound, ends before the resumed step and stays so.
    const auto lines = kda::io::read_jsonl(path);
    require(lines.size() == kept + 1);
    for (const auto& line : lines)
      require(line.is_object() && !after_resume(line));
    const kda::io::JsonlLog again(path, kResumeStep);
    require(again.recovery().kept_lines == kept + 1);
    require(again.recovery().dropped_lines == 0 && again.recovery().dropped_torn_bytes == 0);
  });
  return 0;
}
