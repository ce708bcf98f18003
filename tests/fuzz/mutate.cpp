// Mutations that break formats: bits, lengths, signs, cut and repeated ranges, and pieces of other inputs.
#include <algorithm>
#include <cstring>

#include "fuzz.h"

namespace hearth::fuzz {
namespace {

constexpr size_t longest = 1 << 16;

size_t below(std::mt19937_64& random, size_t limit) {
  return limit == 0 ? 0 : random() % limit;
}

void flip_bit(std::string& input, std::mt19937_64& random) {
  if (!input.empty()) input[below(random, input.size())] ^= static_cast<char>(1 << below(random, 8));
}

void set_byte(std::string& input, std::mt19937_64& random) {
  constexpr std::string_view telling = "\0\x01\x7F\x80\xFF\n\r \"\\{}[]:,-+.eE09#/=_\xC3\xED\xF4";
  if (!input.empty()) input[below(random, input.size())] = telling[below(random, telling.size())];
}

// Overwrites 2, 4 or 8 bytes with a number at the edge of something.
void set_number(std::string& input, std::mt19937_64& random) {
  constexpr uint64_t telling[] = {0,          1,          2,          255,        256,
                                  65535,      65536,      0x7FFFFFFF, 0x80000000, 0xFFFFFFFF,
                                  1ull << 32, 1ull << 40, 1ull << 62, ~0ull >> 1, ~0ull,
                                  1024,       100000000,  0xFFFFFFFE, 0x10FFFF,   0xD800};
  const size_t width = size_t{2} << below(random, 3);
  if (input.size() < width) return;
  const uint64_t number = telling[below(random, std::size(telling))];
  std::memcpy(input.data() + below(random, input.size() - width + 1), &number, width);
}

void erase_range(std::string& input, std::mt19937_64& random) {
  const size_t begin = below(random, input.size());
  input.erase(begin, 1 + below(random, std::min<size_t>(input.size() - begin, 64)));
}

void truncate(std::string& input, std::mt19937_64& random) {
  input.resize(below(random, input.size() + 1));
}

void repeat_range(std::string& input, std::mt19937_64& random) {
  const size_t begin = below(random, input.size());
  const std::string range = input.substr(begin, 1 + below(random, 64));
  const size_t at = below(random, input.size() + 1);
  for (size_t times = 1 + below(random, 1 + below(random, 200)); times > 0 && input.size() < longest; --times)
    input.insert(at, range);
}

void insert_bytes(std::string& input, std::mt19937_64& random) {
  std::string bytes;
  for (size_t count = 1 + below(random, 8); count > 0; --count)
    bytes += static_cast<char>(random());
  input.insert(below(random, input.size() + 1), bytes);
}

// The start of this input and the end of another one.
void splice(std::string& input, const std::vector<std::string>& seeds, std::mt19937_64& random) {
  const std::string& other = seeds[below(random, seeds.size())];
  input.resize(below(random, input.size() + 1));
  input += other.substr(below(random, other.size() + 1));
}

}  // namespace

std::string mutate(const std::vector<std::string>& seeds, std::mt19937_64& random) {
  std::string input = seeds[below(random, seeds.size())];
  for (size_t steps = 1 + below(random, 1 + below(random, 6)); steps > 0; --steps) {
    switch (below(random, 8)) {
      case 0:
        flip_bit(input, random);
        break;
      case 1:
        set_byte(input, random);
        break;
      case 2:
        set_number(input, random);
        break;
      case 3:
        erase_range(input, random);
        break;
      case 4:
        repeat_range(input, random);
        break;
      case 5:
        insert_bytes(input, random);
        break;
      case 6:
        splice(input, seeds, random);
        break;
      default:
        truncate(input, random);
        break;
    }
  }
  input.resize(std::min(input.size(), longest));
  return input;
}

}  // namespace hearth::fuzz
