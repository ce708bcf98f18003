// Checkpoints under bit rot, full disks, failing system calls, kills and power failures: what is announced
// stays, what is wrong is noticed.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <csignal>
#include <thread>

#include "support/checkpoint_fixture.h"
#include "support/failing_files.h"
#include "support/temp_dir.h"
#include "train/checkpoint.h"
#include "train/checkpoint_manifest.h"

namespace hearth {
namespace {

void ignore(const std::string&) {}

std::optional<CheckpointReader> newest(const fs::path& folder) {
  return open_newest_checkpoint(folder, ignore);
}

// ---- bit rot

TEST(BitRot, EveryFlipInAnyFileIsNoticed) {
  const FastTempDir dir;
  const fs::path path = save_step(dir / "c", 3);
  std::mt19937 random(1);
  const std::vector<std::string> names = sorted_names(path);
  for (int trial = 0; trial < 200; ++trial) {
    const fs::path file = path / names[random() % names.size()];
    const std::string before = read_file(file);
    std::string after = before;
    const size_t bit = random() % (8 * before.size());
    after[bit / 8] = static_cast<char>(after[bit / 8] ^ (1 << (bit % 8)));
    overwrite(file, after);
    const std::string sentence = data_error([&] { CheckpointReader reader(path); });
    expect_contains(sentence, file.string());
    overwrite(file, before);
  }
  EXPECT_TRUE(holds_step(CheckpointReader(path), 3));
}

TEST(BitRot, EveryBitOfTheManifest) {
  const FastTempDir dir;
  const fs::path path = save_step(dir / "c", 3);
  const std::string manifest = read_file(path / "manifest.json");
  for (size_t bit = 0; bit < 8 * manifest.size(); ++bit) {
    std::string damaged = manifest;
    damaged[bit / 8] = static_cast<char>(damaged[bit / 8] ^ (1 << (bit % 8)));
    EXPECT_THROW(parse_manifest(damaged, "manifest.json"), Error) << "bit " << bit;
  }
}

TEST(BitRot, CutEmptyAndMissingFiles) {
  const FastTempDir dir;
  const fs::path path = save_step(dir / "c", 3);
  for (const std::string& name : sorted_names(path)) {
    const std::string content = read_file(path / name);
    for (const size_t length : {size_t{0}, size_t{1}, content.size() / 2, content.size() - 1}) {
      overwrite(path / name, content.substr(0, length));
      expect_contains(data_error([&] { CheckpointReader reader(path); }), (path / name).string());
    }
    overwrite(path / name, content + "x");
    expect_contains(data_error([&] { CheckpointReader reader(path); }), (path / name).string());
    fs::remove(path / name);
    expect_contains(data_error([&] { CheckpointReader reader(path); }), name);
    overwrite(path / name, content);
  }
  EXPECT_TRUE(holds_step(CheckpointReader(path), 3));
}

// ---- writes that fail

// Until the end of the scope a file cannot grow beyond `bytes`: a stand-in for a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    ::getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    ::setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    ::setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_;
  void (*handler_)(int);
};

TEST(FailingWrites, AFileThatCannotGrow) {
  const FastTempDir dir;
  const fs::path folder = dir / "c";
  save_step(folder, 1);
  uint64_t largest = 0;
  for (const std::string& name : sorted_names(folder / "step-00000001"))
    largest = std::max<uint64_t>(largest, fs::file_size(folder / "step-00000001" / name));
  for (uint64_t limit = 0; limit < largest; limit += 1 + largest / 40) {
    const std::string sentence = data_error([&] {
      const FileSizeLimit full(limit);
      save_step(folder, 2);
    });
    expect_contains(sentence, "cannot save the checkpoint of step 2: cannot write " + folder.string());
    expect_contains(sentence, "File too large");
    expect_contains(sentence, "it needs ");
    expect_contains(sentence, " are free");
    EXPECT_EQ(sorted_names(folder), (std::vector<std::string>{"latest", "step-00000001"})) << limit;
  }
  EXPECT_TRUE(holds_step(*newest(folder), 1));
  save_step(folder, 2);
  EXPECT_TRUE(holds_step(*newest(folder), 2));
}

// Where every trial starts: step 1 is saved; `replace`: and a damaged step 2 is in the way.
fs::path start_folder(const FastTempDir& dir, bool replace) {
  const fs::path folder = dir / "start";
  save_step(folder, 1);
  if (!replace) return folder;
  save_step(folder, 2);
  overwrite(folder / "step-00000002/manifest.json", "damaged");
  return folder;
}

// The n-th system call that changes something fails, for every n.
void every_call_fails(FailingFiles::Kind kind, int error, bool replace) {
  const FastTempDir dir;
  const fs::path start = start_folder(dir, replace);
  int64_t failures = 0;
  for (int64_t nth = 0;; ++nth) {
    const fs::path folder = dir / text("c", nth);
    copy_folder(start, folder);
    std::string sentence;
    int64_t calls = 0;
    {
      const FailingFiles failing(kind, nth, error);
      try {
        save_step(folder, 2);
      } catch (const Error& failure) {
        EXPECT_EQ(failure.code(), ExitCode::data);
        sentence = failure.what();
      }
      calls = failing.calls();
    }
    const auto reader = newest(folder);
    ASSERT_TRUE(reader) << "call " << nth;
    if (nth >= calls) {
      EXPECT_TRUE(holds_step(*reader, 2));
      break;
    }
    for (const std::string& name : sorted_names(folder))
      EXPECT_EQ(name.find(".tmp"), std::string::npos) << name << " is left after call " << nth;
    // renameat2 has a second way; every other failure has to be reported.
    if (sentence.empty()) {
      EXPECT_TRUE(replace && kind == FailingFiles::Kind::once) << "call " << nth << " failed in silence";
      EXPECT_TRUE(holds_step(*reader, 2));
      continue;
    }
    ++failures;
    expect_contains(sentence, std::strerror(error));
    expect_contains(sentence, folder.string());
    // After the rename the new one is there, whole, and the sentence must not deny it.
    if (reader->state().step == 2) {
      EXPECT_TRUE(holds_step(*reader, 2));
    } else {
      EXPECT_TRUE(holds_step(*reader, 1));
      expect_contains(sentence, "cannot save the checkpoint of step 2");
    }
  }
  EXPECT_GT(failures, 20);
}

TEST(FailingWrites, EveryCallOnce) {
  every_call_fails(FailingFiles::Kind::once, EIO, false);
}
TEST(FailingWrites, EveryCallOnceWhileReplacing) {
  every_call_fails(FailingFiles::Kind::once, EIO, true);
}
TEST(FailingWrites, EveryCallFromThenOn) {
  every_call_fails(FailingFiles::Kind::from_then_on, ENOSPC, false);
}

TEST(FailingWrites, NoRoom) {
  // A checkpoint of 16 TiB is refused before a byte of it is touched: its memory does not exist.
  const FastTempDir dir;
  const Shape shape = {int64_t{1} << 42};
  const CheckpointPiece piece = {
      Kind::master, "w", shape, {0}, Tensor(reinterpret_cast<void*>(64), DType::f32, shape)};
  const auto device = make_reference_device();
  const std::string sentence =
      data_error([&] { write_checkpoint(dir / "c", only_step_1(), std::span(&piece, 1), *device); });
  expect_contains(sentence, "cannot save the checkpoint " + (dir / "c/step-00000001").string());
  expect_contains(sentence, "it needs 16.0 TiB and ");
  EXPECT_FALSE(fs::exists(dir / "c"));
}

// ---- processes that die

// A child saves step 2 where step 1 is, and dies at call number `nth`.  False: it got to the end.
bool dies_at(FailingFiles::Kind kind, int64_t nth, const fs::path& folder) {
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      const FailingFiles failing(kind, nth);
      save_step(folder, 2);
    } catch (...) {
      ::_exit(1);
    }
    ::_exit(0);
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  EXPECT_TRUE(WIFSIGNALED(status) || WEXITSTATUS(status) == 0) << "call " << nth;
  return WIFSIGNALED(status);
}

