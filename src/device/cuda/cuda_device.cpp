#include "device/cuda/cuda_device.h"

#include <cstdio>
#include <cstring>

#include "base/text.h"

namespace hearth {

namespace cuda {

void require(cudaError_t status, const char* what) {
  if (status == cudaSuccess) return;
  fail_device(what, " failed: ", cudaGetErrorString(status), " (", cudaGetErrorName(status), ")");
}

StagingRing::StagingRing() {
  require(cudaMallocHost(&memory_, slots * slot_bytes), "allocating pinned host memory");
  for (cudaEvent_t& event : done_)
    require(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
}

StagingRing::~StagingRing() {
  for (cudaEvent_t event : done_)
    if (event) cudaEventDestroy(event);
  cudaFreeHost(memory_);
}

void StagingRing::copy(void* device, const void* host, size_t bytes, cudaStream_t stream) {
  const size_t slot = static_cast<size_t>(next_);
  next_ = (next_ + 1) % slots;
  if (used_[slot]) require(cudaEventSynchronize(done_[slot]), "waiting for a copy");
  void* staged = static_cast<std::byte*>(memory_) + slot * slot_bytes;
  std::memcpy(staged, host, bytes);
  require(cudaMemcpyAsync(device, staged, bytes, cudaMemcpyHostToDevice, stream), "copying to the GPU");
  require(cudaEventRecord(done_[slot], stream), "recording an event");
  used_[slot] = true;
}

namespace {

// Dense bf16 peaks of the datasheets, FLOP/s.  MFU is unknown for other GPUs.
struct Peak {
  const char* name;
  double flops;
};
constexpr Peak peaks[] = {
    {"H200", 989.5e12},     {"H100 PCIe", 756e12},  {"H100", 989.5e12},  {"GH200", 989.5e12},
    {"A100", 312e12},       {"A10G", 70e12},        {"A10", 125e12},     {"L40S", 362e12},
    {"L4", 121e12},         {"RTX 4090", 165.2e12}, {"RTX 3090", 71e12}, {"B200", 2250e12},
    {"RTX 5090", 209.5e12},
};

// What NCCL compares, too, when it looks for ranks on the same GPU.
std::string pci_address(const cudaDeviceProp& p) {
  char address[32];
  std::snprintf(address, sizeof address, "%04x:%02x:%02x.0", static_cast<unsigned>(p.pciDomainID),
                static_cast<unsigned>(p.pciBusID), static_cast<unsigned>(p.pciDeviceID));
  return address;
}

}  // namespace

EventPool::~EventPool() {
  for (cudaEvent_t event : free_)
    cudaEventDestroy(event);
}

cudaEvent_t EventPool::take() {
  {
    const std::lock_guard lock(mutex_);
    if (!free_.empty()) {
      const cudaEvent_t event = free_.back();
      free_.pop_back();
      return event;
    }
  }
  cudaEvent_t event = nullptr;
  require(cudaEventCreateWithFlags(&event, cudaEventDisableTiming), "creating an event");
  return event;
}

void EventPool::give_back(cudaEvent_t event) noexcept {
  const std::lock_guard lock(mutex_);
  free_.push_back(event);
}

CudaDevice::CudaDevice(int index) : index_(index), events_(std::make_shared<EventPool>()) {
  require(cudaSetDevice(index), "choosing the GPU");
  cudaDeviceProp properties;
  require(cudaGetDeviceProperties(&properties, index), "asking for the GPU's properties");
  name_ = properties.name;
  identity_ = pci_address(properties);
  if (properties.major < 8)
    fail_device("GPU ", index, " (", name_, ") is sm_", properties.major, properties.minor,
                "; the kernels need sm_80 or newer; use device.kind = \"cpu\"");
  description_ = text("cuda, ", name_, ", sm_", properties.major, properties.minor, ", ",
                      human_bytes(properties.totalGlobalMem));
  for (cudaStream_t& stream : streams_)
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
  staging_ = std::make_unique<StagingRing>();
  ops_ = std::make_unique<CudaOps>(stream(Stream::compute));
}

CudaDevice::~CudaDevice() {
  for (cudaStream_t stream : streams_)
    if (stream) cudaStreamSynchronize(stream);
  ops_.reset();
  staging_.reset();
  for (cudaStream_t stream : streams_)
    if (stream) cudaStreamDestroy(stream);
}

std::optional<std::string> CudaDevice::unsupported(Precision precision) const {
  if (precision == Precision::bf16) return std::nullopt;
  return "the CUDA kernels compute in bf16 with fp32 accumulation; use train.precision = \"bf16\", or "
         "device.kind = "
         "\"cpu\"";
}

void* CudaDevice::allocate(size_t bytes) {
  void* address = nullptr;
  const cudaError_t status = cudaMalloc(&address, bytes);
  if (status == cudaErrorMemoryAllocation) {
    cudaGetLastError();
    fail_device("the run needs ", human_bytes(bytes), " of GPU memory in one piece and ",
                human_bytes(*free_bytes()), " are free on ", name_,
                "; use a smaller train.micro_batch, or train.recompute = \"block\"");
  }
  require(status, "allocating GPU memory");
  return address;
}

void CudaDevice::release(void* address, size_t) noexcept {
  cudaStreamSynchronize(stream(Stream::compute));
  cudaFree(address);
}

void CudaDevice::copy_in(const Tensor& to, const void* host) {
  check(to.contiguous(), "copy into a tensor with gaps");
  const size_t bytes = static_cast<size_t>(to.bytes());
  if (bytes <= StagingRing::slot_bytes) return staging_->copy(to.data, host, bytes, stream(Stream::compute));
  require(cudaMemcpyAsync(to.data, host, bytes, cudaMemcpyHostToDevice, stream(Stream::compute)),
          "copying to the GPU");
}

void CudaDevice::copy_out(void* host, const Tensor& from) {
  check(from.contiguous(), "copy out of a tensor with gaps");
  require(cudaMemcpyAsync(host, from.data, static_cast<size_t>(from.bytes()), cudaMemcpyDeviceToHost,
                          stream(Stream::compute)),
          "copying from the GPU");
  require(cudaStreamSynchronize(stream(Stream::compute)), "waiting for the GPU");
}

void CudaDevice::synchronize() {
  for (cudaStream_t stream : streams_)
    require(cudaStreamSynchronize(stream), "waiting for the GPU");
}

Event CudaDevice::record(Stream which) {
  const cudaEvent_t event = events_->take();
  Event point{std::shared_ptr<void>(
      event, [pool = events_](void* used) { pool->give_back(static_cast<cudaEvent_t>(used)); })};
  require(cudaEventRecord(event, stream(which)), "recording an event");
  return point;
}

void CudaDevice::wait(Stream which, const Event& event) {
  if (!event.point) return;
  require(cudaStreamWaitEvent(stream(which), static_cast<cudaEvent_t>(event.point.get()), 0),
          "waiting for an event");
}

bool CudaDevice::reached(const Event& event) {
  if (!event.point) return true;
  const cudaError_t status = cudaEventQuery(static_cast<cudaEvent_t>(event.point.get()));
  if (status == cudaErrorNotReady) return false;
  require(status, "looking at an event");
  return true;
}

void CudaDevice::synchronize(const Event& event) {
  if (event.point)
    require(cudaEventSynchronize(static_cast<cudaEvent_t>(event.point.get())), "waiting for an event");
}

void CudaDevice::enter_thread() {
  require(cudaSetDevice(index_), "choosing the GPU");
}

void* CudaDevice::allocate_host(size_t bytes) {
  void* address = nullptr;
  require(cudaMallocHost(&address, bytes), "allocating pinned host memory");
  return address;
}

void CudaDevice::release_host(void* address) noexcept {
  cudaFreeHost(address);
}

void CudaDevice::copy(Stream which, void* to, const void* from, size_t bytes) {
  if (bytes) require(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream(which)), "copying");
}

std::optional<double> CudaDevice::peak_flops(Precision) const {
  for (const Peak& peak : peaks)
    if (name_.find(peak.name) != std::string::npos) return peak.flops;
  return std::nullopt;
}

std::optional<uint64_t> CudaDevice::free_bytes() const {
  size_t free = 0, total = 0;
  require(cudaMemGetInfo(&free, &total), "asking for free GPU memory");
  return free;
}

}  // namespace cuda

std::optional<std::string> cuda_unavailable() {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return std::nullopt;
  cudaGetLastError();
  if (status == cudaErrorInsufficientDriver) return "the NVIDIA driver is older than this program's CUDA";
  if (status == cudaErrorStubLibrary) return "only a stub of the NVIDIA driver is installed";
  if (status == cudaErrorNoDevice || status == cudaSuccess) return "there is no NVIDIA GPU";
  return text("CUDA cannot start: ", cudaGetErrorString(status));
}

std::unique_ptr<Device> make_cuda_device(const DeviceConfig& config) {
  if (const auto why = cuda_unavailable())
    fail_device("device.kind = \"cuda\": ", *why, "; use device.kind = \"cpu\" or \"auto\"");
  int count = 0;
  cuda::require(cudaGetDeviceCount(&count), "counting the GPUs");
  return std::make_unique<cuda::CudaDevice>(config.local_rank % count);
}

}  // namespace hearth
