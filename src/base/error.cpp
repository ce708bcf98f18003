#include "base/error.h"

#include <cstdio>
#include <cstdlib>

namespace hearth {

void check_failed(const std::source_location& where, const std::string& message) {
  std::fprintf(stderr, "hearth: internal error at %s:%u in %s: %s\n", where.file_name(), where.line(),
               where.function_name(), message.c_str());
  std::abort();
}

}  // namespace hearth
