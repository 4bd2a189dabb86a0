#include "support/tolerance.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <utility>

#include "support/natural_scale.h"
#include "support/record.h"

namespace kda::test {
namespace {

bool is_gate_gradient(Quantity quantity) {
  return quantity == Quantity::kDg || quantity == Quantity::kDbeta ||
         quantity == Quantity::kDaLog || quantity == Quantity::kDDtBias;
}

bool is_state(Quantity quantity) {
  return quantity == Quantity::kO || quantity == Quantity::kFinalState || quantity == Quantity::kH;
}

}  // namespace

Tolerance tolerance_of(Quantity quantity, DType io, Arithmetic arithmetic) {
  const bool narrow = io == DType::kBF16 || io == DType::kF16;
  switch (arithmetic) {
    case Arithmetic::kF64:
      return {1e-12, 1e-11, 1e-14, 1e-13};
    case Arithmetic::kF32:
      // Narrow tensors add the rounding of inputs to stages (normalised q and k) and of outputs.
      if (narrow) {
        const double rms = is_state(quantity) ? 5e-3 : is_gate_gradient(quantity) ? 2e-2 : 8e-3;
        return {rms, 4 * rms, 5e-7, 1e-5};
      }
      return {1e-4, 1e-3, 5e-7, 3e-6};
    case Arithmetic::kHalfOperands: {
      const double rms = is_state(quantity) ? 5e-3 : is_gate_gradient(quantity) ? 2e-2 : 8e-3;
      return {rms, 8 * rms, 2e-3, rms};
    }
  }
  return {};
}

namespace {

struct Errors {
  double rms = 0.0;
  double max = 0.0;
  std::size_t worst = 0;  // element of the largest error
  bool finite = true;
};

Errors errors_of(const HostTensor& expected, const HostTensor& given) {
  Errors e;
  double sum = 0.0;
  for (std::size_t i = 0; i < expected.data.size(); ++i) {
    const double difference = std::abs(given.data[i] - expected.data[i]);
    if (!std::isfinite(difference)) {
      if (e.finite) e.worst = i;
      e.finite = false;
      continue;
    }
    sum += difference * difference;
    if (difference > e.max && e.finite) {
      e.max = difference;
      e.worst = i;
    }
  }
  if (!expected.data.empty()) e.rms = std::sqrt(sum / static_cast<double>(expected.data.size()));
  return e;
}

// "[0,12,1,3]"
std::string index_text(const HostTensor& tensor, std::size_t position) {
  std::vector<std::int64_t> index(tensor.shape.size());
  auto rest = static_cast<std::int64_t>(position);
  for (std::size_t d = index.size(); d-- > 0;) {
    index[d] = rest % tensor.shape[d];
    rest /= tensor.shape[d];
  }
  std::string text = "[";
  for (std::int64_t i : index)
    text.append(std::to_string(i)).append(",");
  text.back() = ']';
  return text;
}

double largest(const HostTensor& tensor) {
  double m = 0.0;
  for (double x : tensor.data)
    m = std::max(m, std::abs(x));
  return m;
}

// The worst errors of this process by backend and quantity, printed when the tests are done and,
// with KDA_ERROR_REPORT=<file>, appended there as one JSON line each.
class Report : public ::testing::Environment {
 public:
  struct Row {
    double rms = 0.0, max = 0.0, ratio = 0.0;
    std::string rms_case, ratio_case;
    int count = 0;
  };
  std::map<std::pair<std::string, Quantity>, Row> rows;

