// The safetensors container: what we write, what we accept, and every rule of the format broken once.
#include "train/safetensors.h"

#include <gtest/gtest.h>

#include <cstring>
#include <fstream>

#include "support/temp_dir.h"

namespace hearth {
namespace {

std::string length_word(uint64_t length) {
  return std::string(reinterpret_cast<const char*>(&length), 8);
}

std::string file_of(const std::string& header, size_t data_bytes) {
  return length_word(header.size()) + header + std::string(data_bytes, 'd');
}

// The sentence with which a file is refused, without its beginning; "" when it is accepted.
std::string refusal(const std::string& file) {
  try {
    parse_safetensors(file, "f.safetensors");
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    const std::string sentence = error.what();
    EXPECT_EQ(sentence.find("f.safetensors "), 0u) << sentence;
    return sentence;
  }
  return "";
}

void expect_refused(const std::string& file, const std::string& part) {
  const std::string sentence = refusal(file);
  EXPECT_NE(sentence.find(part), std::string::npos) << "\"" << part << "\" is missing in: " << sentence;
}

TEST(Safetensors, HeaderBytes) {
  std::vector<SafetensorsEntry> entries = {{"b", DType::f32, {2, 3}, 0, 0},
                                           {"a\n", DType::bf16, Shape(), 0, 0}};
  const std::string header = safetensors_header(entries);
  const std::string json =
      R"({"__metadata__":{"format":"pt"},"b":{"dtype":"F32","shape":[2,3],"data_offsets":[0,24]},)"
      R"("a\n":{"dtype":"BF16","shape":[],"data_offsets":[24,26]}})";
  EXPECT_EQ(header.size() % 8, 0u);
  EXPECT_EQ(header.substr(0, 8), length_word(header.size() - 8));
  EXPECT_EQ(header.substr(8, json.size()), json);
  EXPECT_EQ(header.find_first_not_of(' ', 8 + json.size()), std::string::npos);
  EXPECT_EQ(entries[1].begin, 24u);
  EXPECT_EQ(entries[1].end, 26u);
}

TEST(Safetensors, ReadsItsOwnFile) {
  std::vector<SafetensorsEntry> entries = {
      {"x", DType::i32, {2}, 0, 0}, {"none", DType::f64, {0, 5}, 0, 0}, {"y", DType::u8, {1, 1, 1, 3}, 0, 0}};
  const TempDir dir;
  std::ofstream(dir / "f", std::ios::binary) << safetensors_header(entries) << "12345678abc";
  const SafetensorsFile file(dir / "f");
  ASSERT_EQ(file.entries().size(), 3u);
  ASSERT_NE(file.find("y"), nullptr);
  EXPECT_EQ(file.find("y")->shape, Shape({1, 1, 1, 3}));
  EXPECT_EQ(std::memcmp(file.bytes(*file.find("y")).data(), "abc", 3), 0);
  EXPECT_EQ(std::memcmp(file.bytes(*file.find("x")).data(), "12345678", 8), 0);
  EXPECT_TRUE(file.bytes(*file.find("none")).empty());
  EXPECT_EQ(file.find("z"), nullptr);
}

TEST(Safetensors, AcceptsForeignFiles) {
  // Keys in any order, no metadata, white space, padding, tensors out of order, text escapes, no tensors.
  EXPECT_EQ(
      refusal(file_of(
          R"({ "b" : {"shape":[1],"data_offsets":[4,8],"dtype":"F32"}, "a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]} }   )",
          8)),
      "");
  EXPECT_EQ(refusal(file_of(R"({"é":{"dtype":"U8","shape":[],"data_offsets":[0,1]}})", 1)), "");
  EXPECT_EQ(refusal(file_of(R"({})", 0)), "");
  EXPECT_EQ(refusal(file_of(R"({"__metadata__":{"format":"pt","x":"y"}})", 0)), "");
  const SafetensorsContents sorted = parse_safetensors(
      file_of(
          R"({"b":{"shape":[4],"data_offsets":[4,8],"dtype":"U8"},"a":{"dtype":"U8","shape":[4],"data_offsets":[0,4]}})",
          8),
      "f");
  EXPECT_EQ(sorted.entries[0].key, "a");
}

