// kda_bench_cpu: times the operators of the cpu backend and prints one JSON line per case.
//
//   kda_bench_cpu [--threads N] [--runs N] [--only TEXT]
//
// Results are checked against the f64 oracle first. The cases' runs are interleaved, so that a slow
// spell of the machine hits all of them; the minimum is the figure to quote on a shared machine.
// Decode runs beside a copy and an in-place scale of as many bytes. `roofline` is the share of the
// time that the formula's FLOPs or bytes would need at this process's own FMA and copy rates.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "bench/cpu/operator_cases.h"
#include "bench/cpu/probe.h"

namespace kda::bench {
namespace {

struct Options {
  int threads = 0;
  int runs = 20;
  std::string only;
};

struct Timed {
  std::string name;
  std::string dtype;
  std::unique_ptr<Case> work;
  double error = 0.0;
  double tolerance = 0.0;
  std::vector<float> copy_from, copy_to;
  std::vector<double> seconds, copy_seconds, scale_seconds;
};

template <typename Work>
double seconds_of(const Work& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> x) {
  std::sort(x.begin(), x.end());
  return x[x.size() / 2];
}
double least(const std::vector<double>& x) { return *std::min_element(x.begin(), x.end()); }

std::vector<Timed> make_cases(const std::string& only) {
  std::vector<Timed> cases;
  const auto add = [&](const Shape& shape, DType dtype, const char* kind,
                       std::unique_ptr<Case> (*factory)(const Shape&, DType)) {
    Timed t;
    t.name = std::string(kind) + "/" + shape.name + "/" + name_of(dtype);
    if (t.name.find(only) == std::string::npos) return;
    t.dtype = name_of(dtype);
    t.work = factory(shape, dtype);
    t.tolerance = dtype == DType::kF32 ? 1e-5 : 5e-3;
    cases.push_back(std::move(t));
  };
  const Shape p1 = {"P1", 1, 2048, 8, 8, 64, 64};
  const Shape p2 = {"P2", 1, 4096, 4, 4, 128, 128};
  const Shape p3 = {"P3", 4, 512, 16, 16, 64, 64};
  for (DType dtype : {DType::kF32, DType::kBF16}) {
    for (const Shape& s : {p1, p2, p3}) {
      add(s, dtype, "forward", make_forward);
      add(s, dtype, "train", make_training_step);
    }
    for (std::int64_t batch : {1, 8, 64}) {
      add({"B" + std::to_string(batch), batch, 1, 32, 32, 128, 128}, dtype, "decode", make_decode);
    }
  }
  return cases;
}

void print(const Timed& t, const Options& options, double peak_gflops, double copy_gbs) {
  const double best = least(t.seconds);
  const double floor =
      std::max(t.work->flops() / (peak_gflops * 1e9), t.work->bytes() / (copy_gbs * 1e9));
  std::printf(
      "{\"case\":\"%s\",\"op\":\"%s\",\"threads\":%d,\"runs\":%zu,\"min_ms\":%.4f,"
      "\"median_ms\":%.4f,\"flops\":%.4g,\"bytes\":%.4g,\"gflop_per_s\":%.1f,\"gb_per_s\":%.1f,"
      "\"roofline\":%.3f,\"error\":%.2e",
      t.name.c_str(), t.work->op().c_str(), options.threads, t.seconds.size(), best * 1e3,
      median(t.seconds) * 1e3, t.work->flops(), t.work->bytes(), t.work->flops() / best * 1e-9,
      t.work->bytes() / best * 1e-9, floor / best, t.error);
  if (t.work->state_floats() > 0) {
    std::printf(
        ",\"copy_gb_per_s\":%.1f,\"scale_gb_per_s\":%.1f,\"times_copy\":%.2f,"
        "\"times_scale\":%.2f",
        t.work->bytes() / least(t.copy_seconds) * 1e-9,
        t.work->bytes() / least(t.scale_seconds) * 1e-9, least(t.copy_seconds) / best,
        least(t.scale_seconds) / best);
  }
  std::printf("}\n");
  std::fflush(stdout);
}

int run(const Options& options) {
  set_num_threads(options.threads);
  std::vector<Timed> cases = make_cases(options.only);
  for (Timed& t : cases) {
    t.error = t.work->error();
    if (!(t.error <= t.tolerance)) {
      std::fprintf(stderr, "%s: error %.3e against the oracle, expected at most %.1e\n",
                   t.name.c_str(), t.error, t.tolerance);
      return 1;
    }
    t.copy_from.assign(t.work->state_floats(), 1.0F);
    t.copy_to.assign(t.work->state_floats(), 1.0F);
  }
  const double peak = fma_gflops(options.threads);
  std::vector<float> from(std::size_t{1} << 25, 1.0F);
  std::vector<float> to(from.size(), 1.0F);
  double copy = 0.0;
  for (int round = 0; round < options.runs; ++round) {
    for (Timed& t : cases) {
      // Decode is short: several calls per round, so that one scheduler slice cannot hide it.
      const std::size_t state = t.work->state_floats();
      const int repeats = state == 0 ? 1 : state < (std::size_t{1} << 22) ? 20 : 3;
      for (int i = 0; i < repeats; ++i) {
        t.seconds.push_back(seconds_of([&] { t.work->run(); }));
        if (state == 0) continue;
        t.copy_seconds.push_back(seconds_of(
            [&] { copy_pass(t.copy_from.data(), t.copy_to.data(), state, options.threads); }));
        t.scale_seconds.push_back(
            seconds_of([&] { scale_pass(t.copy_to.data(), state, options.threads); }));
      }
    }
    const double s =
        seconds_of([&] { copy_pass(from.data(), to.data(), from.size(), options.threads); });
    copy = std::max(copy, 2.0 * static_cast<double>(from.size() * sizeof(float)) / s * 1e-9);
  }
  std::printf("{\"machine\":true,\"threads\":%d,\"fma_gflop_per_s\":%.1f,\"copy_gb_per_s\":%.1f}\n",
              options.threads, peak, copy);
  for (const Timed& t : cases)
    print(t, options, peak, copy);
  return 0;
}

}  // namespace
}  // namespace kda::bench

int main(int argc, char** argv) {
  kda::bench::Options options;
  options.threads = kda::num_threads();
  for (int i = 1; i < argc; ++i) {
    const bool has_value = i + 1 < argc;
    if (std::strcmp(argv[i], "--threads") == 0 && has_value) {
      options.threads = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--runs") == 0 && has_value) {
      options.runs = std::max(1, std::atoi(argv[++i]));
    } else if (std::strcmp(argv[i], "--only") == 0 && has_value) {
      options.only = argv[++i];
    } else {
      std::fprintf(stderr, "usage: kda_bench_cpu [--threads N] [--runs N] [--only TEXT]\n");
      return 2;
    }
  }
  return kda::bench::run(options);
}
