#include "device/cuda/cuda_device.h"

#include <algorithm>
#include <cstdio>
#include <cstring>

#include "base/text.h"
#include "device/cuda/api/nvtx.h"
#include "device/cuda/targets.h"
#include "device/datasheet.h"
#include "kernels/attention.h"
#include "kernels/residual_norm.h"

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
  for (size_t at = 0; at < bytes; at += slot_bytes)
    copy_piece(static_cast<std::byte*>(device) + at, static_cast<const std::byte*>(host) + at,
               std::min(slot_bytes, bytes - at), stream);
}

void StagingRing::copy_piece(void* device, const void* host, size_t bytes, cudaStream_t stream) {
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

CudaDevice::CudaDevice(int index, const std::string& gemm)
    : index_(index), events_(std::make_shared<EventPool>()) {
  require(cudaSetDevice(index), "choosing the GPU");
  cudaDeviceProp properties;
  require(cudaGetDeviceProperties(&properties, index), "asking for the GPU's properties");
  cache_bytes_ = static_cast<uint64_t>(properties.l2CacheSize);
  name_ = properties.name;
  identity_ = pci_address(properties);
  description_ = text("cuda, ", name_, ", sm_", properties.major, properties.minor, ", ",
                      human_bytes(properties.totalGlobalMem));
  std::unique_ptr<GemmEngine> engine = make_gemm_engine(gemm);
  if (gemm != "native") description_ += ", " + engine->description();
  for (cudaStream_t& stream : streams_)
    require(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "creating a stream");
  staging_ = std::make_unique<StagingRing>();
  ops_ = std::make_unique<CudaOps>(*this, stream(Stream::compute), std::move(engine));
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

// The checks of the launchers (kernels/), as sentences.
std::optional<std::string> CudaDevice::unsupported_widths(const ModelWidths& widths) const {
  const char* const way_out = ", or the cpu device";
  if (widths.head_size % 8 != 0 || widths.head_size > kernels::max_attention_head_size)
    return text("the CUDA kernels need a head size that is a multiple of 8 up to ",
                kernels::max_attention_head_size, ", and model.channels / model.heads is ", widths.head_size,
                "; use another number of heads", way_out);
  if (widths.channels % 8 != 0 || widths.channels > kernels::max_norm_channels)
    return text("the CUDA kernels need model.channels to be a multiple of 8 up to ",
                kernels::max_norm_channels, ", and it is ", widths.channels, "; use another width", way_out);
  if (widths.ffn % 8 != 0)
    return text(
        "the CUDA kernels need a multiple of 8 features of the MLP on each rank, and model.ffn / "
        "parallel.tensor is ",
        widths.ffn, "; use another model.ffn or a smaller parallel.tensor", way_out);
  if (widths.vocab % 8 != 0)
    return text(
        "the CUDA kernels need a multiple of 8 columns of the vocabulary on each rank, and the padded "
        "vocabulary / parallel.tensor is ",
        widths.vocab, "; use a smaller parallel.tensor", way_out);
  return std::nullopt;
}

uint64_t CudaDevice::workspace_bytes(const OpSizes& sizes) const {
  return ops_->workspace_bytes(sizes);
}

void CudaDevice::reserve_workspace(const OpSizes& sizes) {
  ops_->reserve(ops_->workspace_bytes(sizes));
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
  staging_->copy(to.data, host, static_cast<size_t>(to.bytes()), stream(Stream::compute));
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

void CudaDevice::begin_range(const char* name) {
  nvtx::push(name);
}

void CudaDevice::end_range() {
  nvtx::pop();
}

std::optional<double> CudaDevice::peak_flops(Precision) const {
  const auto sheet = datasheet_of(name_);
  return sheet ? std::optional(sheet->flops) : std::nullopt;
}

std::optional<double> CudaDevice::peak_bandwidth() const {
  const auto sheet = datasheet_of(name_);
  return sheet ? std::optional(sheet->bandwidth) : std::nullopt;
}

namespace {

// Two points in a stream with the times at which the GPU passed them.
class EventStopwatch final : public Stopwatch {
 public:
  explicit EventStopwatch(cudaStream_t stream) : stream_(stream) {
    for (cudaEvent_t& event : events_)
      require(cudaEventCreateWithFlags(&event, cudaEventDefault), "creating an event");
  }
  ~EventStopwatch() override {
    for (cudaEvent_t event : events_)
      if (event) cudaEventDestroy(event);
  }
  void start() override { require(cudaEventRecord(events_[0], stream_), "recording an event"); }
  void stop() override { require(cudaEventRecord(events_[1], stream_), "recording an event"); }
  double seconds() override {
    float milliseconds = 0;
    require(cudaEventSynchronize(events_[1]), "waiting for the GPU");
    require(cudaEventElapsedTime(&milliseconds, events_[0], events_[1]), "measuring time on the GPU");
    return milliseconds * 1e-3;
  }

 private:
  cudaStream_t stream_;
  std::array<cudaEvent_t, 2> events_{};
};

}  // namespace

std::unique_ptr<Stopwatch> CudaDevice::stopwatch() {
  return std::make_unique<EventStopwatch>(stream(Stream::compute));
}

std::optional<uint64_t> CudaDevice::free_bytes() const {
  size_t free = 0, total = 0;
  require(cudaMemGetInfo(&free, &total), "asking for free GPU memory");
  return free;
}

}  // namespace cuda

namespace {

// Why the GPU `index` cannot run this executable's kernels, or nothing when it can.
std::optional<std::string> unusable(int index) {
  int major = 0, minor = 0;
  cuda::require(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, index), "asking the GPU");
  cuda::require(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, index), "asking the GPU");
  if (major < 8) return text("GPU ", index, " is sm_", major, minor, " and the kernels need sm_80 or newer");
  if (!cuda::runs_on(cuda::targets(), major, minor))
    return text("GPU ", index, " is sm_", major, minor, " and this build is for ", cuda::targets(),
                " (build with `make ARCHS=\"", major, minor, "\"`)");
  return std::nullopt;
}

}  // namespace

std::optional<std::string> cuda_unavailable(int local_rank) {
  int count = 0;
  const cudaError_t status = cudaGetDeviceCount(&count);
  if (status == cudaSuccess && count > 0) return unusable(local_rank % count);
  cudaGetLastError();
  if (status == cudaErrorInsufficientDriver)
    return "there is no NVIDIA driver, or it is older than this program's CUDA";
  if (status == cudaErrorStubLibrary) return "only a stub of the NVIDIA driver is installed";
  if (status == cudaErrorNoDevice || status == cudaSuccess) return "there is no NVIDIA GPU";
  return text("CUDA cannot start: ", cudaGetErrorString(status));
}

std::unique_ptr<Device> make_cuda_device(const DeviceConfig& config) {
  if (const auto why = cuda_unavailable(config.local_rank))
    fail_device("device.kind = \"cuda\": ", *why, "; use device.kind = \"cpu\" or \"auto\"");
  int count = 0;
  cuda::require(cudaGetDeviceCount(&count), "counting the GPUs");
  return std::make_unique<cuda::CudaDevice>(config.local_rank % count, config.gemm);
}

}  // namespace hearth
