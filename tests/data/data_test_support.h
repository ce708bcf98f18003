// What the tests of src/data share: files written in one line, and the sentence of an error.
#pragma once

#include <gtest/gtest.h>

#include <fstream>
#include <string>
#include <string_view>
#include <vector>

#include "base/error.h"
#include "base/files.h"
#include "support/temp_dir.h"

namespace hearth {

inline fs::path write_file(const fs::path& path, std::string_view content) {
  std::ofstream(path, std::ios::binary).write(content.data(), static_cast<std::streamsize>(content.size()));
  return path;
}

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

// An llm.c shard with a correct header.
template <class T>
std::string shard_bytes(int32_t magic, int32_t version, const std::vector<T>& tokens) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = static_cast<int32_t>(tokens.size());
  return bytes_of(header) + bytes_of(tokens);
}

// Runs an action that must fail with this code; gives the sentence.
template <class Action>
std::string error_of(const Action& action, ExitCode code = ExitCode::data) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), code) << error.what();
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

inline void expect_contains(const std::string& sentence, const std::string& part) {
  EXPECT_NE(sentence.find(part), std::string::npos) << "\"" << part << "\" is missing in: " << sentence;
}

}  // namespace hearth
