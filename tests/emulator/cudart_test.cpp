// The stand-in for the CUDA runtime: deferred work, independent streams, events, errors.
#include "kernels/device_array.h"
#include "kernels/simt.cuh"

namespace hearth::testing {
namespace {

class Cudart : public ::testing::Test {
 protected:
  void TearDown() override { emulator::options() = before_; }

 private:
  emulator::Options before_ = emulator::options();
};

__global__ void set_to(float* out, float value) {
  out[threadIdx.x] = value;
}
__global__ void add_one(float* out) {
  out[threadIdx.x] += 1;
}

struct Streams {
  cudaStream_t a = nullptr, b = nullptr;
  Streams() {
    cudaStreamCreateWithFlags(&a, cudaStreamNonBlocking);
    cudaStreamCreateWithFlags(&b, cudaStreamNonBlocking);
  }
  ~Streams() {
    cudaStreamDestroy(a);
    cudaStreamDestroy(b);
  }
};

TEST_F(Cudart, NothingHappensBeforeASynchronisation) {
  const Streams s;
  const DeviceArray<float> x(32);
  float host = -1;
  launch(set_to, 1, 32, 0, s.a, x.data(), 5.0f);
  cudaMemcpyAsync(&host, x.data(), sizeof host, cudaMemcpyDeviceToHost, s.a);
  EXPECT_EQ(host, -1);
  cudaStreamSynchronize(s.b);
  EXPECT_EQ(host, -1);  // another stream's synchronisation does not help
  cudaStreamSynchronize(s.a);
  EXPECT_EQ(host, 5);
}

TEST_F(Cudart, CopiesReadTheirHostMemoryLate) {
  const Streams s;
  const DeviceArray<float> x(1);
  float host = 1;
  cudaMemcpyAsync(x.data(), &host, sizeof host, cudaMemcpyHostToDevice, s.a);
  host = 2;  // too early
  cudaStreamSynchronize(s.a);
  EXPECT_EQ(x.to_host()[0], 2);
}

TEST_F(Cudart, MissingEventShowsAndEventOrders) {
  for (const bool wait : {false, true}) {
    const Streams s;
    const DeviceArray<float> x(std::vector<float>(32, 0.0f));
    cudaEvent_t event = nullptr;
    cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    launch(set_to, 1, 32, 0, s.a, x.data(), 5.0f);
    cudaEventRecord(event, s.a);
    if (wait) cudaStreamWaitEvent(s.b, event, 0);
    launch(add_one, 1, 32, 0, s.b, x.data());
    EXPECT_EQ(x.to_host()[0], wait ? 6 : 5);  // without: b runs first, then a overwrites
    cudaEventDestroy(event);
  }
}

TEST_F(Cudart, EventsAreQueriedAndTimed) {
  const Streams s;
  const DeviceArray<float> x(32);
  cudaEvent_t start = nullptr, end = nullptr;
  cudaEventCreate(&start);
  cudaEventCreate(&end);
  cudaEventRecord(start, s.a);
  launch(set_to, 1, 32, 0, s.a, x.data(), 5.0f);
  cudaEventRecord(end, s.a);
  float milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaErrorNotReady);
  EXPECT_EQ(cudaEventQuery(end), cudaErrorNotReady);
  EXPECT_EQ(cudaEventSynchronize(end), cudaSuccess);
  EXPECT_EQ(cudaEventQuery(end), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, start, end), cudaSuccess);
  EXPECT_GE(milliseconds, 0);
  cudaEventDestroy(start);
  cudaEventDestroy(end);
}

TEST_F(Cudart, MemoryIsLimitedAndPoisoned) {
  emulator::options().memory_bytes = 1 << 20;
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, 2 << 20), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&p, 1 << 19), cudaSuccess);
  size_t available = 0, total = 0;
  cudaMemGetInfo(&available, &total);
  EXPECT_EQ(total, size_t{1} << 20);
  EXPECT_LE(available, size_t{1} << 19);
  float value = 0;
  cudaMemcpy(&value, p, sizeof value, cudaMemcpyDeviceToHost);
  EXPECT_TRUE(std::isnan(value));
  EXPECT_EQ(cudaFree(p), cudaSuccess);
  EXPECT_EQ(cudaFree(p), cudaErrorInvalidValue);
}

