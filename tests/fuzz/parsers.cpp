// The table of parsers that are fuzzed.
#include <fstream>

#include "base/error.h"
#include "data/dataset.h"
#include "data/documents.h"
#include "data/gpt2_tokenizer.h"
#include "data/utf8.h"
#include "fuzz.h"

namespace hearth::fuzz {
namespace {

constexpr char merges[] = "#version: 0.2\nh e\nl l\nhe ll\nhell o\n\xC4\xA0 w\na a\n";

template <class T>
std::string bytes_of(const std::vector<T>& values) {
  return std::string(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(T));
}

std::string header_of(int32_t magic, int32_t version, int32_t third, int32_t fourth = 0) {
  std::vector<int32_t> header(256);
  header[0] = magic;
  header[1] = version;
  header[2] = third;
  header[3] = fourth;
  return bytes_of(header);
}

std::unique_ptr<Tokenizer> small_gpt2() {
  return make_gpt2_tokenizer(parse_merges_file(merges, "seed"));
}

// ---- Seeds

std::vector<std::string> token_file_seeds() {
  const std::vector<uint16_t> narrow = {1, 2, 3, 99, 0, 7};
  const std::vector<uint32_t> wide = {1, 99, 3};
  return {bytes_of(narrow), header_of(20240520, 1, 6) + bytes_of(narrow),
          header_of(20240801, 7, 3) + bytes_of(wide), header_of(20240522, 1, 6)};
}

std::vector<std::string> tokenizer_json_seeds() {
  return {make_byte_tokenizer()->to_json(), make_char_tokenizer("abc \u00E9\u6F22\n")->to_json(),
          small_gpt2()->to_json(), R"({"vocab_size":3,"itos":{"0":"a","1":"b","2":"\n"}})"};
}

std::vector<std::string> llmc_tokenizer_seeds() {
  const auto tokenizer = small_gpt2();
  const auto vocab = static_cast<int32_t>(tokenizer->vocab());
  std::string bytes = header_of(20240328, 2, vocab, vocab - 1);
  for (int32_t id = 0; id < vocab; ++id) {
    const std::string token = tokenizer->decode(id);
    bytes += static_cast<char>(token.size()) + token;
  }
  return {bytes};
}

std::vector<std::string> jsonl_seeds() {
  return {"{\"text\":\"one\"}\n{\"id\":1,\"text\":\"two \\u00e9\\ud83d\\ude42\"}\n\n{\"text\":\"\"}\n",
          R"({"meta":{"a":[1,2.5e3,null,true]},"text":"x"})"};
}

std::vector<std::string> text_seeds() {
  return {"hello  world, it's 42 o'clock\n\n\tna\u00EFve \u6F22\u5B57 \U0001F642\u00A0!",
          "aaaa    \u3000\u0085x"};
}

// ---- Parsers

void parse_token_file(std::string_view input, const fs::path& scratch) {
  const fs::path path = scratch / "tokens.bin";
  std::ofstream(path, std::ios::binary).write(input.data(), static_cast<std::streamsize>(input.size()));
  for (const int64_t vocab : {0, 100}) {
    const auto shard = open_token_file(path, vocab);
    std::vector<int32_t> tokens(shard->size());
    shard->read(0, tokens);
  }
}

// A tokenizer that was accepted must work: its ids decode, and it survives its own JSON.
void use(const Tokenizer& tokenizer) {
  for (int32_t id = 0; id < tokenizer.vocab(); ++id)
    tokenizer.decode(id);
  const std::string json = tokenizer.to_json();
  check(load_tokenizer(json, "copy")->to_json() == json, "a tokenizer changed in its own JSON");
  try {
    const std::string text = "hello world";
    check(tokenizer.decode(tokenizer.encode(text)) == text, "text does not survive the tokenizer");
  } catch (const Error&) {
    // A char tokenizer need not know these characters.
  }
}

void parse_tokenizer_json(std::string_view input, const fs::path&) {
  use(*load_tokenizer(input, "fuzz"));
}

void parse_merges_text(std::string_view input, const fs::path&) {
  use(*make_gpt2_tokenizer(parse_merges_file(input, "fuzz")));
}

void parse_llmc(std::string_view input, const fs::path&) {
  use(*make_gpt2_tokenizer(parse_llmc_tokenizer(input, "fuzz")));
}

void parse_jsonl(std::string_view input, const fs::path&) {
  for_each_json_line(input, "fuzz.jsonl", [](std::string_view document, const std::string& where) {
    require_utf8(document, where);
    count_characters(document);
  });
}

void tokenise(std::string_view input, const fs::path&) {
  const auto tokenizer = small_gpt2();
  const std::vector<int32_t> ids = tokenizer->encode(input);
  check(tokenizer->decode(ids) == input, "text does not survive the tokenizer");
  std::vector<int32_t> pieces;
  while (!input.empty()) {
    const size_t length = safe_break(input, 5);
    tokenizer->encode(input.substr(0, length), pieces);
    input.remove_prefix(length);
  }
  check(pieces == ids, "cutting the text changed its tokens");
}

}  // namespace

std::vector<Parser> all_parsers() {
  std::vector<Parser> parsers = {
      {"token_file", token_file_seeds(), parse_token_file},
      {"tokenizer_json", tokenizer_json_seeds(), parse_tokenizer_json},
      {"merges", {merges, "a b\nab c\n"}, parse_merges_text},
      {"llmc_tokenizer", llmc_tokenizer_seeds(), parse_llmc},
      {"jsonl", jsonl_seeds(), parse_jsonl},
      {"gpt2_text", text_seeds(), tokenise},
  };
  for (Parser& parser : config_parsers())
    parsers.push_back(std::move(parser));
  for (Parser& parser : checkpoint_parsers())
    parsers.push_back(std::move(parser));
  return parsers;
}

}  // namespace hearth::fuzz
