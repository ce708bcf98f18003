// TCP sockets for the control plane: an owner of a descriptor, and how to listen and connect.
#pragma once

#include <chrono>
#include <cstdint>
#include <string>
#include <utility>

namespace hearth {

using Clock = std::chrono::steady_clock;

// Owns a file descriptor.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(fd) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    return *this;
  }
  ~Descriptor() { close(); }

  int get() const { return fd_; }
  explicit operator bool() const { return fd_ >= 0; }
  void close() noexcept;

 private:
  int fd_ = -1;
};

// Listens on all addresses of this machine, IPv6 and IPv4 alike.  Port 0 takes a free one.
// Throws Error(peer) when the port is in use.
Descriptor listen_on(int port);
int port_of(const Descriptor& listener);

// Connects to host:port.  Returns an empty Descriptor and the reason when it cannot be reached before
// `deadline`; throws Error(peer) for a name that cannot be resolved.
Descriptor connect_to(const std::string& host, int port, Clock::time_point deadline, std::string& reason);
// The next waiting connection; empty when there is none.
Descriptor accept_from(const Descriptor& listener);

// Addresses without port, "192.168.0.7" or "fe80::1"; an IPv4 address seen through IPv6 is written as IPv4.
std::string peer_address(const Descriptor& socket);
std::string own_address(const Descriptor& socket);
bool is_loopback(const std::string& address);

// Writes everything; false when the peer is gone or `deadline` passes.
bool write_all(const Descriptor& socket, const std::string& bytes, Clock::time_point deadline);

// This machine's name.
std::string host_name();

}  // namespace hearth
