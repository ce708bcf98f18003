// Files: reading whole files, memory maps, durable writes, checksums.
//
// Every function throws Error(ExitCode::data) with the path and the system's reason.  Durable writes follow
// one protocol: write, fsync, close, rename, fsync of the folder; a reader sees the old file or the new one.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace hearth {

namespace fs = std::filesystem;

// A read-only memory map of a whole file.  Movable; unmapped in the destructor.
// An empty file gives an empty span.
class MappedFile {
 public:
  MappedFile() = default;
  explicit MappedFile(const fs::path& path);
  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  std::span<const std::byte> bytes() const { return {data_, size_}; }
  std::string_view chars() const { return {reinterpret_cast<const char*>(data_), size_}; }
  const fs::path& path() const { return path_; }

 private:
  const std::byte* data_ = nullptr;
  size_t size_ = 0;
  fs::path path_;
};

// A file being written: buffers nothing, counts bytes and the CRC32C as it goes.  Not closed by finish()
// means incomplete: the destructor closes and deletes it.
class FileWriter {
 public:
  // Creates or truncates the file.
  explicit FileWriter(const fs::path& path);
  ~FileWriter();
  FileWriter(const FileWriter&) = delete;
  FileWriter& operator=(const FileWriter&) = delete;

  void write(std::span<const std::byte> bytes);
  void write(std::string_view chars);
  // fsync and close.  Throws on failure; afterwards size() and crc() describe the file.
  void finish();

  uint64_t size() const { return size_; }
  uint32_t crc() const { return crc_; }

 private:
  fs::path path_;
  int fd_ = -1;
  uint64_t size_ = 0;
  uint32_t crc_ = 0;
  bool finished_ = false;
};

// The whole file as a string.
std::string read_file(const fs::path& path);

// Replaces `path` with `content` durably: a temporary file beside it, fsync, rename, fsync of the folder.
void write_file_atomically(const fs::path& path, std::string_view content);

// fsync of a folder, so that renames and new names in it survive a crash.
void sync_folder(const fs::path& folder);

// CRC32C (Castagnoli, polynomial 0x82F63B78 reflected), continuing from `crc` (0 at the start).
// crc32c("123456789") = 0xe3069283.
uint32_t crc32c(std::span<const std::byte> bytes, uint32_t crc = 0);
uint32_t crc32c(std::string_view chars, uint32_t crc = 0);

// SHA-256 as lower-case hexadecimal (FIPS 180-4); for fingerprints of tokenizers and corpora.
std::string sha256_hex(std::span<const std::byte> bytes);
std::string sha256_hex(std::string_view chars);

// Bytes free for this user on the file system that holds `path` or its nearest existing parent.
uint64_t free_disk_bytes(const fs::path& path);

}  // namespace hearth
