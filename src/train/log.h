// The run's voice: lines to the console and to log.txt.
#pragma once

#include <cstdio>
#include <memory>
#include <string>

#include "train/metrics.h"

namespace hearth {

class Log {
 public:
  // Until open() is called, lines go to the console only.
  void open(const fs::path& path) {
    std::error_code ignored;
    const uint64_t size = fs::exists(path) ? fs::file_size(path, ignored) : 0;
    file_ = std::make_unique<LineFile>(path, size);
    for (const std::string& line : early_)
      file_->append(line);
    early_.clear();
  }

  // Of ranks other than the first.
  void silence() { silent_ = true; }

  void line(const std::string& text) {
    if (silent_) return;
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fputc('\n', stdout);
    std::fflush(stdout);
    if (file_)
      file_->append(text);
    else
      early_.push_back(text);
  }

 private:
  bool silent_ = false;
  std::unique_ptr<LineFile> file_;
  std::vector<std::string> early_;
};

}  // namespace hearth