TEST_F(Cudart, WrongCopiesAreRefused) {
  const DeviceArray<float> x(4);
  float host[256] = {};
  EXPECT_EQ(cudaMemcpy(host, x.data(), 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(x.data(), host, 1024, cudaMemcpyHostToDevice),
            cudaErrorInvalidValue);  // beyond the end
  EXPECT_EQ(cudaMemset(host, 0, 4), cudaErrorInvalidValue);
}

TEST_F(Cudart, HostCannotTouchDeviceMemory) {
  const DeviceArray<float> x(4);
  EXPECT_DEATH({ *static_cast<volatile float*>(x.data()) = 1; }, "");
}

TEST_F(Cudart, WrongLaunchesAreRefused) {
  const DeviceArray<float> x(32);
  EXPECT_THROW(launch(set_to, 1, 2048, 0, nullptr, x.data(), 1.0f), emulator::Failure);
  EXPECT_THROW(launch(set_to, 0, 32, 0, nullptr, x.data(), 1.0f), emulator::Failure);
  EXPECT_THROW(launch(set_to, dim3(1, 65536), 32, 0, nullptr, x.data(), 1.0f), emulator::Failure);
  EXPECT_THROW(launch(set_to, 1, 32, 228 * 1024, nullptr, x.data(), 1.0f), Error);
  emulator::options().capability = 86;
  EXPECT_THROW(launch(set_to, 1, 32, 100 * 1024, nullptr, x.data(), 1.0f), Error);
  EXPECT_NO_THROW(launch(set_to, 1, 32, 99 * 1024, nullptr, x.data(), 1.0f));
  cudaDeviceSynchronize();
}

TEST_F(Cudart, WithoutADeviceNothingWorks) {
  emulator::options().present = false;
  int count = 7;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaErrorNoDevice);
  EXPECT_EQ(count, 7);
  void* p = nullptr;
  EXPECT_EQ(cudaMalloc(&p, 16), cudaErrorNoDevice);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaErrorNoDevice);
}

TEST_F(Cudart, PropertiesFollowTheCapability) {
  cudaDeviceProp p;
  emulator::options().capability = 80;
  ASSERT_EQ(cudaGetDeviceProperties(&p, 0), cudaSuccess);
  EXPECT_EQ(p.major, 8);
  EXPECT_EQ(p.minor, 0);
  EXPECT_EQ(p.sharedMemPerBlockOptin, size_t{163} * 1024);
  EXPECT_EQ(cudaGetDeviceProperties(&p, 1), cudaErrorInvalidDevice);
}

// Many blocks run on several OS threads: the same results, and a failure is still that of the first block.
__global__ void many_blocks(float* out, int failing) {
  const int block = static_cast<int>(blockIdx.x);
  if (block == failing || block == failing + 40)
    shared_load<float>(shared_memory());  // no shared memory: fails
  out[block * 32 + static_cast<int>(threadIdx.x)] = static_cast<float>(block);
}
TEST_F(Cudart, BlocksAreSharedAmongThreads) {
  const DeviceArray<float> x(32 * 200);
  launch(many_blocks, 200, 32, 0, nullptr, x.data(), -100);
  const auto values = x.to_host();
  for (int i = 0; i < 32 * 200; ++i)
    ASSERT_EQ(values[i], i / 32);
  launch(many_blocks, 200, 32, 0, nullptr, x.data(), 17);
  try {
    cudaDeviceSynchronize();
    FAIL() << "the failure was not reported";
  } catch (const emulator::Failure& failure) {
    EXPECT_NE(std::string(failure.what()).find("block (17,0,0)"), std::string::npos) << failure.what();
  }
  launch(many_blocks, 200, 32, 0, nullptr, x.data(), -100);  // and the next launch works
  EXPECT_EQ(x.to_host()[0], 0);
}

}  // namespace
}  // namespace hearth::testing
