// Fuzzing what a checkpoint is made of: safetensors files and manifests.
#include "base/error.h"
#include "fuzz.h"
#include "train/checkpoint_manifest.h"
#include "train/safetensors.h"

namespace hearth::fuzz {
namespace {

std::vector<std::string> safetensors_seeds() {
  std::vector<SafetensorsEntry> mixed = {
      {"wte", DType::f32, {3, 2}, 0, 0}, {"n", DType::i32, Shape(), 0, 0}, {"none", DType::u8, {0}, 0, 0}};
  std::vector<SafetensorsEntry> single = {{"b\u00E9", DType::bf16, {1, 1, 1, 2}, 0, 0}};
  std::vector<SafetensorsEntry> nothing;
  return {safetensors_header(mixed) + std::string(28, 'x'), safetensors_header(single) + "1234",
          safetensors_header(nothing)};
}

// Whatever was accepted lies inside the file and fills it.
void parse_safetensors_file(std::string_view input, const fs::path&) {
  const SafetensorsContents contents = parse_safetensors(input, "fuzz.safetensors");
  uint64_t position = contents.data_begin;
  for (const SafetensorsEntry& entry : contents.entries) {
    check(contents.data_begin + entry.begin == position, "a hole or an overlap was accepted");
    check(static_cast<uint64_t>(entry.shape.elements() * size_of(entry.dtype)) == entry.end - entry.begin,
          "a wrong size was accepted");
    position = contents.data_begin + entry.end;
  }
  check(position == input.size(), "bytes of no tensor were accepted");
}

std::vector<std::string> manifest_seeds() {
  Manifest manifest;
  manifest.state.step = 500;
  manifest.state.consumed_samples = 4000;
  manifest.state.val_loss = 1.75;
  manifest.state.data_fingerprint = "9f86d081";
  manifest.state.config = {{"train.batch", "8"}, {"data.train", "\"tiny.txt\""}};
  manifest.files = {{"model-00000.safetensors", 680, 0x12345678}, {"tokenizer.json", 38, 9}};
  manifest.tensors["wte"] = {{4, 2}, {{{{"model-00000.safetensors", "wte", {2, 0}, {2, 2}}}, {}, {}}}};
  const std::string small = manifest_text({});
  return {manifest_text(manifest), small};
}

// Almost every mutation is caught by the checksum, so the rest is tried behind a right one.
std::string with_right_checksum(std::string_view input) {
  const size_t last_line = input.rfind("\"crc32c\":");
  std::string body(input.substr(0, last_line));
  char line[32];
  std::snprintf(line, sizeof line, "\"crc32c\":\"%08x\"}\n", crc32c(std::string_view(body)));
  return body + line;
}

void parse_manifest_file(std::string_view input, const fs::path&) {
  const Manifest manifest = parse_manifest(with_right_checksum(input), "manifest.json");
  const std::string text = manifest_text(manifest);
  check(manifest_text(parse_manifest(text, "copy")) == text, "a manifest changed in its own text");
}

void parse_raw_manifest(std::string_view input, const fs::path&) {
  parse_manifest(input, "manifest.json");
}

}  // namespace

std::vector<Parser> checkpoint_parsers() {
  return {{"safetensors", safetensors_seeds(), parse_safetensors_file},
          {"manifest", manifest_seeds(), parse_manifest_file},
          {"manifest_raw", manifest_seeds(), parse_raw_manifest}};
}

}  // namespace hearth::fuzz
