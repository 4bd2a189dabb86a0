/// The trainer on a GPU: skipped, with the reason, where there is none.
#include <ATen/TensorOperators.h>
#include <gtest/gtest.h>

#include <csignal>

#include "model/causal_lm.h"
#include "model/weights.h"
#include "train/adamw.h"
#include "train/checkpoint.h"
#include "train/device.h"
#include "train/fixture.h"
#include "train/muon.h"
#include "train/signals.h"
#include "train/trainer.h"

namespace kda::train {
namespace {

namespace fs = std::filesystem;
using testing::RecordingReporter;
using testing::ScratchFolder;
using testing::tensor_hashes;

class Gpu : public ::testing::Test {
 protected:
  void SetUp() override {
    // The first use of torch in the process: its CUDA hooks are fixed by it.
    static const DeviceChoice choice = choose_device("auto");
    if (choice.device.is_cpu()) GTEST_SKIP() << choice.text;
  }
};

TrainRequest gpu_request(const fs::path& out, const std::string& preset,
                         const std::string& optimizer) {
  TrainRequest request = testing::tiny_request(out, 12);
  TrainOptions& o = request.options;
  o.preset = preset;
  o.optimizer = optimizer;
  o.device = "cuda";
  o.dtype = "bf16";
  o.grad_accum = 2;
  o.seq_len = 128;
  o.eval_every = {4, PeriodUnit::kUpdates};
  return request;
}

/// Twelve steps in one go, and with stops between and inside windows: bit-equal.
TEST_F(Gpu, ResumeEqualsTheUninterruptedRun) {
  for (const char* preset : {"tiny", "k3-tiny"}) {
    for (const char* optimizer : {"adamw", "muon"}) {
      SCOPED_TRACE(std::string(preset) + " " + optimizer);
      ScratchFolder folder;
      RecordingReporter reporter;
      train(gpu_request(folder / "one", preset, optimizer), reporter);
      train(gpu_request(folder / "again", preset, optimizer), reporter);
      EXPECT_EQ(tensor_hashes(folder / "one/step-000012"),
                tensor_hashes(folder / "again/step-000012"))
          << "two equal runs differ";
      TrainRequest request = gpu_request(folder / "two", preset, optimizer);
      TrainHooks hooks;
      hooks.after_micro_batch = [&](const RunPoint& point) {
        if (point == RunPoint{5, 1}) request_stop(SIGTERM);
      };
      train(request, reporter, hooks);
      clear_stop();
      request.resume = ResumeMode::kYes;
      EXPECT_EQ(train(request, reporter).point.step, 12);
      EXPECT_EQ(tensor_hashes(folder / "one/step-000012"),
                tensor_hashes(folder / "two/step-000012"));
      EXPECT_EQ(testing::loss_lines(folder / "one"), testing::loss_lines(folder / "two"));
    }
  }
}

/// A checkpoint of the GPU goes on on the host, and back.
TEST_F(Gpu, CheckpointsMoveBetweenDevices) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = gpu_request(folder / "run", "tiny", "adamw");
  request.options.stop_after.value = 4;
  train(request, reporter);
  request.resume = ResumeMode::kYes;
  request.options.device = "cpu";
  request.options.stop_after.value = 8;
  request.given_keys = {"device", "stop_after"};  // a continued run keeps neither by itself
  EXPECT_EQ(train(request, reporter).point.step, 8);
  request.options.device = "cuda:0";
  request.options.stop_after.value = 0;
  EXPECT_EQ(train(request, reporter).point.step, 12);
  EXPECT_LT(reporter.steps.back().loss, reporter.steps.front().loss);
}

/// One update of the same gradients on host and GPU.
TEST_F(Gpu, OptimizersAgreeWithTheHost) {
  for (const char* kind : {"adamw", "muon"}) {
    model::ModelOptions host_options;
    model::ModelOptions device_options;
    device_options.device = c10::Device(c10::kCUDA, 0);
    const model::KDAConfig config = model::KDAConfig::preset("tiny");
    const model::CausalLM host(config, host_options);
    const model::CausalLM device(config, device_options);
    const auto a = make_optimizer(host.parameters(), {kind});
    const auto b = make_optimizer(device.parameters(), {kind});
    for (int step = 0; step < 3; ++step) {
      for (std::size_t i = 0; i < a->parameters().size(); ++i) {
        const at::Tensor grad = a->parameters()[i].tensor.detach() * (0.5 + step) + 1e-3;
        a->parameters()[i].tensor.mutable_grad() = grad;
        b->parameters()[i].tensor.mutable_grad() = grad.to(device_options.device);
      }
      EXPECT_NEAR(b->gradient_stats().norm / a->gradient_stats().norm, 1.0, 1e-6);
      EXPECT_EQ(b->gradient_stats().norm, b->gradient_stats().norm);
      a->step(1e-3, 0.5);
      b->step(1e-3, 0.5);
    }
    // Muon orthogonalises in bf16 on the GPU: an update of at most 1e-3 per step to two digits.
    const double tolerance = std::string(kind) == "muon" ? 1e-4 : 2e-6;
    for (std::size_t i = 0; i < a->parameters().size(); ++i) {
      const at::Tensor difference =
          a->parameters()[i].tensor.detach() - b->parameters()[i].tensor.detach().to(at::kCPU);
      EXPECT_LT(difference.abs().max().item<double>(), tolerance) << a->parameters()[i].name;
    }
  }
}

TEST_F(Gpu, NonFiniteLossIsFoundAtTheEndOfTheStep) {
  ScratchFolder folder;
  RecordingReporter reporter;
  TrainRequest request = gpu_request(folder / "run", "tiny", "adamw");
  request.options.lr = 1e6;
  request.options.clip = 0;
  request.options.warmup.value = 0;
  request.given_keys.insert("warmup");
  const std::string text =
      testing::error_text(ErrorCode::kNonFinite, [&] { train(request, reporter); });
  EXPECT_NE(text.find("step "), std::string::npos) << text;
}

}  // namespace
}  // namespace kda::train
