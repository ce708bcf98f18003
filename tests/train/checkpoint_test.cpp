// Checkpoints: what is saved comes back, whole or in any other pieces;
// equal states are equal bytes; sentences.
#include "train/checkpoint.h"

#include <algorithm>
#include <numeric>

#include "support/checkpoint_fixture.h"
#include "support/temp_dir.h"
#include "train/checkpoint_manifest.h"
#include "train/safetensors.h"

namespace hearth {
namespace {

TEST(Checkpoint, RoundTrip) {
  const TempDir dir;  // on disk
  const fs::path path = save_step(dir / "checkpoints", 500, 1.75);
  EXPECT_EQ(path, dir / "checkpoints/step-00000500");
  EXPECT_EQ(sorted_names(path), (std::vector<std::string>{"manifest.json", "model-00000.safetensors",
                                                          "optimizer-00000.safetensors", "tokenizer.json"}));
  EXPECT_EQ(sorted_names(dir / "checkpoints"), (std::vector<std::string>{"latest", "step-00000500"}));
  EXPECT_EQ(read_file(dir / "checkpoints/latest"), "step-00000500\n");

  const CheckpointReader reader(path);
  EXPECT_TRUE(holds_step(reader, 500));
  const CheckpointState expected = state_of_step(500);
  const CheckpointState& state = reader.state();
  EXPECT_EQ(state.consumed_samples, expected.consumed_samples);
  EXPECT_EQ(state.optimizer_step, expected.optimizer_step);
  EXPECT_EQ(state.skipped_in_a_row, expected.skipped_in_a_row);
  EXPECT_EQ(state.metrics_bytes, expected.metrics_bytes);
  EXPECT_EQ(state.val_loss, 1.75);
  EXPECT_EQ(state.best_val_loss, std::nullopt);
  EXPECT_EQ(state.data_fingerprint, expected.data_fingerprint);
  EXPECT_EQ(state.config, expected.config);
  const std::vector<std::pair<std::string, Shape>> tensors = {
      {"h.0.attn.q.bias", {6}}, {"h.0.attn.q.weight", {6, 6}}, {"wte", {11, 6}}};
  EXPECT_EQ(reader.tensors(), tensors);
  EXPECT_TRUE(reader.has(Kind::moment2, "wte"));
  EXPECT_FALSE(reader.has(Kind::master, "wpe"));
}

TEST(Checkpoint, NumbersAtTheirLimits) {
  Manifest manifest;
  manifest.state.consumed_samples = INT64_MAX;
  manifest.state.val_loss = 0.1 + 0.2;
  manifest.state.best_val_loss = std::nan("");
  manifest.state.config = {{"data.train", "\"\xff\""}};
  const Manifest back = parse_manifest(manifest_text(manifest), "m");
  EXPECT_EQ(back.state.consumed_samples, INT64_MAX);
  EXPECT_EQ(back.state.val_loss, 0.1 + 0.2);
  EXPECT_EQ(back.state.best_val_loss, std::nullopt);
  EXPECT_EQ(back.state.config.at("data.train"), "\"\xef\xbf\xbd\"");
}

TEST(Checkpoint, ModelFileIsPlainSafetensors) {
  const FastTempDir dir;
  const SafetensorsFile file(save_step(dir / "c", 1) / "model-00000.safetensors");
  ASSERT_EQ(file.entries().size(), 3u);
  EXPECT_EQ(file.entries()[0].key, "wte");
  EXPECT_EQ(file.entries()[0].dtype, DType::f32);
  EXPECT_EQ(file.entries()[0].shape, Shape({11, 6}));
}

TEST(Checkpoint, TensorsLargerThanTheBuffer) {
  const TempDir dir;                                  // memory may be small
  const int64_t rows = 3 * 1024 + 1, columns = 1024;  // 12 MiB and a row
  const SavedTensors tensors({{"big", {rows, columns}}, {"wide", {1, rows * columns}}}, 3);
  const auto device = make_reference_device();
  const CheckpointReader reader(write_checkpoint(dir / "c", state_of_step(1), tensors.pieces(), *device));
  for (const CheckpointPiece& piece : tensors.pieces()) {
    std::vector<float> values(static_cast<size_t>(rows * columns));
    CheckpointPiece wanted = piece;
    wanted.local = Tensor(values.data(), DType::f32, piece.local.shape);
    reader.read(wanted, *device);
    EXPECT_EQ(std::memcmp(values.data(), piece.local.data, values.size() * sizeof(float)), 0) << piece.name;
  }
}

TEST(Checkpoint, EqualStatesAreEqualBytes) {
  const FastTempDir dir;
  const fs::path first = save_step(dir / "a", 7);
  ::sleep(1);
  const fs::path second = save_step(dir / "some/other/place", 7);
  for (const std::string& name : sorted_names(first))
    EXPECT_EQ(read_file(first / name), read_file(second / name)) << name;
}

// ---- pieces: rectangles of global tensors, saved by several processes and read by others

struct Box {
  std::vector<int64_t> start;
  Shape shape;
};

// Cuts a tensor into at most `count` boxes by random straight cuts.
std::vector<Box> random_boxes(const Shape& shape, size_t count, std::mt19937& random) {
  std::vector<Box> boxes = {{std::vector<int64_t>(static_cast<size_t>(shape.rank())), shape}};
  for (int attempt = 0; attempt < 50 && boxes.size() < count && shape.rank() > 0; ++attempt) {
    Box& box = boxes[random() % boxes.size()];
    const int dimension = static_cast<int>(random() % static_cast<unsigned>(shape.rank()));
    if (box.shape[dimension] < 2) continue;
    const int64_t cut = 1 + static_cast<int64_t>(random() % static_cast<unsigned>(box.shape[dimension] - 1));
    Box upper = box;
    upper.start[static_cast<size_t>(dimension)] += cut;
    upper.shape = box.shape.with(dimension, box.shape[dimension] - cut);
    box.shape = box.shape.with(dimension, cut);
    boxes.push_back(upper);
  }
  std::shuffle(boxes.begin(), boxes.end(), random);
  return boxes;
}

// The elements of a box of a tensor whose element i has the value i + offset.
std::vector<float> box_values(const Box& box, const Shape& global, float offset) {
  std::vector<float> values(static_cast<size_t>(box.shape.elements()));
  for (size_t n = 0; n < values.size(); ++n) {
    int64_t rest = static_cast<int64_t>(n), global_index = 0, stride = 1;
    for (int i = global.rank() - 1; i >= 0; --i) {
      global_index += (box.start[static_cast<size_t>(i)] + rest % box.shape[i]) * stride;
      rest /= box.shape[i];
      stride *= global[i];
    }
    values[n] = static_cast<float>(global_index) + offset;
  }
  return values;
}

float offset_of(Kind kind, size_t tensor) {
  return 10000.f * static_cast<float>(tensor) + 1000.f * static_cast<float>(kind);
}

// Saves what each of `processes` holds and merges their manifests, as processes of one run do.
fs::path save_in_pieces(const FastTempDir& dir, const std::vector<NamedShape>& shapes, size_t processes,
                        std::mt19937& random) {
  std::vector<std::vector<std::vector<float>>> values(processes);
  std::vector<std::vector<CheckpointPiece>> pieces(processes);
  for (size_t t = 0; t < shapes.size(); ++t) {
    const std::vector<Box> boxes = random_boxes(shapes[t].shape, processes, random);
    for (size_t p = 0; p < boxes.size(); ++p)
      for (const Kind kind : all_kinds) {
        values[p].push_back(box_values(boxes[p], shapes[t].shape, offset_of(kind, t)));
        pieces[p].push_back({kind, shapes[t].name, shapes[t].shape, boxes[p].start,
                             Tensor(values[p].back().data(), DType::f32, boxes[p].shape)});
      }
  }
  const auto device = make_reference_device();
  const fs::path merged = dir / "merged/step-00000001";
  fs::create_directories(merged);
  Manifest all;
  all.state.step = 1;
  all.world = static_cast<int64_t>(processes);
  for (size_t p = 0; p < processes; ++p) {
    const fs::path own = write_checkpoint(dir / text("process-", p), only_step_1(), pieces[p], *device);
    const Manifest manifest = read_manifest(own);
    const auto renamed = [&](std::string name) {
      return name.replace(name.find("00000"), 5, text("0000", p));
    };
    for (const ManifestFile& file : manifest.files) {
      fs::rename(own / file.name, merged / renamed(file.name));
      all.files.push_back({renamed(file.name), file.size, file.crc});
    }
    for (const auto& [name, tensor] : manifest.tensors) {
      all.tensors[name].shape = tensor.shape;
      for (size_t kind = 0; kind < 3; ++kind)
        for (ManifestPiece piece : tensor.pieces[kind]) {
          piece.file = renamed(piece.file);
          all.tensors[name].pieces[kind].push_back(piece);
        }
    }
  }
  overwrite(merged / "manifest.json", manifest_text(all));
  return merged;
}

TEST(Checkpoint, AnyRectangleFromAnyPieces) {
  for (unsigned seed = 0; seed < 8; ++seed) {
    std::mt19937 random(seed);
    std::vector<NamedShape> shapes = {
        {"scalar", Shape()}, {"empty", {0, 3}}, {"vector", {9}}, {"deep", {2, 3, 2, 5}}};
    for (int i = 0; i < 6; ++i)
      shapes.push_back(
          {text("t", i), {static_cast<int64_t>(1 + random() % 9), static_cast<int64_t>(1 + random() % 7)}});
    const size_t processes = 1 + random() % 6;
    const FastTempDir dir;
    const CheckpointReader reader(save_in_pieces(dir, shapes, processes, random));
    const auto device = make_reference_device();
    for (int split = 0; split < 5; ++split)
      for (size_t t = 0; t < shapes.size(); ++t)
        for (const Box& box : random_boxes(shapes[t].shape, 1 + random() % 6, random))
          for (const Kind kind : all_kinds) {
            std::vector<float> values(static_cast<size_t>(box.shape.elements()), -1.f);
            // An empty vector has no address, and a tensor without one is absent.
            values.reserve(1);
            reader.read({kind, shapes[t].name, shapes[t].shape, box.start,
                         Tensor(values.data(), DType::f32, box.shape)},
                        *device);
            ASSERT_EQ(values, box_values(box, shapes[t].shape, offset_of(kind, t)))
                << "seed " << seed << " tensor " << shapes[t].name << " box of shape " << box.shape;
          }
  }
}

// A checkpoint of one tensor "w" [4, 6] without the elements [2:4, 3:6], which another process had.
fs::path save_with_a_gap(const FastTempDir& dir) {
  std::vector<float> values(24, 1.f);
  const auto device = make_reference_device();
  const CheckpointPiece left = {Kind::master, "w", {4, 6}, {0, 0}, Tensor(values.data(), DType::f32, {4, 3})};
  const CheckpointPiece right = {
      Kind::master, "w", {4, 6}, {0, 3}, Tensor(values.data(), DType::f32, {2, 3})};
  const fs::path one = write_checkpoint(dir / "one", only_step_1(), std::span(&left, 1), *device);
  const fs::path two = write_checkpoint(dir / "two", only_step_1(), std::span(&right, 1), *device);
  Manifest manifest = read_manifest(one);
  const Manifest other = read_manifest(two);
  fs::rename(two / "model-00000.safetensors", one / "model-00001.safetensors");
  manifest.files.push_back({"model-00001.safetensors", other.files[0].size, other.files[0].crc});
  manifest.tensors["w"].pieces[0].push_back(other.tensors.at("w").pieces[0][0]);
  manifest.tensors["w"].pieces[0].back().file = "model-00001.safetensors";
  overwrite(one / "manifest.json", manifest_text(manifest));
  return one;
}

TEST(Checkpoint, AGapIsNamed) {
  const FastTempDir dir;
  const CheckpointReader reader(save_with_a_gap(dir));
  const auto device = make_reference_device();
  std::vector<float> values(24);
  const std::string sentence = data_error([&] {
    reader.read({Kind::master, "w", {4, 6}, {0, 0}, Tensor(values.data(), DType::f32, {4, 6})}, *device);
  });
  expect_contains(sentence, "no piece has elements [2:4, 3:6] of tensor \"w\" of shape [4, 6]");
  // What is there can be read.
  reader.read({Kind::master, "w", {4, 6}, {1, 0}, Tensor(values.data(), DType::f32, {1, 6})}, *device);
  EXPECT_EQ(values[5], 1.f);
}

TEST(Checkpoint, OverlappingCopiesAreFine) {
  const FastTempDir dir;
  const fs::path path = save_step(dir / "c", 3);
  Manifest manifest = read_manifest(path);
  for (auto& [name, tensor] : manifest.tensors)
    for (auto& pieces : tensor.pieces)
      pieces.push_back(pieces[0]);
  overwrite(path / "manifest.json", manifest_text(manifest));
  EXPECT_TRUE(holds_step(CheckpointReader(path), 3));
}

TEST(Checkpoint, MismatchesNameBothSides) {
  const FastTempDir dir;
  const CheckpointReader reader(save_step(dir / "c", 3));
  const auto device = make_reference_device();
  std::vector<double> memory(1000);
  const auto sentence = [&](const CheckpointPiece& piece) {
    return data_error([&] { reader.read(piece, *device); });
  };
  const std::string shape =
      sentence({Kind::master, "wte", {12, 6}, {0, 0}, Tensor(memory.data(), DType::f32, {12, 6})});
  expect_contains(shape, "\"wte\" has shape [11, 6] in the checkpoint");
  expect_contains(shape, "and [12, 6] in this configuration");
  expect_contains(
      sentence({Kind::moment1, "wte", {11, 6}, {0, 0}, Tensor(memory.data(), DType::f64, {11, 6})}),
      "\"moment1.wte\" has type F32 in the checkpoint");
  expect_contains(sentence({Kind::master, "wpe", {1}, {0}, Tensor(memory.data(), DType::f32, {1})}),
                  "has no tensor \"wpe\"");
}

// ---- a checkpoint of that step exists already

TEST(Checkpoint, TheSameStateIsNotWrittenAgain) {
  const FastTempDir dir;
  const fs::path path = save_step(dir / "c", 3);
  const auto inode = fs::last_write_time(path / "model-00000.safetensors");
  EXPECT_EQ(save_step(dir / "c", 3), path);
  EXPECT_EQ(fs::last_write_time(path / "model-00000.safetensors"), inode);
  EXPECT_EQ(sorted_names(dir / "c"), (std::vector<std::string>{"latest", "step-00000003"}));
}

TEST(Checkpoint, ADamagedOneIsReplaced) {
  const FastTempDir dir;
  const fs::path path = save_step(dir / "c", 3);
  fs::remove(path / "manifest.json");
  save_step(dir / "c", 3);
  EXPECT_TRUE(holds_step(CheckpointReader(path), 3));
  std::string model = read_file(path / "model-00000.safetensors");
  model.back() ^= 1;
  overwrite(path / "model-00000.safetensors", model);
  save_step(dir / "c", 3);
  EXPECT_TRUE(holds_step(CheckpointReader(path), 3));
  EXPECT_EQ(sorted_names(dir / "c"), (std::vector<std::string>{"latest", "step-00000003"}));
}

TEST(Checkpoint, AnotherStateOfTheStepIsReplaced) {
  const FastTempDir dir;
  save_step(dir / "c", 3);
  const SavedTensors others(small_model(), 99);
  const auto device = make_reference_device();
  const fs::path path = write_checkpoint(dir / "c", state_of_step(3), others.pieces(), *device);
  std::vector<float> values(6);
  const CheckpointPiece bias = {
      Kind::master, "h.0.attn.q.bias", {6}, {0}, Tensor(values.data(), DType::f32, {6})};
  CheckpointReader(path).read(bias, *device);
  EXPECT_EQ(std::memcmp(values.data(), others.pieces()[6].local.data, 6 * sizeof(float)), 0);
  // Only the state differs.
  CheckpointState state = state_of_step(3);
  state.metrics_bytes += 1;
  write_checkpoint(dir / "c", state, others.pieces(), *device);
  EXPECT_EQ(CheckpointReader(path).state().metrics_bytes, state.metrics_bytes);
  EXPECT_EQ(sorted_names(dir / "c"), (std::vector<std::string>{"latest", "step-00000003"}));
}

// ---- formats

TEST(Checkpoint, AnUnknownFormatIsRefusedWithBothNumbers) {
  const FastTempDir dir;
  save_step(dir / "c", 3);
  const fs::path path = save_step(dir / "c", 4);
  std::string manifest = read_file(path / "manifest.json");
  manifest.replace(manifest.find("\"format\":1"), 10, "\"format\":2");
  const size_t last_line = manifest.rfind("\"crc32c\"");
  char digits[9];
  std::snprintf(digits, sizeof digits, "%08x", crc32c(std::string_view(manifest).substr(0, last_line)));
  manifest.replace(last_line + 10, 8, digits);
  overwrite(path / "manifest.json", manifest);
  for (const fs::path& named : {path, dir / "c"})
    expect_contains(data_error([&] { open_checkpoint(named); }),
                    "has checkpoint format 2, and this program reads format 1");
  // It must not be passed over in favour of an older one.
  data_error([&] { open_newest_checkpoint(dir / "c", [](const std::string&) {}); });
}

// Format 1 as it was first released; never regenerate it.
TEST(Checkpoint, GoldenCheckpointOfFormat1) {
  const CheckpointReader reader("tests/train/golden/checkpoint-format-1");
  EXPECT_TRUE(holds_step(reader, 500));
  EXPECT_EQ(reader.state().val_loss, 1.75);
  EXPECT_EQ(reader.state().config, state_of_step(500).config);
}

TEST(Checkpoint, ManifestRules) {
  const std::string valid =
      R"("step":1,"consumed_samples":8,"optimizer_step":1,"skipped_in_a_row":0,"metrics_bytes":5,
"val_loss":null,"best_val_loss":1,"data_fingerprint":"x","world":1,"config":{"a.b":"1"},
"files":[{"name":"m.safetensors","size":3,"crc32c":"0000abcd"}],
"tensors":{"w":{"shape":[4,2],"master":[{"file":"m.safetensors","key":"w","start":[2,0],"shape":[2,2]}]}},
)";
  const auto parse = [&](std::string body, const std::string& what = "", const std::string& with = "") {
    if (!what.empty()) body.replace(body.find(what), what.size(), with);
    body = "{\"format\":1,\n" + body;
    char digits[9];
    std::snprintf(digits, sizeof digits, "%08x", crc32c(std::string_view(body)));
    return parse_manifest(body + "\"crc32c\":\"" + digits + "\"}\n", "DIR/manifest.json");
  };
  EXPECT_EQ(parse(valid).tensors.at("w").pieces[0][0].start, (std::vector<int64_t>{2, 0}));
  const std::pair<const char*, const char*> wrong[] = {
      {"\"step\":1", "\"step\":-1"},
      {"\"step\":1", "\"step\":1.0"},
      {"\"step\":1", "\"step\":\"1\""},
      {"\"step\":1", "\"step\":18446744073709551615"},
      {"\"step\":1", "\"steps\":1"},
      {"\"step\":1", "\"step\":1e999"},
      {"\"val_loss\":null", "\"val_loss\":\"nan\""},
      {"\"config\":{\"a.b\":\"1\"}", "\"config\":{\"a.b\":1}"},
      {"\"config\":{", "\"config\":{\"x\":{\"x\":{\"x\":{\"x\":{\"x\":{\"x\":{\"x\":{\"x\":{}}}}}}}},"},
      {"\"name\":\"m.safetensors\"", "\"name\":\"../m.safetensors\""},
      {"\"name\":\"m.safetensors\"", "\"name\":\"..\""},
      {"\"name\":\"m.safetensors\"", "\"name\":\"\""},
      {"\"files\":[", "\"files\":[{\"name\":\"m.safetensors\",\"size\":3,\"crc32c\":\"0000abcd\"},"},
      {"0000abcd", "0000ABCD"},
      {"0000abcd", "abcd"},
      {"\"start\":[2,0]", "\"start\":[3,0]"},
      {"\"start\":[2,0]", "\"start\":[2]"},
      {"\"start\":[2,0]", "\"start\":[-2,0]"},
      {"\"start\":[2,0]", "\"start\":[9223372036854775807,0]"},
      {"\"shape\":[4,2]", "\"shape\":[4,2,1]"},
      {"\"shape\":[4,2]", "\"shape\":[4,2,1,1,1]"},
      {"\"shape\":[4,2]", "\"shape\":[4294967296,4294967296]"},
      {"\"file\":\"m.safetensors\"", "\"file\":\"n.safetensors\""},
      {"\"tensors\":{\"w\":{", "\"tensors\":{\"w\":["},
      {"\"tensors\":", "\"tensors\":[],\"no\":"},
      {"\"x\"", "\"\xff\""},
  };
  for (const auto& [what, with] : wrong)
    expect_contains(data_error([&] { parse(valid, what, with); }), "DIR/manifest.json is not a valid");
}

TEST(WriteSafetensors, OnePlainFile) {
  const FastTempDir dir;
  std::vector<float> values = {1, 2, 3, 4, 5, 6};
  std::vector<int32_t> numbers = {7};
  const auto device = make_reference_device();
  write_safetensors(
      dir / "g.safetensors",
      {{"b", Tensor(values.data(), DType::f32, {2, 3})}, {"a", Tensor(numbers.data(), DType::i32, Shape())}},
      *device);
  EXPECT_EQ(sorted_names(dir.path()), (std::vector<std::string>{"g.safetensors"}));
  const SafetensorsFile file(dir / "g.safetensors");
  EXPECT_EQ(std::memcmp(file.bytes(*file.find("b")).data(), values.data(), 24), 0);
  EXPECT_EQ(std::memcmp(file.bytes(*file.find("a")).data(), numbers.data(), 4), 0);
}

}  // namespace
}  // namespace hearth