  void TearDown() override {
    if (rows.empty()) return;
    const char* path = std::getenv("KDA_ERROR_REPORT");
    std::ofstream file;
    if (path != nullptr) file.open(path, std::ios::app);
    std::printf("%-10s %-16s %6s  %-9s %-9s %-6s\n", "backend", "quantity", "count", "rms", "max",
                "ratio");
    for (const auto& [key, row] : rows) {
      std::printf("%-10s %-16s %6d  %.3e %.3e %6.2f  %s\n", key.first.c_str(), name_of(key.second),
                  row.count, row.rms, row.max, row.ratio, row.rms_case.c_str());
      if (file) {
        file << "{\"backend\":\"" << key.first << "\",\"quantity\":\"" << name_of(key.second)
             << "\",\"count\":" << row.count << ",\"rms\":" << row.rms << ",\"max\":" << row.max
             << ",\"ratio\":" << row.ratio << ",\"rms_case\":\"" << row.rms_case
             << "\",\"ratio_case\":\"" << row.ratio_case << "\"}\n";
      }
    }
  }
};

Report& report() {
  static auto* instance = static_cast<Report*>(::testing::AddGlobalTestEnvironment(new Report));
  return *instance;
}
[[maybe_unused]] const Report& g_report_registered_before_main = report();

}  // namespace

void expect_close(const Comparison& comparison, const HostTensor& expected,
                  const HostTensor& given) {
  const std::string label =
      comparison.backend->name + " " + comparison.case_name + " " + name_of(comparison.quantity);
  ASSERT_EQ(expected.shape, given.shape) << label;
  if (expected.data.empty()) return;
  const Tolerance limit =
      tolerance_of(comparison.quantity, comparison.backend->io, comparison.backend->arithmetic);
  const Errors e = errors_of(expected, given);
  const double scale = rms(expected);
  const double noise = limit.noise * std::max(scale, comparison.natural_scale);
  const std::string where = index_text(expected, e.worst);
  if (!e.finite) {
    ADD_FAILURE() << label << where << ": given " << given.data[e.worst] << ", expected "
                  << expected.data[e.worst];
    return;
  }

  const double absolute = limit.rms * scale + noise;
  double allowed = absolute;
  double allowed_max = limit.max * largest(expected) + 16 * noise;
  double ratio = 0.0;
  if (comparison.straightforward != nullptr) {
    const double plain = errors_of(expected, *comparison.straightforward).rms;
    if (comparison.backend->arithmetic == Arithmetic::kHalfOperands) {
      allowed = std::max(absolute, 1.25 * plain);
      if (allowed > absolute) allowed_max *= allowed / absolute;
    } else {
      allowed = std::min(absolute, std::max(1.25 * plain, limit.floor * scale + noise));
    }
    ratio = e.rms / std::max(plain, limit.floor * scale + noise);
  }

  Report::Row& row = report().rows[{comparison.backend->name, comparison.quantity}];
  ++row.count;
  const double relative = e.rms == 0.0 ? 0.0 : e.rms / std::max(scale, comparison.natural_scale);
  if (relative >= row.rms) {
    row.rms = relative;
    row.rms_case = comparison.case_name;
  }
  if (largest(expected) > 0.0)
    row.max = std::max(row.max, e.max / std::max(largest(expected), comparison.natural_scale));
  record_difference(e.max / std::max({1.0, largest(expected), comparison.natural_scale}));
  if (ratio >= row.ratio) {
    row.ratio = ratio;
    row.ratio_case = comparison.case_name;
  }

  EXPECT_LE(e.rms, allowed) << label << ": rms error, relative " << e.rms / scale
                            << ", worst element " << where << " given " << given.data[e.worst]
                            << " expected " << expected.data[e.worst];
  EXPECT_LE(e.max, allowed_max) << label << ": largest error at " << where << ", given "
                                << given.data[e.worst] << " expected " << expected.data[e.worst];
}

void expect_all_close(const TestBackend& backend, const Case& c, const CaseData& data,
                      const Outputs& expected, const Outputs& given,
                      const Outputs* straightforward) {
  for (const auto& [quantity, value] : given) {
    Comparison comparison{&backend, c.name, quantity, natural_scale(quantity, c, data, expected),
                          nullptr};
    if (straightforward != nullptr) comparison.straightforward = &straightforward->at(quantity);
    ASSERT_TRUE(expected.contains(quantity)) << name_of(quantity);
    expect_close(comparison, expected.at(quantity), value);
  }
}

}  // namespace kda::test