void every_call_is_the_last(FailingFiles::Kind kind, bool replace) {
  const FastTempDir dir;
  const fs::path start = start_folder(dir, replace);
  int64_t olds = 0, news = 0;
  for (int64_t nth = 0;; ++nth) {
    const fs::path folder = dir / text("c", nth);
    copy_folder(start, folder);
    const bool died = dies_at(kind, nth, folder);
    remove_leftovers(folder);
    for (const std::string& name : sorted_names(folder))
      EXPECT_EQ(name.find(".tmp"), std::string::npos) << name << " is left after call " << nth;
    std::vector<std::string> reports;
    const auto reader = open_newest_checkpoint(folder, [&](const std::string& s) { reports.push_back(s); });
    ASSERT_TRUE(reader) << "call " << nth;
    const int64_t step = reader->state().step;
    ASSERT_TRUE(holds_step(*reader, step)) << "call " << nth;
    ++(step == 1 ? olds : news);
    // Half a checkpoint never has the name of a whole one.
    EXPECT_EQ(reports.size(), replace && step == 1 ? 1u : 0u)
        << "call " << nth << ": " << (reports.empty() ? "" : reports[0]);
    // Saving goes on.
    if (nth % 8 == 0) {
      save_step(folder, 3);
      ASSERT_TRUE(holds_step(*newest(folder), 3));
    }
    if (!died) break;
  }
  EXPECT_GT(olds, 15);
  EXPECT_GT(news, 3);
}

