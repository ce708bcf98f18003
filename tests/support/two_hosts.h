// Two "hosts", node1 and node2, on this machine: each has its own network, host name and /etc/hosts, and one
// cable (a veth pair) joins them.  Needs root.  Everything vanishes with the two processes that hold it.
#pragma once

#include <fstream>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "support/process.h"
#include "support/temp_dir.h"

namespace hearth::testing {

class TwoHosts {
 public:
  using Words = std::vector<std::string>;

  // Why there can be none on this machine.
  static std::optional<std::string> obstacle() {
    const Words probe = {"unshare", "--net", "--uts", "--mount", "ip",   "link",  "add",
                         "cable0",  "type",  "veth",  "peer",    "name", "cable1"};
    const Outcome outcome = run_program(probe);
    if (outcome.code == 0) return std::nullopt;
    return "network namespaces need root, unshare and ip: " + outcome.output;
  }

  TwoHosts() {
    for (const int number : {1, 2}) {
      // As on Debian, a host's own name leads to the loopback, which is no address for the other host.
      // (192.168, because Gloo lets the smaller of two addresses listen: a loopback is then noticed.)
      const std::string hosts = (dir_ / ("hosts" + std::to_string(number))).string();
      std::ofstream(hosts) << "127.0.0.1 localhost\n127.0.1.1 node" << number << "\n192.168.77." << 3 - number
                           << " node" << 3 - number << "\n";
      const std::string start = "hostname node" + std::to_string(number) + " && mount --bind '" + hosts +
                                "' /etc/hosts && ip link set lo up && echo up && exec sleep 300";
      holders_.push_back(
          std::make_unique<Process>(Words{"unshare", "--net", "--uts", "--mount", "sh", "-c", start}));
      if (!holders_.back()->wait_for("up\n", 10)) problem_ += holders_.back()->output();
    }
    const std::string second = std::to_string(holders_[1]->pid());
    ip(1, {"link", "add", "cable", "type", "veth", "peer", "name", "cable", "netns", second});
    for (const int number : {1, 2}) {
      ip(number, {"address", "add", "192.168.77." + std::to_string(number) + "/24", "dev", "cable"});
      ip(number, {"link", "set", "cable", "up"});
    }
  }

  // What went wrong while the hosts were set up or changed; empty when nothing did.
  const std::string& problem() const { return problem_; }

  // The command, on node1 or node2.
  Words on(int number, const Words& command) const {
    Words words{"nsenter",
                "--target",
                std::to_string(holders_[static_cast<size_t>(number) - 1]->pid()),
                "--net",
                "--uts",
                "--mount",
                "--wd=" + std::filesystem::current_path().string()};
    words.insert(words.end(), command.begin(), command.end());
    return words;
  }

  // Nobody hangs up: what is sent from now on is lost.
  void cut_cable() { ip(1, {"link", "set", "cable", "down"}); }

 private:
  void ip(int number, Words words) {
    words.insert(words.begin(), "ip");
    const Outcome outcome = run_program(on(number, words));
    if (outcome.code != 0) problem_ += outcome.output;
  }

  TempDir dir_;
  std::vector<std::unique_ptr<Process>> holders_;
  std::string problem_;
};

}  // namespace hearth::testing
