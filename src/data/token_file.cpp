// Token files: llm.c's shards and nanoGPT's headerless .bin, memory-mapped and validated.
//
//   llm.c   256 int32: [0] magic, [1] version, [2] number of tokens; then the tokens
//           magic 20240520, version 1: uint16 (GPT-2)     magic 20240801, version 7: uint32 (Llama 3)
//   nanoGPT uint16 tokens and nothing else
#include <sys/mman.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstring>

#include "base/error.h"
#include "base/text.h"
#include "data/shards.h"

namespace hearth {
namespace {

constexpr size_t header_bytes = 1024;

enum class Format { raw16, shard16, shard32 };

struct KnownMagic {
  std::string_view bytes;
  const char* what;
};

using namespace std::string_view_literals;
constexpr KnownMagic foreign_formats[] = {
    {"\x8a\xd8\x34\x01"sv, "an llm.c evaluation file (magic 20240522)"},
    {"\xc6\xd7\x34\x01"sv, "an llm.c model checkpoint (magic 20240326)"},
    {"\xc8\xd7\x34\x01"sv, "an llm.c tokenizer file (magic 20240328)"},
    {"\xc7\xd7\x34\x01"sv, "an llm.c debug state (magic 20240327)"},
    {"\x8f\xd8\x34\x01"sv, "an llm.c optimizer state (magic 20240527)"},
    {"MMIDIDX\0\0"sv, "a Megatron index (.idx)"},
    {"\x93NUMPY"sv, "a NumPy array (.npy)"},
    {"PK\x03\x04"sv, "a zip archive (or a PyTorch checkpoint)"},
    {"\x1f\x8b"sv, "gzip-compressed"},
    {"\x28\xb5\x2f\xfd"sv, "zstd-compressed"},
};
constexpr std::string_view shard16_magic = "\x88\xd8\x34\x01"sv;
constexpr std::string_view shard32_magic = "\xa1\xd9\x34\x01"sv;

int32_t header_word(std::string_view bytes, size_t index) {
  int32_t word;
  std::memcpy(&word, bytes.data() + 4 * index, sizeof word);
  return word;
}

size_t width_of(Format format) {
  return format == Format::shard32 ? 4 : 2;
}

// The format of a file that has one we read; everything else is refused by name.
Format sniff(std::string_view bytes, const fs::path& path) {
  if (bytes.empty())
    fail_data(path.string(), " is empty: expected tokens; was a download or a copy cut off?");
  for (const KnownMagic& known : foreign_formats)
    if (bytes.starts_with(known.bytes))
      fail_data(path.string(), " is ", known.what,
                ", not a token file; token files come from `hearth prepare`, ",
                "llm.c's or nanoGPT's data scripts");
  if (bytes.starts_with(shard16_magic)) return Format::shard16;
  if (bytes.starts_with(shard32_magic)) return Format::shard32;
  const fs::path index = fs::path(path).replace_extension(".idx");
  if (std::error_code none; fs::exists(index, none))
    fail_data(path.string(), " is a Megatron data file (", index.filename().string(),
              " lies beside it), which this program cannot read; use `hearth prepare` on the text");
  if (bytes.size() % 2 != 0)
    fail_data(path.string(), " has ", bytes.size(),
              " bytes, an odd number: headerless token files hold 2 bytes a ",
              "token, so this one is cut off or is no token file");
  return Format::raw16;
}

void validate_header(std::string_view bytes, Format format, const fs::path& path) {
  if (bytes.size() < header_bytes)
    fail_data(path.string(), " has ", bytes.size(), " bytes, but the header of an llm.c shard alone has ",
              header_bytes, ": the file is cut off");
  const int32_t expected_version = format == Format::shard16 ? 1 : 7;
  const int32_t version = header_word(bytes, 1);
  if (version != expected_version)
    fail_data(path.string(), ": llm.c shard with magic ", header_word(bytes, 0), " and version ", version,
              "; expected version ", expected_version);
  const int64_t tokens = header_word(bytes, 2);
  const int64_t expected =
      static_cast<int64_t>(header_bytes) + tokens * static_cast<int64_t>(width_of(format));
  if (tokens <= 0) fail_data(path.string(), ": the header announces ", tokens, " tokens");
  if (expected != static_cast<int64_t>(bytes.size()))
    fail_data(path.string(), ": the header announces ", with_commas(tokens), " tokens, that is a file of ",
              with_commas(expected), " bytes, but it has ", with_commas(static_cast<int64_t>(bytes.size())),
              "; it is cut off or damaged, get it again");
}

class FileShard final : public TokenShard {
 public:
  FileShard(const fs::path& path, int64_t vocab) : file_(path), format_(sniff(file_.chars(), path)) {
    if (format_ != Format::raw16) validate_header(file_.chars(), format_, path);
    begin_ = format_ == Format::raw16 ? 0 : header_bytes;
    size_ = static_cast<int64_t>((file_.bytes().size() - begin_) / width_of(format_));
    validate_ids(vocab);
  }

