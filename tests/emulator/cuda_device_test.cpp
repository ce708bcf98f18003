// CudaDevice: what the host may do with its memory, when it waits, and what a run without room is told.
#include "device/device.h"

#include <gtest/gtest.h>

#include <numeric>

#include "emulator/emulator.h"
#include "support/model_harness.h"
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
  runner.run({0, 1e-3, 1}, batches);  // the first step makes the workspace grow
  emulator::reset_statistics();
  for (int64_t step = 2; step <= 4; ++step)
    runner.run({6 * (step - 1), 1e-3, step}, batches);
  EXPECT_EQ(emulator::statistics().host_waits, 3u);
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
