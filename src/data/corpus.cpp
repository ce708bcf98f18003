// open_corpus: from the words of `[data]` to two datasets and a tokenizer.
//
// An entry is a token file or plain text; both must not be mixed.  Text is tokenised in memory, token files
// are mapped.  Without data.val the end of the training data is held out.
#include <glob.h>

#include <algorithm>
#include <tuple>

#include "base/error.h"
#include "base/text.h"
#include "data/char_tokenizer.h"
#include "data/dataset.h"
#include "data/shards.h"
#include "data/split.h"
#include "data/utf8.h"

namespace hearth {
namespace {

using Shards = std::vector<std::unique_ptr<TokenShard>>;
using SharedTokenizer = std::shared_ptr<const Tokenizer>;

std::string trimmed(std::string_view s) {
  const size_t first = s.find_first_not_of(" \t\n");
  if (first == std::string_view::npos) return "";
  return std::string(s.substr(first, s.find_last_not_of(" \t\n") - first + 1));
}

std::vector<fs::path> expand_glob(const std::string& pattern, const std::string& key) {
  glob_t matches;
  const int status = glob(pattern.c_str(), 0, nullptr, &matches);  // sorted by name
  std::vector<fs::path> paths;
  if (status == 0) paths.assign(matches.gl_pathv, matches.gl_pathv + matches.gl_pathc);
  globfree(&matches);
  if (paths.empty()) fail_data(key, ": no file matches ", quoted(pattern, 200));
  return paths;
}

// The files that a list such as "a.txt, shards/train_*.bin" names.
std::vector<fs::path> expand(const std::string& list, const std::string& key) {
  std::vector<fs::path> paths;
  for (size_t begin = 0; begin <= list.size();) {
    const size_t comma = std::min(list.find(',', begin), list.size());
    const std::string entry = trimmed(std::string_view(list).substr(begin, comma - begin));
    begin = comma + 1;
    if (entry.empty()) continue;
    std::error_code none;
    if (fs::is_directory(entry, none))
      fail_data(key, ": ", entry, " is a folder; name its files, for example ", entry, "/train_*.bin");
    if (fs::exists(entry, none)) {
      paths.emplace_back(entry);
    } else if (entry.find_first_of("*?[") != std::string::npos) {
      for (fs::path& path : expand_glob(entry, key))
        paths.push_back(std::move(path));
    } else {
      fail_data(key, ": there is no file ", entry, " (seen from ", fs::current_path().string(), ")");
    }
  }
  if (paths.empty()) fail_usage(key, " is empty; name a text file or token files");
  return paths;
}

// Whether these are token files; a mixture is an error.
bool are_token_files(const std::vector<fs::path>& paths) {
  const bool first = is_token_file(paths[0]);
  for (const fs::path& path : paths) {
    if (path.extension() == ".jsonl")
      fail_data(path.string(), " holds JSON lines; turn it into token files with `hearth prepare` first");
    if (is_token_file(path) != first)
      fail_data(paths[0].string(), " is ", first ? "a token file" : "text", ", but ", path.string(), " is ",
                first ? "text" : "a token file", "; use only one kind, or `hearth prepare` the text first");
  }
  return first;
}

void check_vocab(const Tokenizer& tokenizer, int64_t vocab, const std::string& source) {
  if (vocab != 0 && tokenizer.vocab() > vocab)
    fail_data("model.vocab is ", vocab, ", but the ", tokenizer.kind(), " tokenizer", source, " has ",
              tokenizer.vocab(), " ids; leave model.vocab out or set it to ", tokenizer.vocab());
}

double checked_fraction(const DataConfig& config) {
  if (!(config.val_fraction > 0.0 && config.val_fraction < 1.0))
    fail_usage("data.val_fraction is ", config.val_fraction,
               "; expected a number between 0 and 1, or data.val");
  return config.val_fraction;
}

// A dataset whose error, when the data is too short, says which part of the data it is.
Dataset make_dataset(Shards shards, int64_t context, const std::string& part) {
  try {
    return Dataset(std::move(shards), context);
  } catch (const Error& error) {
    throw Error(error.code(), part + ": " + error.what());
  }
}

// ---- Text

struct Documents {
  std::vector<fs::path> paths;
  std::vector<std::string> contents;
};

Documents read_documents(std::vector<fs::path> paths) {
  Documents documents;
  for (const fs::path& path : paths) {
    documents.contents.push_back(read_file(path));
    if (documents.contents.back().empty()) fail_data(path.string(), " is empty: expected text");
  }
  documents.paths = std::move(paths);
  return documents;
}

SharedTokenizer char_tokenizer_of(const Documents& train, const Documents& val) {
  CharacterSet set;
  for (const Documents* part : {&train, &val})
    for (size_t i = 0; i < part->contents.size(); ++i)
      set.add(part->contents[i], part->paths[i].string());
  return make_char_tokenizer(set.sorted(), "data.train");
}

SharedTokenizer text_tokenizer(const std::string& wanted, const Documents& train, const Documents& val) {
  if (wanted == "auto" || wanted == "byte") return make_byte_tokenizer();
  if (wanted == "char") return char_tokenizer_of(train, val);
  if (wanted == "gpt2") return make_default_gpt2_tokenizer();
  return load_tokenizer_file(wanted);
}

// Tokenises the parts [begin, end) of each document; an end-of-text token, where there is one,
// between documents.
class TextEncoder {
 public:
  explicit TextEncoder(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {}

  void add(std::string_view part, const fs::path& path) {
    if (part.empty()) return;
    if (!ids_.empty() && tokenizer_.end_of_text()) ids_.push_back(*tokenizer_.end_of_text());
    try {
      tokenizer_.encode(part, ids_);
    } catch (const Error& error) {
      throw Error(error.code(), path.string() + ": " + error.what());
    }
  }

  Shards take(const std::vector<fs::path>& paths) {
    std::string name = paths[0].string();
    if (paths.size() > 1) name += text(" and ", paths.size() - 1, " more");
    Shards shards;
    shards.push_back(memory_shard(std::move(ids_), name));
    return shards;
  }

 private:
  const Tokenizer& tokenizer_;
  std::vector<int32_t> ids_;
};

Shards encode_all(const Documents& documents, const Tokenizer& tokenizer) {
  TextEncoder encoder(tokenizer);
  for (size_t i = 0; i < documents.contents.size(); ++i)
    encoder.add(documents.contents[i], documents.paths[i]);
  return encoder.take(documents.paths);
}

// Splits the documents, seen as one text, at character floor((1 - fraction) * characters).
std::pair<Shards, Shards> encode_split(const Documents& documents, const Tokenizer& tokenizer,
                                       double fraction) {
  int64_t characters = 0;
  for (const std::string& content : documents.contents)
    characters += count_characters(content);
  int64_t left = training_part(characters, fraction);
  TextEncoder train(tokenizer);
  TextEncoder val(tokenizer);
  for (size_t i = 0; i < documents.contents.size(); ++i) {
    const std::string_view content = documents.contents[i];
    const size_t cut = character_offset(content, left);
    train.add(content.substr(0, cut), documents.paths[i]);
    val.add(content.substr(cut), documents.paths[i]);
    left -= std::min(left, count_characters(content));
  }
  return {train.take(documents.paths), val.take(documents.paths)};
}

Corpus open_text(const DataConfig& config, std::vector<fs::path> train_paths, std::vector<fs::path> val_paths,
                 int64_t context, int64_t vocab) {
  const Documents train = read_documents(std::move(train_paths));
  const Documents val = read_documents(std::move(val_paths));
  SharedTokenizer tokenizer = text_tokenizer(config.tokenizer, train, val);
  check_vocab(*tokenizer, vocab, "");
  std::pair<Shards, Shards> shards;
  if (val.contents.empty())
    shards = encode_split(train, *tokenizer, checked_fraction(config));
  else
    shards = {encode_all(train, *tokenizer), encode_all(val, *tokenizer)};
  const char* val_part = val.contents.empty() ? "the part held out by data.val_fraction" : "data.val";
  Dataset train_set = make_dataset(std::move(shards.first), context, "data.train");
  Dataset val_set = make_dataset(std::move(shards.second), context, val_part);
  std::string description =
      text(train_set.description(), ", validation ", with_commas(val_set.tokens()), " tokens, ",
           tokenizer->kind(), " tokenizer (", with_commas(tokenizer->vocab()), " ids)");
  const int64_t ids = tokenizer->vocab();
  return {std::move(train_set), std::move(val_set), std::move(tokenizer), ids, std::move(description)};
}

// ---- Token files

// The tokenizer file that lies beside a token file, or "".
fs::path tokenizer_beside(const fs::path& token_file) {
  for (const char* name : {"tokenizer.json", "meta.json"}) {
    const fs::path candidate = token_file.parent_path() / name;
    if (std::error_code none; fs::is_regular_file(candidate, none)) return candidate;
  }
  return {};
}

// The tokenizer that all folders of the token files agree on; null when none has one.
SharedTokenizer tokenizer_beside_all(const std::vector<fs::path>& paths) {
  SharedTokenizer tokenizer;
  fs::path source;
  for (const fs::path& path : paths) {
    const fs::path file = tokenizer_beside(path);
    if (file.empty() || file == source) continue;
    SharedTokenizer other = load_tokenizer_file(file);
    if (tokenizer && tokenizer->fingerprint() != other->fingerprint())
      fail_data("the tokenizers of the data differ: ", source.string(), " and ", file.string());
    tokenizer = std::move(other);
    source = file;
  }
  return tokenizer;
}

// The tokenizer that the config names; null for "auto".
SharedTokenizer named_tokenizer(const std::string& wanted, const SharedTokenizer& beside) {
  if (wanted == "auto") return nullptr;
  if (wanted == "byte") return make_byte_tokenizer();
  if (wanted == "gpt2") return beside && beside->kind() == "gpt2" ? beside : make_default_gpt2_tokenizer();
  if (wanted != "char") return load_tokenizer_file(wanted);
  if (beside && beside->kind() == "char") return beside;
  fail_data(
      "data.tokenizer is \"char\", but no char tokenizer lies beside the token files; name a tokenizer file");
}

SharedTokenizer shard_tokenizer(const std::string& wanted, const std::vector<fs::path>& paths) {
  const SharedTokenizer beside = tokenizer_beside_all(paths);
  const SharedTokenizer named = named_tokenizer(wanted, beside);
  if (named && beside && named->fingerprint() != beside->fingerprint())
    fail_data("data.tokenizer is ", quoted(wanted, 200), ", but the tokenizer saved beside ",
              paths[0].string(), " is another one (", beside->kind(), ", ", beside->vocab(),
              " ids); use data.tokenizer = \"auto\"");
  return named ? named : beside;
}

Shards open_shards(const std::vector<fs::path>& paths, int64_t vocab) {
  Shards shards;
  for (const fs::path& path : paths)
    shards.push_back(open_token_file(path, vocab));
  return shards;
}

// Cuts a sequence of shards at token floor((1 - fraction) * tokens).
std::pair<Shards, Shards> split_shards(Shards shards, double fraction) {
  int64_t tokens = 0;
  for (const auto& shard : shards)
    tokens += shard->size();
  int64_t left = training_part(tokens, fraction);
  Shards train;
  Shards val;
  for (auto& owned : shards) {
    const std::shared_ptr<const TokenShard> shard = std::move(owned);
    const int64_t cut = std::min(left, shard->size());
    if (cut > 0) train.push_back(slice_shard(shard, 0, cut));
    if (cut < shard->size()) val.push_back(slice_shard(shard, cut, shard->size()));
    left -= cut;
  }
  return {std::move(train), std::move(val)};
}

Corpus open_tokens(const DataConfig& config, const std::vector<fs::path>& train_paths,
                   const std::vector<fs::path>& val_paths, int64_t context, int64_t vocab) {
  std::vector<fs::path> all = train_paths;
  all.insert(all.end(), val_paths.begin(), val_paths.end());
  SharedTokenizer tokenizer = shard_tokenizer(config.tokenizer, all);
  if (tokenizer) check_vocab(*tokenizer, vocab, " beside " + train_paths[0].string());
  const int64_t ids = tokenizer ? tokenizer->vocab() : implied_vocab(train_paths[0]);
  const int64_t limit = ids != 0 && (vocab == 0 || tokenizer) ? ids : vocab;

  Shards train = open_shards(train_paths, limit);
  Shards val = open_shards(val_paths, limit);
  if (val.empty()) std::tie(train, val) = split_shards(std::move(train), checked_fraction(config));
  const char* val_part = val_paths.empty() ? "the part held out by data.val_fraction" : "data.val";
  Dataset train_set = make_dataset(std::move(train), context, "data.train");
  Dataset val_set = make_dataset(std::move(val), context, val_part);
  std::string description =
      text(train_set.description(), ", validation ", with_commas(val_set.tokens()), " tokens, ");
  description +=
      tokenizer ? text(tokenizer->kind(), " tokenizer (", with_commas(ids), " ids)") : "no tokenizer";
  return {std::move(train_set), std::move(val_set), std::move(tokenizer), ids, std::move(description)};
}

}  // namespace

Corpus open_corpus(const DataConfig& config, int64_t context, int64_t vocab) {
  std::vector<fs::path> train = expand(config.train, "data.train");
  std::vector<fs::path> val;
  if (!trimmed(config.val).empty()) val = expand(config.val, "data.val");
  std::vector<fs::path> all = train;
  all.insert(all.end(), val.begin(), val.end());
  return are_token_files(all) ? open_tokens(config, train, val, context, vocab)
                              : open_text(config, std::move(train), std::move(val), context, vocab);
}

}  // namespace hearth