  int64_t size() const override { return size_; }
  std::string name() const override { return file_.path().string(); }

  void read(int64_t begin, std::span<int32_t> out) const override {
    const int64_t count = std::ssize(out);
    check(begin >= 0 && count <= size_ - begin, "tokens ", begin, " + ", count, " of ", size_, " in ",
          name());
    copy(begin, out);
    // Pages that were touched stay in our resident set until they are dropped; the system's cache keeps them.
    constexpr int64_t around_a_fault = 128 << 10;
    constexpr int64_t most_resident = 32 << 20;
    const int64_t bytes = count * static_cast<int64_t>(width_of(format_)) + around_a_fault;
    if (resident_.fetch_add(bytes) > most_resident) drop_pages();
  }

 private:
  void copy(int64_t begin, std::span<int32_t> out) const {
    const std::byte* source = file_.bytes().data() + begin_ + static_cast<size_t>(begin) * width_of(format_);
    if (format_ == Format::shard32) {
      std::memcpy(out.data(), source, out.size_bytes());
      return;
    }
    for (size_t i = 0; i < out.size(); ++i) {
      uint16_t id;
      std::memcpy(&id, source + 2 * i, sizeof id);
      out[i] = id;
    }
  }

  void drop_pages() const {
    resident_ = 0;
    const std::span<const std::byte> bytes = file_.bytes();
    madvise(const_cast<std::byte*>(bytes.data()), bytes.size(), MADV_DONTNEED);
  }

  void validate_ids(int64_t vocab) const {
    const bool any_id_fits = vocab == 0 || (format_ != Format::shard32 && vocab > UINT16_MAX);
    if (any_id_fits && format_ != Format::shard32) return;
    const uint32_t limit = vocab == 0 ? INT32_MAX : static_cast<uint32_t>(vocab);
    std::vector<int32_t> block(std::min<int64_t>(size_, 1 << 20));
    for (int64_t begin = 0; begin < size_; begin += std::ssize(block)) {
      const auto ids = std::span(block).first(std::min<int64_t>(std::ssize(block), size_ - begin));
      read(begin, ids);
      uint32_t largest = 0;
      for (const int32_t id : ids)
        largest = std::max(largest, static_cast<uint32_t>(id));
      if (largest >= limit) fail_id(ids, begin, limit);
    }
    drop_pages();
  }

  [[noreturn]] void fail_id(std::span<const int32_t> ids, int64_t begin, uint32_t limit) const {
    const auto found =
        std::find_if(ids.begin(), ids.end(), [&](int32_t id) { return static_cast<uint32_t>(id) >= limit; });
    fail_data("token id ", static_cast<uint32_t>(*found), " at offset ", begin + (found - ids.begin()),
              " of ", name(), " is not below the vocabulary of ", limit,
              "; the file was made with another tokenizer, or model.vocab is wrong");
  }

  MappedFile file_;
  Format format_;
  size_t begin_ = 0;  // byte offset of the first token
  int64_t size_ = 0;
  mutable std::atomic<int64_t> resident_ = 0;  // bytes that reads may have mapped in since the last drop
};

// The first bytes of a file, fewer when it is shorter.
std::string first_bytes(const fs::path& path, size_t count) {
  const MappedFile file(path);
  return std::string(file.chars().substr(0, count));
}

}  // namespace

std::unique_ptr<TokenShard> open_token_file(const fs::path& path, int64_t vocab) {
  return std::make_unique<FileShard>(path, vocab);
}

bool is_token_file(const fs::path& path) {
  if (path.extension() == ".bin" || path.extension() == ".idx") return true;
  const std::string start = first_bytes(path, 16);
  if (start.starts_with(shard16_magic) || start.starts_with(shard32_magic)) return true;
  return std::any_of(std::begin(foreign_formats), std::end(foreign_formats),
                     [&](const KnownMagic& known) { return start.starts_with(known.bytes); });
}

int64_t implied_vocab(const fs::path& path) {
  return first_bytes(path, 4) == shard16_magic ? 50257 : 0;
}

}  // namespace hearth
