// The documents of the inputs of `hearth prepare`, one at a time.
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/files.h"

namespace hearth {

// `where` names the document in errors: the file, with the line for jsonl.
using DocumentVisitor = std::function<void(std::string_view document, const std::string& where)>;

// Visits the documents of all files in order: a text file is one document, a .jsonl file has one in the
// string "text" of each line (empty lines are skipped).  Throws Error(data) with file and line where a line
// is malformed.
void for_each_document(const std::vector<fs::path>& inputs, const DocumentVisitor& visit);
// The same for the content of one .jsonl file.
void for_each_json_line(std::string_view content, const std::string& name, const DocumentVisitor& visit);

// A length in (0, text.size()] at which `text` may be cut without changing any tokenizer's ids: between a
// character that is no white space and a space or line feed.  The last such place up to `wanted` bytes, else
// the first after.
size_t safe_break(std::string_view text, size_t wanted);

}  // namespace hearth