TEST(Safetensors, FilesThatAreSomethingElse) {
  expect_refused("", "is empty");
  expect_refused("1234567", "has only 7 bytes");
  expect_refused(std::string(8, '\0'), "does not start with {");
  expect_refused(std::string("\x80\x02}q\0\0\0\0\0\0", 10), "the format allows 100000000");
  expect_refused(length_word(100'000'001) + "{}", "a header of 100000001 bytes");
  expect_refused(length_word(UINT64_MAX) + "{}", "a header of 18446744073709551615 bytes");
  expect_refused(length_word(3) + "{}", "is cut off");
  expect_refused(file_of(" {}", 0), "does not start with {");
  expect_refused(file_of("\xef\xbb\xbf{}", 0), "does not start with {");
}

TEST(Safetensors, HeadersThatAreNotTheFormat) {
  const auto tensor = [](const std::string& fields) { return file_of("{\"w\":{" + fields + "}}", 4); };
  const std::string shape = R"("shape":[1])", dtype = R"("dtype":"F32")", offsets = R"("data_offsets":[0,4])";
  ASSERT_EQ(refusal(tensor(dtype + "," + shape + "," + offsets)), "");
  expect_refused(tensor(shape + "," + offsets), "\"w\" has no dtype");
  expect_refused(tensor(dtype + "," + offsets), "\"w\" has no shape");
  expect_refused(tensor(dtype + "," + shape), "\"w\" has no data_offsets");
  expect_refused(tensor(dtype + "," + shape + "," + offsets + "," + shape), "has shape twice");
  expect_refused(tensor(dtype + "," + dtype + "," + shape + "," + offsets), "has dtype twice");
  expect_refused(tensor(dtype + "," + shape + "," + offsets + ",\"x\":1"), "unknown field \"x\"");
  expect_refused(tensor("\"dtype\":\"F16\"," + shape + "," + offsets), "has type \"F16\"; Hearth reads");
  expect_refused(tensor("\"dtype\":4," + shape + "," + offsets), "has a number in a place");
  expect_refused(tensor(dtype + ",\"shape\":[-1]," + offsets), "negative number");
  expect_refused(tensor(dtype + ",\"shape\":[1.0]," + offsets), "a fraction");
  expect_refused(tensor(dtype + ",\"shape\":[1e0]," + offsets), "a fraction");
  expect_refused(tensor(dtype + ",\"shape\":[99999999999999999999]," + offsets), "huge number");
  expect_refused(tensor(dtype + ",\"shape\":[18446744073709551615]," + offsets),
                 "a dimension of 18446744073709551615");
  expect_refused(tensor(dtype + ",\"shape\":[4294967296,4294967296]," + offsets),
                 "more bytes than can be counted");
  expect_refused(tensor(dtype + ",\"shape\":[4611686018427387904]," + offsets),
                 "more bytes than can be counted");
  expect_refused(tensor(dtype + ",\"shape\":[1,1,1,1,1]," + offsets), "more than 4 dimensions");
  expect_refused(tensor(dtype + ",\"shape\":1," + offsets), "has a number in a place");
  expect_refused(tensor(dtype + ",\"shape\":[[1]]," + offsets), "has a list in a place");
  expect_refused(tensor(dtype + ",\"shape\":[null]," + offsets), "has a null in a place");
  expect_refused(tensor(dtype + "," + shape + ",\"data_offsets\":[0]"), "fewer than two");
  expect_refused(tensor(dtype + "," + shape + ",\"data_offsets\":[0,4,8]"), "more than two");
  expect_refused(tensor(dtype + "," + shape + ",\"data_offsets\":[4,0]"), "needs 4 bytes, but");
  expect_refused(tensor(dtype + "," + shape + ",\"data_offsets\":[0,3]"),
                 "needs 4 bytes, but its data_offsets are [0, 3]");
  expect_refused(file_of("{\"w\":1}", 0), "has a number in a place");
  expect_refused(file_of("{\"w\":[]}", 0), "has a list in a place");
  expect_refused(file_of("{\"w\":true}", 0), "has a truth value in a place");
  expect_refused(file_of("{\"w\":\"x\"}", 0), "has a text in a place");
  expect_refused(file_of("{\"__metadata__\":{\"a\":1}}", 0), "has a number in a place");
  expect_refused(file_of("{\"__metadata__\":{\"a\":{}}}", 0), "has an object in a place");
  expect_refused(file_of("{\"__metadata__\":{\"a\":\"1\",\"a\":\"1\"}}", 0),
                 "metadata has the key \"a\" twice");
  expect_refused(file_of("{\"__metadata__\":{},\"__metadata__\":{}}", 0), "the key \"__metadata__\" twice");
  expect_refused(
      file_of(
          R"({"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]},"w":{"dtype":"U8","shape":[0],"data_offsets":[0,0]}})",
          0),
      "the key \"w\" twice");
  expect_refused(file_of("{}{}", 0), "not valid JSON at byte");
  expect_refused(file_of("{\"w\"", 0), "not valid JSON at byte");
  expect_refused(file_of("{\"\xff\":{}}", 0), "not valid JSON at byte");
  expect_refused(file_of(std::string("{\0}", 3), 0), "not valid JSON at byte");
  // Nesting must cost no stack.
  expect_refused(file_of("{\"w\":" + std::string(2'000'000, '['), 0), "has a list in a place");
  std::string deep = "{\"__metadata__\":{";
  for (int i = 0; i < 100'000; ++i)
    deep += "\"a\":{";
  expect_refused(file_of(deep, 0), "has an object in a place");
}

