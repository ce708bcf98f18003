// TOML literals: how values are written in printed configurations, checkpoints and messages.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace hearth {

// The shortest decimal that reads back as the same double, always with a point or an exponent: 0.0006, 1.0,
// 1e-8.  TOML has inf and nan; the schema lets neither in.
std::string number_literal(double value);
// A basic string: quotes, backslashes and control characters escaped.  `value` must be UTF-8.
std::string string_literal(std::string_view value);

}  // namespace hearth
