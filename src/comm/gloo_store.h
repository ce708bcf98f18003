// Gloo's key-value store, over the control plane: how the ranks of a group learn each other's addresses.
#pragma once

#include <gloo/rendezvous/store.h>

#include <string>
#include <vector>

#include "comm/control_plane.h"

namespace hearth {

class GlooStore final : public gloo::rendezvous::Store {
 public:
  // Keys get `prefix` in front, which is the same on all ranks of the group.
  GlooStore(ControlPlane& control, std::string prefix) : control_(control), prefix_(std::move(prefix)) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    control_.put(prefix_ + key, std::string(data.begin(), data.end()));
  }
  std::vector<char> get(const std::string& key) override {
    const std::string value = control_.get(prefix_ + key);
    return {value.begin(), value.end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys)
      control_.get(prefix_ + key);
  }
  // The control plane's own timeout holds.
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds&) override { wait(keys); }

 private:
  ControlPlane& control_;
  std::string prefix_;
};

}  // namespace hearth
