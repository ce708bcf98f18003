// `hearth prepare`: two passes over the inputs.  The first counts characters, checks UTF-8 and collects the
// characters for the char tokenizer; the second encodes and writes.
#include "data/prepare.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <functional>
#include <system_error>

#include "base/error.h"
#include "base/text.h"
#include "data/char_tokenizer.h"
#include "data/documents.h"
#include "data/shard_writer.h"
#include "data/split.h"
#include "data/utf8.h"

namespace hearth {
namespace {

// The folder under construction, renamed at the end; deleted when something fails before.
class StagingFolder {
 public:
  explicit StagingFolder(const fs::path& out) : out_(without_slash(out)) {
    std::error_code error;
    if (fs::exists(out_, error) && !fs::is_directory(out_, error))
      fail_data(out_.string(), " is a file; --out names a folder to make");
    if (fs::exists(out_, error) && !fs::is_empty(out_, error))
      fail_data(out_.string(), " already holds files; choose another --out or delete it first");
    path_ = out_;
    path_ += text(".tmp-", getpid());
    fs::remove_all(path_, error);
    fs::create_directories(path_, error);
    if (error) fail_data("cannot make the folder ", path_.string(), ": ", error.message());
  }
  ~StagingFolder() {
    std::error_code ignored;
    if (!path_.empty()) fs::remove_all(path_, ignored);
  }
  StagingFolder(const StagingFolder&) = delete;
  StagingFolder& operator=(const StagingFolder&) = delete;

  const fs::path& path() const { return path_; }

  void publish() {
    sync_folder(path_);
    std::error_code error;
    fs::rename(path_, out_, error);
    if (error) fail_data("cannot rename ", path_.string(), " to ", out_.string(), ": ", error.message());
    path_.clear();
    sync_folder(out_.has_parent_path() ? out_.parent_path() : fs::path("."));
  }

 private:
  static fs::path without_slash(const fs::path& out) {
    if (out.empty()) fail_usage("--out is empty; name the folder for the token files");
    return out.has_filename() ? out : out.parent_path();
  }

  fs::path out_;
  fs::path path_;
};

struct Survey {
  int64_t documents = 0;
  int64_t characters = 0;
  CharacterSet set;
};

Survey survey(const PrepareOptions& options) {
  Survey result;
  const bool any_bytes = options.tokenizer == "byte";
  const bool collect = options.tokenizer == "char";
  for_each_document(options.inputs, [&](std::string_view document, const std::string& where) {
    if (collect)
      result.set.add(document, where);
    else if (!any_bytes)
      require_utf8(document, where);
    result.characters += count_characters(document);
    ++result.documents;
  });
  if (result.characters == 0) fail_data("the inputs hold no text");
  return result;
}

std::unique_ptr<Tokenizer> choose_tokenizer(const PrepareOptions& options, const Survey& survey) {
  if (options.tokenizer == "byte") return make_byte_tokenizer();
  if (options.tokenizer == "char") return make_char_tokenizer(survey.set.sorted(), "the inputs");
  return options.gpt2_merges.empty() ? make_default_gpt2_tokenizer()
                                     : make_gpt2_tokenizer(options.gpt2_merges);
}

void check_options(const PrepareOptions& options) {
  if (options.inputs.empty()) fail_usage("no input files; name text or .jsonl files");
  if (!(options.val_fraction >= 0.0 && options.val_fraction < 1.0))
    fail_usage("--val-fraction is ", options.val_fraction,
               "; expected a number from 0 up to, but not including, 1");
  const std::vector<std::string> kinds = {"byte", "char", "gpt2"};
  if (std::find(kinds.begin(), kinds.end(), options.tokenizer) == kinds.end())
    fail_usage("--tokenizer is ", quoted(options.tokenizer), "; expected byte, char or gpt2");
  if (options.shard_tokens < 1 || options.shard_tokens > INT32_MAX)
    fail_usage("a shard of ", options.shard_tokens, " tokens; expected 1 to ", INT32_MAX);
}

// Encodes documents piece by piece into one series of shards.
class SeriesEncoder {
 public:
  SeriesEncoder(const Tokenizer& tokenizer, ShardSeries& series) : tokenizer_(tokenizer), series_(series) {}

  void add(std::string_view document) {
    if (document.empty()) return;
    if (tokenizer_.end_of_text()) series_.write({{*tokenizer_.end_of_text()}});
    while (!document.empty()) {
      const size_t end = safe_break(document, chunk_bytes);
      ids_.clear();
      tokenizer_.encode(document.substr(0, end), ids_);
      series_.write(ids_);
      document.remove_prefix(end);
    }
  }

 private:
  static constexpr size_t chunk_bytes = 1 << 20;
  const Tokenizer& tokenizer_;
  ShardSeries& series_;
  std::vector<int32_t> ids_;
};

void encode_documents(const PrepareOptions& options, const Tokenizer& tokenizer, int64_t train_characters,
                      ShardSeries& train_series, ShardSeries& val_series) {
  SeriesEncoder train(tokenizer, train_series);
  SeriesEncoder val(tokenizer, val_series);
  int64_t left = train_characters;
  for_each_document(options.inputs, [&](std::string_view document, const std::string&) {
    const int64_t characters = count_characters(document);
    const size_t cut = left >= characters ? document.size() : character_offset(document, left);
    train.add(document.substr(0, cut));
    val.add(document.substr(cut));
    left -= std::min(left, characters);
  });
}

}  // namespace

PrepareResult prepare(const PrepareOptions& options) {
  check_options(options);
  const Survey found = survey(options);
  const std::unique_ptr<Tokenizer> tokenizer = choose_tokenizer(options, found);

  StagingFolder folder(options.out);
  ShardSeries train(folder.path(), "train", 1, tokenizer->vocab(), options.shard_tokens);
  ShardSeries val(folder.path(), "val", 0, tokenizer->vocab(), options.shard_tokens);
  encode_documents(options, *tokenizer, training_part(found.characters, options.val_fraction), train, val);
  train.finish();
  val.finish();
  FileWriter json(folder.path() / "tokenizer.json");
  json.write(tokenizer->to_json());
  json.finish();
  folder.publish();

  PrepareResult result{found.documents, found.characters, tokenizer->vocab(),
                       train.tokens(),  val.tokens(),     {}};
  for (const ShardSeries* series : {&train, &val})
    for (const std::string& name : series->names())
      result.files.push_back(options.out / name);
  result.files.push_back(options.out / "tokenizer.json");
  return result;
}

}  // namespace hearth
