// What a run writes about itself: metrics.jsonl (every step), the console and log.txt (every log.every
// steps), and TensorBoard events.  Field names are documented in the README and never change.
#pragma once

#include <concepts>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "base/files.h"

namespace hearth {

struct StepMetrics {
  int64_t step = 0;
  double loss = 0;       // mean over the valid tokens of the global batch, before the update
  double grad_norm = 0;  // before clipping
  double lr = 0;
  int64_t tokens = 0;  // consumed by the run so far
  double tokens_per_second = 0;
  std::optional<double> mfu;
  double ms = 0;
  bool skipped = false;  // non-finite: the parameters were not changed
};

// One JSON object as text, built in order: JsonLine("step").add("step", 3).add("loss", 2.5).str().  Numbers
// have 9 significant digits; NaN and infinities become null and add `"finite":false`.
class JsonLine {
 public:
  explicit JsonLine(const std::string& event);
  JsonLine& add(const std::string& key, double value);
  JsonLine& add(const std::string& key, std::string_view value);
  JsonLine& add(const std::string& key, const char* value) { return add(key, std::string_view(value)); }
  // Integers, and true or false.
  template <std::integral T>
  JsonLine& add(const std::string& key, T value) {
    if constexpr (std::same_as<T, bool>)
      return raw(key, value ? "true" : "false");
    else
      return raw(key, std::to_string(value));
  }
  JsonLine& add_null(const std::string& key);
  std::string str() const;  // without newline

 private:
  JsonLine& raw(const std::string& key, const std::string& literal);
  std::string text_;
  bool finite_ = true;
};

// {"event":"step","step":10,"loss":..,"grad_norm":..,"lr":..,"tokens":..,"tokens_per_second":..,"mfu":null,"ms":..}
// and "skipped":true for a skipped step.
std::string step_line(const StepMetrics& m);

// Appends whole lines to a file; each line is one write.  A failed write (disk full) leaves no part of its
// line, is described by failure() and never stops the training; later lines are tried again.
class LineFile {
 public:
  // Opens for appending, cutting the file to `keep_bytes` first (a resumed run keeps the lines up to its
  // checkpoint byte for byte) and then to the end of its last whole line (a killed process may have left part
  // of one).  Error(data) when it cannot be opened.
  LineFile(const fs::path& path, uint64_t keep_bytes);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  // `line` comes without its newline.
  void append(const std::string& line);
  // The bytes as they are.
  void append_bytes(std::string_view bytes);
  // fsync: what a checkpoint counts in metrics_bytes should survive as surely as the checkpoint.
  void sync();
  uint64_t bytes() const { return bytes_; }
  // The sentence of the first write that failed, or empty.
  const std::string& failure() const { return failure_; }

 private:
  fs::path path_;
  int fd_ = -1;
  uint64_t bytes_ = 0;
  std::string failure_;
};

// TensorBoard event file (records of masked CRC32C-framed protobuf), written by hand: scalars only.
class TensorBoardWriter {
 public:
  // Creates DIR/events.out.tfevents.SECONDS.HOST.PID.N
  explicit TensorBoardWriter(const fs::path& folder);
  ~TensorBoardWriter();
  // `wall_time` in seconds since 1970, by the real clock.
  void scalar(const std::string& tag, int64_t step, double value, double wall_time);

  // The exact bytes of one record, for tests and for the writer.
  static std::string file_version_record(double wall_time);
  static std::string scalar_record(const std::string& tag, int64_t step, float value, double wall_time);

 private:
  std::unique_ptr<LineFile> file_;
};

}  // namespace hearth
