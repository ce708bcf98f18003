// How much memory the machine can still give to this process.
#pragma once

#include <cstdint>
#include <string_view>

namespace hearth {

// What /proc/meminfo calls MemAvailable, free pages and caches that can be dropped, in bytes; 0 when the text
// has no such line.
uint64_t available_memory(std::string_view meminfo);
// The same of this machine.  Where the kernel does not say: the free pages.
uint64_t available_memory();

}  // namespace hearth
