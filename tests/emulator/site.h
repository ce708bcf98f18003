// Site: a place in a kernel's source, taken by every emulated instruction as a defaulted last argument.
#pragma once

#include <cstring>

namespace hearth {

struct Site {
  const char* file = nullptr;
  int line = 0;

  // As a default argument this is the place of the call, not of the declaration.
  static constexpr Site here(const char* file = __builtin_FILE(), int line = __builtin_LINE()) {
    return {file, line};
  }
  bool operator==(const Site& other) const {
    return line == other.line &&
           (file == other.file || (file && other.file && !std::strcmp(file, other.file)));
  }
};

}  // namespace hearth
