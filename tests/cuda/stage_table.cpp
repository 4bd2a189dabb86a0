// What the stage tests compared, as a table.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <string>
#include <vector>

#include "cuda/stage_rig.h"

namespace kda::test {
namespace {

struct Line {
  std::string stage, quantity, path, label;
  double ratio, max, limit;
};

class Table : public ::testing::Environment {
 public:
  std::vector<Line> lines;  // in the order of first appearance

  void TearDown() override {
    const char* file = std::getenv("KDA_STAGE_TABLE");
    if (file == nullptr || lines.empty()) return;
    std::ofstream to(file);
    to << "| stage | quantity | path | worst gate | rms error / rms | largest error / largest | "
          "limit |\n| --- | --- | --- | --- | --- | --- | --- |\n";
    char text[96];
    for (const Line& line : lines) {
      std::snprintf(text, sizeof(text), "%.1e | %.1e | %.0e", line.ratio, line.max, line.limit);
      to << "| `" << line.stage << "` | " << line.quantity << " | " << line.path << " | "
         << line.label << " | " << text << " |\n";
    }
  }
};

Table& table() {
  static auto* instance = static_cast<Table*>(::testing::AddGlobalTestEnvironment(new Table));
  return *instance;
}
[[maybe_unused]] const Table& g_table_registered_before_main = table();

}  // namespace

void expect_stage(const std::string& stage, const std::string& quantity, const std::string& path,
                  const std::string& label, const std::vector<double>& got,
                  const std::vector<double>& want, double limit) {
  ASSERT_EQ(got.size(), want.size()) << stage << " " << quantity;
  ASSERT_FALSE(want.empty()) << stage << " " << quantity;
  double error = 0.0, size = 0.0, max_error = 0.0, max_size = 0.0;
  for (std::size_t i = 0; i < want.size(); ++i) {
    ASSERT_TRUE(std::isfinite(got[i]))
        << stage << " " << quantity << " " << path << " " << label << " element " << i << ": "
        << got[i] << ", expected " << want[i];
    error += (got[i] - want[i]) * (got[i] - want[i]);
    size += want[i] * want[i];
    max_error = std::max(max_error, std::abs(got[i] - want[i]));
    max_size = std::max(max_size, std::abs(want[i]));
  }
  ASSERT_GT(size, 0.0) << stage << " " << quantity << ": nothing to compare";
  const Line line{stage, quantity, path, label, std::sqrt(error / size), max_error / max_size,
                  limit};
  EXPECT_LE(line.ratio, limit) << stage << " " << quantity << " " << path << " " << label;
  for (Line& old : table().lines) {
    if (old.stage != stage || old.quantity != quantity || old.path != path) continue;
    if (line.ratio > old.ratio) old = line;
    return;
  }
  table().lines.push_back(line);
}

}  // namespace kda::test
