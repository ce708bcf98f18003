#include "emulator/nccl_mesh.h"

#include <gloo/rendezvous/file_store.h>
#include <gloo/transport/tcp/device.h>

#include <deque>
#include <filesystem>
#include <stdexcept>

namespace hearth::emulator {
namespace {

constexpr std::chrono::hours patience{1};  // a kernel waits for ever

}  // namespace

void NcclMesh::connect() {
  std::filesystem::create_directories(folder_);
  gloo::transport::tcp::attr where;
  where.hostname = "127.0.0.1";
  auto device = gloo::transport::tcp::CreateDevice(where);
  gloo::rendezvous::FileStore store(folder_);
  context_->setTimeout(patience);
  context_->connectFullMesh(store, device);
}

// One direction of one message, from its start on.
class NcclMesh::Half {
 public:
  Half(NcclMesh& mesh, const NcclMessage& m) : mesh_(mesh), sends_(m.sends) {
    buffer_ = mesh.context_->createUnboundBuffer(m.data, m.bytes);
    // Under the lock, so that an abort finds it either not started or waiting; starting throws when the peer
    // is lost, and then nothing must wait.
    const std::lock_guard lock(mesh_.mutex_);
    if (mesh_.aborted_) throw std::runtime_error("aborted");
    if (sends_)
      buffer_->send(m.peer, m.tag, 0, m.bytes);
    else
      buffer_->recv(m.peer, m.tag, 0, m.bytes);
    mesh_.waiting_.insert(buffer_.get());
  }
  ~Half() {
    const std::lock_guard lock(mesh_.mutex_);
    mesh_.waiting_.erase(buffer_.get());
  }
  Half(const Half&) = delete;
  Half& operator=(const Half&) = delete;

  void wait() {
    const bool whole = sends_ ? buffer_->waitSend(patience) : buffer_->waitRecv(patience);
    const std::lock_guard lock(mesh_.mutex_);
    if (!whole || mesh_.aborted_) throw std::runtime_error("aborted");
  }

 private:
  NcclMesh& mesh_;
  const bool sends_;
  std::unique_ptr<gloo::transport::UnboundBuffer> buffer_;
};

// A send of NCCL ends when the receiver has the data: each message is answered.
void NcclMesh::exchange(const std::vector<NcclMessage>& messages) {
  std::vector<char> words(messages.size());
  std::deque<Half> sends, receives, answers_due, answers_given;
  const auto answer_to = [&](size_t i, bool give) {
    return NcclMessage{messages[i].peer, ~messages[i].tag, give, &words[i], 1};
  };
  for (size_t i = 0; i < messages.size(); ++i) {
    (messages[i].sends ? sends : receives).emplace_back(*this, messages[i]);
    if (messages[i].sends) answers_due.emplace_back(*this, answer_to(i, false));
  }
  size_t next = 0;
  for (size_t i = 0; i < messages.size(); ++i) {
    if (messages[i].sends) continue;
    receives[next++].wait();
    answers_given.emplace_back(*this, answer_to(i, true));
  }
  for (std::deque<Half>* halves : {&sends, &answers_due, &answers_given})
    for (Half& half : *halves)
      half.wait();
}

void NcclMesh::abort() {
  const std::lock_guard lock(mutex_);
  aborted_ = true;
  for (gloo::transport::UnboundBuffer* buffer : waiting_) {
    buffer->abortWaitRecv();
    buffer->abortWaitSend();
  }
}

}  // namespace hearth::emulator
