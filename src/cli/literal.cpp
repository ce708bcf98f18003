#include "cli/literal.h"

#include <charconv>
#include <cmath>

namespace hearth {
namespace {

// "1e-08" -> "1e-8", "1e+20" -> "1e20".
std::string shorten_exponent(std::string_view digits) {
  const size_t e = digits.find('e');
  std::string out(digits.substr(0, e + 1));
  std::string_view exponent = digits.substr(e + 1);
  if (exponent.starts_with('-')) out += '-';
  exponent.remove_prefix(1);  // the sign is always there
  while (exponent.size() > 1 && exponent.front() == '0')
    exponent.remove_prefix(1);
  return out + std::string(exponent);
}

}  // namespace

std::string number_literal(double value) {
  if (std::isnan(value)) return "nan";
  if (std::isinf(value)) return value < 0 ? "-inf" : "inf";
  char buffer[64];
  const double size = std::fabs(value);
  const bool plain = size == 0.0 || (size >= 1e-5 && size < 1e15);
  const auto format = plain ? std::chars_format::fixed : std::chars_format::scientific;
  const auto result = std::to_chars(buffer, buffer + sizeof buffer, value, format);
  const std::string_view digits(buffer, result.ptr - buffer);
  if (!plain) return shorten_exponent(digits);
  return std::string(digits) + (digits.find('.') == std::string_view::npos ? ".0" : "");
}

std::string string_literal(std::string_view value) {
  static constexpr char hex[] = "0123456789ABCDEF";
  std::string out = "\"";
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '"' || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n') {
      out += "\\n";
    } else if (c == '\t') {
      out += "\\t";
    } else if (c == '\r') {
      out += "\\r";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += "\\u00";
      out += hex[byte >> 4];
      out += hex[byte & 15];
    } else {
      out += c;
    }
  }
  return out + "\"";
}

}  // namespace hearth
