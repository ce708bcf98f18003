#include "comm/socket.h"

#include <arpa/inet.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <memory>

#include "base/error.h"

namespace hearth {
namespace {

int milliseconds_until(Clock::time_point deadline) {
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(deadline - Clock::now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 1'000'000));
}

void set_option(int fd, int level, int name, int value) {
  ::setsockopt(fd, level, name, &value, sizeof value);
}

// Small messages at once, and a vanished machine noticed although nothing is sent.
void prepare_connection(int fd) {
  set_option(fd, IPPROTO_TCP, TCP_NODELAY, 1);
  set_option(fd, SOL_SOCKET, SO_KEEPALIVE, 1);
  set_option(fd, IPPROTO_TCP, TCP_KEEPIDLE, 15);
  set_option(fd, IPPROTO_TCP, TCP_KEEPINTVL, 5);
  set_option(fd, IPPROTO_TCP, TCP_KEEPCNT, 3);
}

// The listening socket of one family, or an empty one with errno set.
Descriptor listen_family(int family, int port) {
  Descriptor socket(::socket(family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!socket) return socket;
  set_option(socket.get(), SOL_SOCKET, SO_REUSEADDR, 1);  // a port in TIME_WAIT is free
  sockaddr_storage address{};
  socklen_t length;
  if (family == AF_INET6) {
    set_option(socket.get(), IPPROTO_IPV6, IPV6_V6ONLY, 0);
    auto& v6 = reinterpret_cast<sockaddr_in6&>(address);
    v6.sin6_family = AF_INET6;
    v6.sin6_addr = in6addr_any;
    v6.sin6_port = htons(static_cast<uint16_t>(port));
    length = sizeof v6;
  } else {
    auto& v4 = reinterpret_cast<sockaddr_in&>(address);
    v4.sin_family = AF_INET;
    v4.sin_addr.s_addr = htonl(INADDR_ANY);
    v4.sin_port = htons(static_cast<uint16_t>(port));
    length = sizeof v4;
  }
  if (::bind(socket.get(), reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(socket.get(), 1024) != 0)
    socket.close();
  return socket;
}

bool finish_connect(int fd, Clock::time_point deadline, std::string& reason) {
  pollfd waiting{fd, POLLOUT, 0};
  int error = ETIMEDOUT;
  socklen_t size = sizeof error;
  if (::poll(&waiting, 1, milliseconds_until(deadline)) == 1)
    ::getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &size);
  if (error) reason = std::strerror(error);
  return error == 0;
}

std::string address_text(const sockaddr_storage& address) {
  char buffer[INET6_ADDRSTRLEN] = "";
  if (address.ss_family == AF_INET6) {
    const in6_addr& v6 = reinterpret_cast<const sockaddr_in6&>(address).sin6_addr;
    if (IN6_IS_ADDR_V4MAPPED(&v6))
      ::inet_ntop(AF_INET, v6.s6_addr + 12, buffer, sizeof buffer);
    else
      ::inet_ntop(AF_INET6, &v6, buffer, sizeof buffer);
  } else {
    ::inet_ntop(AF_INET, &reinterpret_cast<const sockaddr_in&>(address).sin_addr, buffer, sizeof buffer);
  }
  return buffer;
}

}  // namespace

void Descriptor::close() noexcept {
  const int saved = errno;
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
  errno = saved;
}

Descriptor listen_on(int port) {
  Descriptor socket = listen_family(AF_INET6, port);
  if (!socket && errno != EADDRINUSE && errno != EACCES) socket = listen_family(AF_INET, port);
  if (socket) return socket;
  const char* hint =
      errno == EADDRINUSE ? "another job may be running; choose another port" : "choose another port";
  throw Error(ExitCode::peer, text("cannot listen on port ", port, ": ", std::strerror(errno), "; ", hint));
}

int port_of(const Descriptor& listener) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  ::getsockname(listener.get(), reinterpret_cast<sockaddr*>(&address), &size);
  // The port lies at the same place in both families.
  return ntohs(reinterpret_cast<sockaddr_in&>(address).sin_port);
}

Descriptor connect_to(const std::string& host, int port, Clock::time_point deadline, std::string& reason) {
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int failed = ::getaddrinfo(host.c_str(), std::to_string(port).c_str(), &hints, &found);
  const std::unique_ptr<addrinfo, void (*)(addrinfo*)> list(found, [](addrinfo* a) {
    if (a) ::freeaddrinfo(a);
  });
  if (failed && failed != EAI_AGAIN)
    throw Error(ExitCode::peer, text("the master's host name '", host, "' cannot be resolved (",
                                     ::gai_strerror(failed), "); give an address or a name that DNS knows"));
  reason = "its name cannot be resolved at present";
  for (const addrinfo* a = list.get(); a; a = a->ai_next) {
    Descriptor socket(::socket(a->ai_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (!socket) continue;
    const bool connected = ::connect(socket.get(), a->ai_addr, a->ai_addrlen) == 0;
    if (!connected && errno != EINPROGRESS) {
      reason = std::strerror(errno);
      continue;
    }
    if (!connected && !finish_connect(socket.get(), deadline, reason)) continue;
    prepare_connection(socket.get());
    return socket;
  }
  return {};
}

Descriptor accept_from(const Descriptor& listener) {
  Descriptor socket(::accept4(listener.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (socket) prepare_connection(socket.get());
  return socket;
}

std::string peer_address(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  return ::getpeername(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0
             ? address_text(address)
             : std::string();
}

std::string own_address(const Descriptor& socket) {
  sockaddr_storage address{};
  socklen_t size = sizeof address;
  return ::getsockname(socket.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0
             ? address_text(address)
             : std::string();
}

bool is_loopback(const std::string& address) {
  return address.starts_with("127.") || address == "::1";
}

bool write_all(const Descriptor& socket, const std::string& bytes, Clock::time_point deadline) {
  size_t done = 0;
  while (done < bytes.size()) {
    const ssize_t n = ::send(socket.get(), bytes.data() + done, bytes.size() - done, MSG_NOSIGNAL);
    if (n > 0) {
      done += static_cast<size_t>(n);
      continue;
    }
    if (errno == EINTR) continue;
    pollfd waiting{socket.get(), POLLOUT, 0};
    if (errno != EAGAIN || ::poll(&waiting, 1, milliseconds_until(deadline)) <= 0) return false;
  }
  return true;
}

std::string host_name() {
  char buffer[256] = "";
  ::gethostname(buffer, sizeof buffer - 1);
  return buffer;
}

}  // namespace hearth
