// CudaDevice: what the host may do with its memory, when it waits, and what a run without room is told.
#include "device/device.h"

#include <gtest/gtest.h>

#include <numeric>

#include "emulator/emulator.h"
#include "support/model_harness.h"
#include "train/memory_fit.h"
#include "train/step.h"

namespace hearth {
namespace {

class CudaDevice : public ::testing::Test {
 protected:
  void TearDown() override { emulator::options() = before_; }

 private:
  emulator::Options before_ = emulator::options();
};

std::unique_ptr<Device> cuda() {
  return make_cuda_device({});
}

TEST_F(CudaDevice, HostMemoryIsFreeWhenACopyReturns) {
  const auto device = cuda();
  // Larger than the pinned ring, and not a multiple of its slots.
  std::vector<int32_t> values((16 << 20) / 4 + 123);
  std::iota(values.begin(), values.end(), 1);
  const std::vector<int32_t> expected = values;
  Buffer buffer(*device, values.size() * 4);
  const Tensor tensor(buffer.data(), DType::i32, {static_cast<int64_t>(values.size())});
  device->copy_in(tensor, values.data());
  std::fill(values.begin(), values.end(), -1);
  std::vector<int32_t> back(values.size());
  device->copy_out(back.data(), tensor);
  EXPECT_EQ(back, expected);
}

HostBatch batch_of(const ModelConfig& model, int64_t rows) {
  HostBatch batch;
  batch.rows = rows;
  for (int64_t i = 0; i < rows * model.context; ++i) {
    batch.tokens.push_back(static_cast<int32_t>(i % model.vocab));
    batch.targets.push_back(static_cast<int32_t>((3 * i + 1) % model.vocab));
  }
  return batch;
}

// With any number of microbatches: the one wait is for the loss and the norm, which decide the update.
TEST_F(CudaDevice, AStepWaitsForTheGpuOnce) {
  const auto device = cuda();
  RunConfig config;
  config.model = testing::small_model();
  config.train.precision = Precision::bf16;
  config.train.batch = 6;
  config.train.micro_batch = 2;
  const ProcessGroups groups;
  StepRunner runner(config, *device, groups);
  runner.initialize();
  const std::vector<HostBatch> batches(3, batch_of(config.model, 2));
  device->synchronize();
  emulator::reset_statistics();
  for (int64_t step = 1; step <= 3; ++step)
    runner.run({6 * (step - 1), 1e-3, step}, batches);
  EXPECT_EQ(emulator::statistics().host_waits, 3u);
}

// A model whose gradients of weights are cut into parts, with a rest at the end of the loss's chunks.
RunConfig config_with_partial_sums() {
  RunConfig config;
  config.model = testing::small_model();
  config.model.channels = 64;
  config.model.context = 300;
  config.model.vocab = 40;
  config.train.precision = Precision::bf16;
  config.train.batch = config.train.micro_batch = 2;
  return config;
}

// Everything that a run takes is there before its first step, and planned.
TEST_F(CudaDevice, NothingGrowsInAStep) {
  for (const char* gemm : {"native", "cublaslt"}) {
    SCOPED_TRACE(gemm);
    const auto device = make_cuda_device({.gemm = gemm});
    const RunConfig config = config_with_partial_sums();
    const uint64_t before = *device->free_bytes();
    const ProcessGroups groups;
    StepRunner runner(config, *device, groups);
    const uint64_t held = before - *device->free_bytes();
    const MemoryPlan plan = StepRunner::plan(config, groups.grid, device.get());
    EXPECT_NEAR(static_cast<double>(held), static_cast<double>(plan.total()), 32 << 10);  // whole pages
    const uint64_t workspace = plan.total() - StepRunner::plan(config, groups.grid).total();
    EXPECT_GT(workspace, std::string(gemm) == "native" ? 64u << 10 : 32u << 20);
    runner.initialize();
    runner.run({0, 1e-3, 1}, {batch_of(config.model, 2)});
    EXPECT_TRUE(runner.weights_finite());
    EXPECT_EQ(before - *device->free_bytes(), held);
  }
}

// Room for the rest, but not for the workspace.
TEST_F(CudaDevice, AWorkspaceWithoutRoomIsSaidBeforeTheFirstStep) {
  const auto device = make_cuda_device({.gemm = "cublaslt"});
  const RunConfig config = config_with_partial_sums();
  const ProcessGroups groups;
  const uint64_t used = emulator::options().memory_bytes - *device->free_bytes();
  emulator::options().memory_bytes = used + StepRunner::plan(config, groups.grid).total() + (1 << 20);
  const auto message = [](const auto& act) -> std::string {
    try {
      act();
    } catch (const Error& error) {
      EXPECT_EQ(error.code(), ExitCode::device);
      return error.what();
    }
    return "";
  };
  const std::string planned = message([&] { require_memory(config, groups.grid, *device); });
  EXPECT_NE(planned.find("are free on"), std::string::npos) << planned;
  const std::string taken = message([&] { StepRunner(config, *device, groups); });
  EXPECT_NE(taken.find("of GPU memory in one piece"), std::string::npos) << taken;
}

TEST_F(CudaDevice, WithoutAGpuItSaysSo) {
  emulator::options().present = false;
  ASSERT_TRUE(cuda_unavailable());
  EXPECT_NE(cuda_unavailable()->find("no NVIDIA GPU"), std::string::npos);
  try {
    cuda();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::device);
    EXPECT_NE(std::string(error.what()).find("device.kind = \"cpu\""), std::string::npos) << error.what();
  }
  EXPECT_EQ(make_device({.kind = "auto"})->kind(), "cpu");
}

TEST_F(CudaDevice, AnOldGpuIsRefused) {
  emulator::options().capability = 75;
  try {
    cuda();
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::device);
    EXPECT_NE(std::string(error.what()).find("sm_75 and the kernels need sm_80"), std::string::npos)
        << error.what();
  }
}

// A machine with two kinds: each rank is told about its own.
TEST_F(CudaDevice, AnOldGpuOfAnotherRankDoesNotMatter) {
  emulator::options().devices = 2;
  emulator::options().first_capability = 75;
  ASSERT_TRUE(cuda_unavailable(0));
  EXPECT_NE(cuda_unavailable(0)->find("GPU 0 is sm_75"), std::string::npos);
  EXPECT_FALSE(cuda_unavailable(1));
  ASSERT_TRUE(cuda_unavailable(2));  // shares GPU 0
  EXPECT_EQ(make_device({.kind = "auto", .local_rank = 0})->kind(), "cpu");
  EXPECT_EQ(make_device({.kind = "auto", .local_rank = 1})->kind(), "cuda");
  EXPECT_EQ(make_device({.kind = "cuda", .local_rank = 3})->identity(), "0000:02:00.0");
}

TEST_F(CudaDevice, AnAllocationWithoutRoomLeavesNoErrorBehind) {
  const auto device = cuda();
  try {
    device->allocate(emulator::options().memory_bytes * 2);
    FAIL();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::device);
    EXPECT_NE(std::string(error.what()).find("are free"), std::string::npos) << error.what();
  }
  Buffer small(*device, 1024);
  const Tensor tensor(small.data(), DType::u8, {1024});
  device->ops().fill_zero(tensor);
  device->synchronize();
}

}  // namespace
}  // namespace hearth
