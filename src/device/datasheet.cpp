#include "device/datasheet.h"

namespace hearth {

namespace {

struct Entry {
  std::string_view name;  // without "NVIDIA ", which older drivers leave out
  Datasheet sheet;
};

constexpr Entry entries[] = {
    {"B200", {2250e12, 8e12}},
    {"GH200 480GB", {989.5e12, 4e12}},
    {"H200", {989.5e12, 4.8e12}},
    {"H200 NVL", {835.5e12, 4.8e12}},
    {"H100 80GB HBM3", {989.5e12, 3.35e12}},
    {"H100 NVL", {835.5e12, 3.9e12}},
    {"H100 PCIe", {756e12, 2e12}},
    {"A100-SXM4-80GB", {312e12, 2.039e12}},
    {"A100-SXM4-40GB", {312e12, 1.555e12}},
    {"A100 80GB PCIe", {312e12, 1.935e12}},
    {"A100-PCIE-40GB", {312e12, 1.555e12}},
    {"L40S", {362e12, 864e9}},
    {"L40", {181e12, 864e9}},
    {"L4", {121e12, 300e9}},
    {"A10", {125e12, 600e9}},
    {"A10G", {70e12, 600e9}},
    {"GeForce RTX 5090", {209.5e12, 1.792e12}},
    {"GeForce RTX 4090", {165.2e12, 1.008e12}},
    {"GeForce RTX 3090", {71e12, 936e9}},
};

}  // namespace

std::optional<Datasheet> datasheet_of(std::string_view gpu) {
  constexpr std::string_view maker = "NVIDIA ";
  if (gpu.starts_with(maker)) gpu.remove_prefix(maker.size());
  for (const Entry& entry : entries)
    if (entry.name == gpu) return entry.sheet;
  return std::nullopt;
}

}  // namespace hearth
