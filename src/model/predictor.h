// Predictor: what generation needs of a model, wherever the model lies: the logits after a text.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace hearth {

class Predictor {
 public:
  virtual ~Predictor() = default;

  // The longest text.
  virtual int64_t context() const = 0;
  // Tokens of the present text.
  virtual int64_t length() const = 0;

  // Begins a new text: 1 .. context() tokens.
  virtual void prefill(std::span<const int32_t> tokens) = 0;
  // Adds one token; length() must be below context().
  virtual void step(int32_t token) = 0;
  // Copies the logits after the last token, without padding, to the host as fp32: [vocab].
  virtual void logits(std::vector<float>& out) = 0;
};

}  // namespace hearth