TEST(Kill, AtEveryCall) {
  every_call_is_the_last(FailingFiles::Kind::kill, false);
}
TEST(Kill, AtEveryCallWhileReplacing) {
  every_call_is_the_last(FailingFiles::Kind::kill, true);
}
TEST(PowerFailure, AtEveryCallLosesWhatWasNotFlushed) {
  every_call_is_the_last(FailingFiles::Kind::kill_and_lose, false);
}

// Saves step after step and announces each through the pipe, pruning as a run does, until it is killed.
[[noreturn]] void save_for_ever(const fs::path& folder, int64_t first, int announcements) {
  try {
    remove_leftovers(folder);
    for (int64_t step = first;; ++step) {
      save_step(folder, step);
      if (::write(announcements, &step, sizeof step) != sizeof step) ::_exit(2);
      prune_checkpoints(folder, 1);
    }
  } catch (...) {
  }
  ::_exit(1);
}

TEST(Kill, AtRandomMoments) {
  const TempDir dir;  // on disk
  const fs::path folder = dir / "c";
  std::mt19937 random(5);
  int64_t announced = 0;
  for (int trial = 0; trial < 20; ++trial) {
    int ends[2];
    ASSERT_EQ(::pipe(ends), 0);
    const pid_t child = ::fork();
    if (child == 0) save_for_ever(folder, announced + 1, ends[1]);
    ::close(ends[1]);
    // On a slow disk a child may never get to an announcement: every other one is given that time.
    int64_t step;
    if (trial % 2 == 1 && ::read(ends[0], &step, sizeof step) == sizeof step) announced = step;
    std::this_thread::sleep_for(std::chrono::microseconds(random() % 60000));
    ::kill(child, SIGKILL);
    int status = 0;
    ::waitpid(child, &status, 0);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the child ended by itself with " << WEXITSTATUS(status);
    while (::read(ends[0], &step, sizeof step) == sizeof step)
      announced = step;
    ::close(ends[0]);
    const auto reader = newest(folder);
    ASSERT_EQ(reader.has_value(), announced > 0 || (reader && reader->state().step == 1));
    if (!reader) continue;
    EXPECT_GE(reader->state().step, announced);
    EXPECT_TRUE(holds_step(*reader, reader->state().step));
  }
  EXPECT_GE(announced, 10);
  remove_leftovers(folder);
  EXPECT_LE(sorted_names(folder).size(), 3u);
}

}  // namespace
}  // namespace hearth
