// Errors of the CUDA backend against the recurrence in double, on the same rounded inputs, for the
// gates that other implementations have had trouble with. Prints one Markdown row per gate:
// relative rms errors (norm of the error over norm of the expected tensor), then the largest error
// of o over the largest o. Usage: cuda_precision [tokens] [dtype: bf16|f16|f32]
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <string>

#include "cuda/cuda_backends.h"
#include "support/oracle.h"
#include "support/random.h"
#include "support/run.h"

namespace kda::test {
namespace {

struct GateCase {
  std::string name;
  GateInput input;
  std::function<double(Random*)> raw;  // value of g (raw or ready)
  double bias = 0.0;
};

double log_sigmoid(double x) { return -std::log1p(std::exp(-x)); }

std::vector<GateCase> gate_cases() {
  std::vector<GateCase> all;
  const auto normal = [](double mean, double deviation) {
    return [=](Random* r) { return mean + deviation * r->normal(); };
  };
  const auto constant = [](double x) { return [=](Random*) { return x; }; };
  for (const auto& [kind, input] : {std::pair<const char*, GateInput>{"bounded", GateInput::kSafe},
                                    {"standard", GateInput::kStandard}}) {
    for (double g : {-8.0, -4.0, 0.0, 8.0}) {
      all.push_back(
          {std::string(kind) + " g=" + std::to_string(static_cast<int>(g)), input, constant(g)});
    }
    all.push_back({std::string(kind) + " g~8N(0,1)", input, normal(0.0, 8.0)});
    all.push_back({std::string(kind) + " g~N(0,1)", input, normal(0.0, 1.0)});
    for (double bias : {-8.0, -4.0, 4.0, 8.0}) {
      all.push_back({std::string(kind) + " bias " + std::to_string(static_cast<int>(bias)), input,
                     normal(0.0, 1.0), bias});
    }
  }
  all.push_back({"ready, log sigmoid N(0,1)", GateInput::kReady,
                 [](Random* r) { return log_sigmoid(r->normal()); }});
  all.push_back({"ready, -0.01", GateInput::kReady, constant(-0.01)});
  all.push_back({"ready, -5", GateInput::kReady, constant(-5.0)});
  all.push_back({"ready, -8", GateInput::kReady, constant(-8.0)});
  all.push_back({"ready, resets -1000", GateInput::kReady, [](Random* r) {
                   return r->uniform() < 0.02 ? -1000.0 : log_sigmoid(r->normal()) / 16.0;
                 }});
  return all;
}

double relative(const HostTensor& expected, const HostTensor& given) {
  double error = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < expected.data.size(); ++i) {
    const double d = given.data[i] - expected.data[i];
    error += d * d;
    size += expected.data[i] * expected.data[i];
  }
  return std::sqrt(error / std::max(size, 1e-300));
}

double relative_max(const HostTensor& expected, const HostTensor& given) {
  double error = 0.0;
  double size = 0.0;
  for (std::size_t i = 0; i < expected.data.size(); ++i) {
    error = std::max(error, std::abs(given.data[i] - expected.data[i]));
    size = std::max(size, std::abs(expected.data[i]));
  }
  return error / std::max(size, 1e-300);
}

int run(std::int64_t tokens, const std::string& dtype) {
  std::string reason;
  if (!have_gpu(&reason)) {
    std::fprintf(stderr, "%s\n", reason.c_str());
    return 3;
  }
  TestBackend backend;
  for (const TestBackend& candidate : cuda_backends()) {
    if (candidate.name == "cuda_" + dtype) backend = candidate;
  }
  const Quantity columns[] = {Quantity::kO,     Quantity::kFinalState, Quantity::kDq,
                              Quantity::kDk,    Quantity::kDv,         Quantity::kDg,
                              Quantity::kDbeta, Quantity::kDState0};
  std::printf("| gate (%s, T=%lld, K=V=128) |", dtype.c_str(), static_cast<long long>(tokens));
  for (Quantity q : columns)
    std::printf(" %s |", name_of(q));
  std::printf(" max o |\n|---|---|---|---|---|---|---|---|---|---|\n");
  for (const GateCase& gate : gate_cases()) {
    Case c{.name = "precision",
           .T = tokens,
           .H = 2,
           .HV = 2,
           .K = 128,
           .V = 128,
           .gate = gate.input,
           .betas = gate.input == GateInput::kReady ? Betas::kUniform : Betas::kLogit,
           .qk_l2norm = gate.input != GateInput::kReady};
    CaseData data = make_data(c, backend.io);
    Random random(99);
    for (double& x : data.g.data)
      x = rounded(gate.raw(&random), dtypes_of(c, backend.io).gate_beta);
    for (double& x : data.a_log.data)
      x = 0.0;
    for (double& x : data.dt_bias.data)
      x = gate.bias;
    const Outputs expected = oracle(c, data);
    const RunResult result = run_chunk(backend, c, data);
    std::printf("| %s |", gate.name.c_str());
    for (Quantity q : columns)
      std::printf(" %.1e |", relative(expected.at(q), result.values.at(q)));
    std::printf(" %.1e |\n",
                relative_max(expected.at(Quantity::kO), result.values.at(Quantity::kO)));
    std::fflush(stdout);
  }
  return 0;
}

}  // namespace
}  // namespace kda::test

int main(int argc, char** argv) {
  return kda::test::run(argc > 1 ? std::atoll(argv[1]) : 1000, argc > 2 ? argv[2] : "bf16");
}
