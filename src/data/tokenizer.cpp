// What all tokenizers share, and the byte tokenizer.
#include "data/tokenizer.h"

#include "base/error.h"

namespace hearth {
namespace {

class ByteTokenizer final : public Tokenizer {
 public:
  std::string kind() const override { return "byte"; }
  int64_t vocab() const override { return 256; }

  void encode(std::string_view text, std::vector<int32_t>& ids) const override {
    ids.reserve(ids.size() + text.size());
    for (const char c : text)
      ids.push_back(static_cast<uint8_t>(c));
  }

  std::string decode(int32_t id) const override {
    if (id < 0 || id >= vocab())
      fail_data("token id ", id, " is outside the byte tokenizer's vocabulary of 256");
    return std::string(1, static_cast<char>(id));
  }

  std::string to_json() const override { return "{\"hearth_tokenizer\":1,\"kind\":\"byte\"}\n"; }
};

}  // namespace

std::vector<int32_t> Tokenizer::encode(std::string_view text) const {
  std::vector<int32_t> ids;
  encode(text, ids);
  return ids;
}

std::string Tokenizer::decode(const std::vector<int32_t>& ids) const {
  std::string bytes;
  for (const int32_t id : ids)
    bytes += decode(id);
  return bytes;
}

std::string Tokenizer::fingerprint() const {
  return sha256_hex(to_json());
}

std::unique_ptr<Tokenizer> make_byte_tokenizer() {
  return std::make_unique<ByteTokenizer>();
}

}  // namespace hearth
