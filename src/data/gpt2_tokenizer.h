// GPT-2's byte-level BPE tokenizer: the pattern that cuts text into pieces, and the files that carry its
// merges.
//
// tokenizer.h offers it to everybody else; this header is for the readers of tokenizer files.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "data/bpe.h"
#include "data/tokenizer.h"

namespace hearth {

// A tokenizer with the ids 0..255 of the bytes, one id per merge, and the end-of-text id last.
std::unique_ptr<Tokenizer> make_gpt2_tokenizer(MergeTable merges);

// The text of OpenAI's vocab.bpe (merges.txt): a "#version" line, then "left right" lines of byte symbols.
MergeTable parse_merges_file(std::string_view content, const std::string& where);
// The same lines as a list.
MergeTable parse_merges(const std::vector<std::string>& lines, const std::string& where);
// llm.c's gpt2_tokenizer.bin: the bytes of every token.  The merges are recovered from the order of the ids.
MergeTable parse_llmc_tokenizer(std::string_view content, const std::string& where);

// "Ġt": the bytes of a token written with GPT-2's printable byte symbols.
std::string byte_symbols(std::string_view bytes);

}  // namespace hearth