std::string two_tensors(const std::string& first, const std::string& second, size_t data_bytes) {
  return file_of("{\"a\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" + first +
                     "},\"b\":{\"dtype\":\"U8\",\"shape\":[4],\"data_offsets\":" + second + "}}",
                 data_bytes);
}

TEST(Safetensors, LayoutsThatDoNotFillTheFile) {
  ASSERT_EQ(refusal(two_tensors("[0,4]", "[4,8]", 8)), "");
  expect_refused(two_tensors("[0,4]", "[0,4]", 4), "begins at 0, inside the previous one, which ends at 4");
  expect_refused(two_tensors("[0,4]", "[3,7]", 7), "begins at 3, inside");
  expect_refused(two_tensors("[0,4]", "[5,9]", 9), "begins at 5, after a hole");
  expect_refused(two_tensors("[1,5]", "[5,9]", 9), "begins at 1, after a hole");
  expect_refused(two_tensors("[0,4]", "[4,8]", 7), "is cut off");
  expect_refused(two_tensors("[0,4]", "[4,8]", 9), "belong to no tensor");
  expect_refused(two_tensors("[0,4]", "[18446744073709551612,18446744073709551615]", 8),
                 "needs 4 bytes, but");
  expect_refused(two_tensors("[0,4]", "[18446744073709551611,18446744073709551615]", 8), "after a hole");
}

// Every cut and every single-byte change of a small file is either refused or read within its bounds.
TEST(Safetensors, DamagedFilesNeverReadOutside) {
  std::vector<SafetensorsEntry> entries = {{"x", DType::i32, {2}, 0, 0}, {"y", DType::bf16, {3}, 0, 0}};
  const std::string file = safetensors_header(entries) + std::string(14, 'd');
  for (size_t length = 0; length < file.size(); ++length)
    EXPECT_NE(refusal(file.substr(0, length)), "") << length;
  for (size_t at = 0; at < file.size(); ++at)
    for (int value = 0; value < 256; value += 3) {
      std::string changed = file;
      changed[at] = static_cast<char>(value);
      try {
        const SafetensorsContents contents = parse_safetensors(changed, "f");
        for (const SafetensorsEntry& entry : contents.entries)
          ASSERT_LE(contents.data_begin + entry.end, changed.size());
      } catch (const Error&) {
      }
    }
}

}  // namespace
}  // namespace hearth
