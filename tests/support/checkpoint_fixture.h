// Small training states to save, and what tests of checkpoints share.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <fstream>
#include <random>
#include <string>
#include <system_error>
#include <vector>

#include "base/error.h"
#include "device/device.h"
#include "train/checkpoint.h"

namespace hearth {

using Kind = CheckpointPiece::Kind;
constexpr std::array<Kind, 3> all_kinds = {Kind::master, Kind::moment1, Kind::moment2};

// Like TempDir, but in memory where the system has such a folder: most of the time of these tests would be
// spent waiting for a disk.
class FastTempDir {
 public:
  FastTempDir() {
    const bool memory = ::access("/dev/shm", W_OK | X_OK) == 0;
    std::string name = memory ? "/dev/shm" : fs::temp_directory_path().string();
    name += "/hearth-test-XXXXXX";
    if (::mkdtemp(name.data()) == nullptr) throw std::system_error(errno, std::generic_category(), name);
    path_ = name;
  }
  ~FastTempDir() {
    std::error_code ignored;
    fs::remove_all(path_, ignored);
  }
  FastTempDir(const FastTempDir&) = delete;
  FastTempDir& operator=(const FastTempDir&) = delete;

  const fs::path& path() const { return path_; }
  fs::path operator/(const fs::path& name) const { return path_ / name; }

 private:
  fs::path path_;
};

struct NamedShape {
  std::string name;
  Shape shape;
};

inline const std::vector<NamedShape>& small_model() {
  static const std::vector<NamedShape> shapes = {
      {"wte", {11, 6}}, {"h.0.attn.q.weight", {6, 6}}, {"h.0.attn.q.bias", {6}}};
  return shapes;
}

// Values of whole tensors that depend on (seed, tensor, kind, index) only, with the memory they lie in.
class SavedTensors {
 public:
  SavedTensors(const std::vector<NamedShape>& shapes, int seed) {
    std::mt19937 random(static_cast<unsigned>(seed));
    for (const NamedShape& tensor : shapes)
      for (const Kind kind : all_kinds) {
        values_.emplace_back(static_cast<size_t>(tensor.shape.elements()));
        for (float& value : values_.back())
          value = static_cast<float>(random() % 100003) - 50000.f;
        pieces_.push_back({kind, tensor.name, tensor.shape,
                           std::vector<int64_t>(static_cast<size_t>(tensor.shape.rank())),
                           Tensor(values_.back().data(), DType::f32, tensor.shape)});
      }
  }
  SavedTensors(const SavedTensors&) = delete;
  SavedTensors& operator=(const SavedTensors&) = delete;

  // One piece per tensor, the whole of it.
  std::span<const CheckpointPiece> pieces() const { return pieces_; }

 private:
  std::vector<std::vector<float>> values_;  // moving the outer vector moves no element
  std::vector<CheckpointPiece> pieces_;
};

inline CheckpointState state_of_step(int64_t step) {
  CheckpointState state;
  state.step = step;
  state.consumed_samples = 8 * step;
  state.optimizer_step = step - 1;
  state.skipped_in_a_row = 1;
  state.metrics_bytes = static_cast<uint64_t>(100 * step);
  state.data_fingerprint = "9f86d081";
  state.tokenizer_json = R"({"kind":"char","characters":["a","b"]})";
  state.config = {{"model.layers", "1"}, {"data.train", "\"tiny.txt\""}};
  return state;
}

// A state with nothing but its step.
inline CheckpointState only_step_1() {
  CheckpointState state;
  state.step = 1;
  return state;
}

// Saves the state of a step: everything in it is a function of the step.
inline fs::path save_step(const fs::path& folder, int64_t step,
                          std::optional<double> val_loss = std::nullopt) {
  const SavedTensors tensors(small_model(), static_cast<int>(step));
  CheckpointState state = state_of_step(step);
  state.val_loss = val_loss;
  const std::unique_ptr<Device> device = make_reference_device();
  return write_checkpoint(folder, state, tensors.pieces(), *device);
}

// A copy of a folder of checkpoints: quicker than saving again, because nothing waits for the disk.
inline void copy_folder(const fs::path& from, const fs::path& to) {
  fs::copy(from, to, fs::copy_options::recursive);
}

// Whether an opened checkpoint holds exactly what save_step(step) saved.
inline ::testing::AssertionResult holds_step(const CheckpointReader& reader, int64_t step) {
  if (reader.state().step != step)
    return ::testing::AssertionFailure() << "step " << reader.state().step << ", not " << step;
  if (reader.state().tokenizer_json != state_of_step(step).tokenizer_json)
    return ::testing::AssertionFailure() << "another tokenizer";
  const std::unique_ptr<Device> device = make_reference_device();
  const SavedTensors expected(small_model(), static_cast<int>(step));
  for (const CheckpointPiece& piece : expected.pieces()) {
    std::vector<float> values(static_cast<size_t>(piece.local.elements()));
    CheckpointPiece wanted = piece;
    wanted.local = Tensor(values.data(), DType::f32, piece.local.shape);
    reader.read(wanted, *device);
    if (std::memcmp(values.data(), piece.local.data, static_cast<size_t>(piece.local.bytes())) != 0)
      return ::testing::AssertionFailure() << "other values in " << piece.name;
  }
  return ::testing::AssertionSuccess();
}

// Runs an action that must fail on data; gives the sentence.
template <class Action>
std::string data_error(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline void expect_contains(const std::string& sentence, const std::string& part) {
  EXPECT_NE(sentence.find(part), std::string::npos) << "\"" << part << "\" is missing in: " << sentence;
}

inline std::vector<std::string> sorted_names(const fs::path& folder) {
  std::vector<std::string> names;
  if (fs::exists(folder))
    for (const auto& entry : fs::directory_iterator(folder))
      names.push_back(entry.path().filename());
  std::sort(names.begin(), names.end());
  return names;
}

inline void overwrite(const fs::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary) << content;
}

}  // namespace hearth
