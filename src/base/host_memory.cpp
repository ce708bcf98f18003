#include "base/host_memory.h"

#include <unistd.h>

#include <charconv>
#include <fstream>
#include <iterator>
#include <string>

namespace hearth {

uint64_t available_memory(std::string_view meminfo) {
  constexpr std::string_view key = "MemAvailable:";
  const size_t at = meminfo.find(key);
  if (at == std::string_view::npos) return 0;
  const size_t digits = meminfo.find_first_not_of(' ', at + key.size());
  if (digits == std::string_view::npos) return 0;
  uint64_t kibibytes = 0;
  std::from_chars(meminfo.data() + digits, meminfo.data() + meminfo.size(), kibibytes);
  return kibibytes << 10;
}

uint64_t available_memory() {
  std::ifstream file("/proc/meminfo");
  const std::string text{std::istreambuf_iterator<char>(file), {}};
  if (const uint64_t bytes = available_memory(text)) return bytes;
  return static_cast<uint64_t>(sysconf(_SC_AVPHYS_PAGES)) * static_cast<uint64_t>(sysconf(_SC_PAGESIZE));
}

}  // namespace hearth
