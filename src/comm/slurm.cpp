#include "comm/slurm.h"

#include <charconv>
#include <cstdint>

#include "base/error.h"

namespace hearth {
namespace {

[[noreturn]] void fail_list(std::string_view list, std::string_view why) {
  fail_usage("SLURM's node list '", list, "' cannot be read: ", why,
             "; set MASTER_ADDR and MASTER_PORT, RANK, WORLD_SIZE and LOCAL_RANK by hand");
}

// Splits at commas that stand outside brackets.
std::vector<std::string_view> split_hosts(std::string_view list) {
  std::vector<std::string_view> hosts;
  int depth = 0;
  size_t begin = 0;
  for (size_t i = 0; i < list.size(); ++i) {
    if (list[i] == '[') ++depth;
    if (list[i] == ']') --depth;
    if (depth < 0 || depth > 1) fail_list(list, "its brackets do not match");
    if (list[i] == ',' && depth == 0) {
      hosts.push_back(list.substr(begin, i - begin));
      begin = i + 1;
    }
  }
  if (depth) fail_list(list, "a bracket is not closed");
  hosts.push_back(list.substr(begin));
  return hosts;
}

uint64_t number(std::string_view list, std::string_view digits) {
  uint64_t value = 0;
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
  if (error != std::errc() || end != digits.data() + digits.size() || digits.size() > 9)
    fail_list(list, "a number was expected inside the brackets");
  return value;
}

// "01-03" -> 01 02 03, zeros kept; "7" -> 7.
void append_range(std::string_view list, std::string_view range, std::vector<std::string>& out) {
  const size_t dash = range.find('-');
  const std::string_view low = range.substr(0, dash);
  const std::string_view high = dash == std::string_view::npos ? low : range.substr(dash + 1);
  const uint64_t first = number(list, low), last = number(list, high);
  if (last < first || last - first > 100'000) fail_list(list, "a range runs backwards or is too long");
  for (uint64_t value = first; value <= last; ++value) {
    std::string digits = std::to_string(value);
    if (digits.size() < low.size()) digits.insert(0, low.size() - digits.size(), '0');
    out.push_back(digits);
  }
}

// One host with any number of brackets: everything that it stands for.
std::vector<std::string> expand(std::string_view list, std::string_view host) {
  const size_t open = host.find('[');
  if (open == std::string_view::npos) return {std::string(host)};
  const size_t close = host.find(']', open);
  std::vector<std::string> numbers;
  std::string_view ranges = host.substr(open + 1, close - open - 1);
  while (true) {
    const size_t comma = ranges.find(',');
    append_range(list, ranges.substr(0, comma), numbers);
    if (comma == std::string_view::npos) break;
    ranges.remove_prefix(comma + 1);
  }
  std::vector<std::string> hosts;
  const std::vector<std::string> tails = expand(list, host.substr(close + 1));
  for (const std::string& value : numbers)
    for (const std::string& tail : tails)
      hosts.push_back(std::string(host.substr(0, open)) + value + tail);
  return hosts;
}

}  // namespace

std::vector<std::string> parse_node_list(std::string_view list) {
  std::vector<std::string> nodes;
  for (std::string_view host : split_hosts(list)) {
    if (host.empty()) fail_list(list, "a name is empty");
    for (std::string& node : expand(list, host))
      nodes.push_back(std::move(node));
  }
  return nodes;
}

}  // namespace hearth
