// What a run writes about itself: metrics.jsonl (every step), the console and log.txt (every log.every
// steps), and TensorBoard events.  Field names are documented in the README and never change.
#pragma once

#include <cstdint>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <vector>

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
  JsonLine& add(const std::string& key, int64_t value);
  JsonLine& add(const std::string& key, const std::string& value);
  JsonLine& add(const std::string& key, bool value);
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

// Appends whole lines to a file; each line is one write.  A failed write (disk full) is reported once by
// failed() and never stops the training.
class LineFile {
 public:
  // Opens for appending, cutting the file to `keep_bytes` first (a resumed run keeps the lines up to its
  // checkpoint byte for byte).  Error(data) when it cannot be opened.
  LineFile(const fs::path& path, uint64_t keep_bytes);
  ~LineFile();
  LineFile(const LineFile&) = delete;
  LineFile& operator=(const LineFile&) = delete;

  void append(const std::string& line);
  uint64_t bytes() const { return bytes_; }
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
  void scalar(const std::string& tag, int64_t step, double value, double wall_time);

  // The exact bytes of one record, for tests and for the writer.
  static std::string file_version_record(double wall_time);
  static std::string scalar_record(const std::string& tag, int64_t step, float value, double wall_time);

 private:
  std::unique_ptr<LineFile> file_;
};

}  // namespace hearth
