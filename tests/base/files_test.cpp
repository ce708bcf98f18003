// Files: contents, and the sentence, the kind and the traces left by every failure that a user can cause.
#include "base/files.h"

#include <gtest/gtest.h>
#include <sys/fsuid.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <csignal>
#include <fstream>
#include <set>

#include "base/error.h"
#include "support/temp_dir.h"

namespace hearth {
namespace {

// Runs an action that must fail on a file; gives the sentence.
template <class Action>
std::string data_error(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::data);
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

void expect_contains(const std::string& sentence, const std::string& part) {
  EXPECT_NE(sentence.find(part), std::string::npos) << "\"" << part << "\" is missing in: " << sentence;
}

std::set<std::string> names_in(const fs::path& folder) {
  std::set<std::string> names;
  for (const auto& entry : fs::directory_iterator(folder))
    names.insert(entry.path().filename());
  return names;
}

// Until the end of the scope a file cannot grow beyond `bytes`: a stand-in for a full disk.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) : handler_(std::signal(SIGXFSZ, SIG_IGN)) {
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit limit = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &limit);
  }
  ~FileSizeLimit() {
    setrlimit(RLIMIT_FSIZE, &before_);
    std::signal(SIGXFSZ, handler_);
  }

 private:
  rlimit before_;
  void (*handler_)(int);
};

// Root may write anywhere; until the end of the scope this thread's file accesses are those of "nobody".
class WithoutRoot {
 public:
  WithoutRoot() {
    if (geteuid() == 0) setfsuid(65534);
  }
  ~WithoutRoot() { setfsuid(geteuid()); }
  static bool works() {
    const WithoutRoot now;
    return geteuid() != 0 || setfsuid(static_cast<uid_t>(-1)) == 65534;
  }
};

TEST(Files, WriteThenReadAndMap) {
  const TempDir dir;
  const std::string content("a\0b\n\xff", 5);
  write_file_atomically(dir / "file", content);
  EXPECT_EQ(read_file(dir / "file"), content);
  EXPECT_EQ(MappedFile(dir / "file").chars(), content);
  EXPECT_EQ(names_in(dir.path()), (std::set<std::string>{"file"}));
}

TEST(Files, ReadsFilesLargerThanTheBufferAndFilesWithoutASize) {
  const TempDir dir;
  std::string content;
  for (int i = 0; i < 100000; ++i)
    content += std::to_string(i);
  write_file_atomically(dir / "large", content);
  EXPECT_EQ(read_file(dir / "large"), content);
  EXPECT_GT(read_file("/proc/self/smaps").size(), 4096u);  // reports size 0
}

TEST(Files, EmptyFile) {
  const TempDir dir;
  write_file_atomically(dir / "empty", "");
  EXPECT_EQ(read_file(dir / "empty"), "");
  EXPECT_TRUE(MappedFile(dir / "empty").bytes().empty());
}

TEST(Files, MapMoves) {
  const TempDir dir;
  write_file_atomically(dir / "one", "one");
  write_file_atomically(dir / "two", "two");
  MappedFile first(dir / "one");
  MappedFile moved(std::move(first));
  EXPECT_EQ(moved.chars(), "one");
  EXPECT_TRUE(first.bytes().empty());  // NOLINT: the moved-from state is what is tested
  moved = MappedFile(dir / "two");
  EXPECT_EQ(moved.chars(), "two");
  EXPECT_EQ(moved.path(), dir / "two");
}

TEST(Files, MissingFileIsNamedWithAReason) {
  const TempDir dir;
  const fs::path path = dir / "missing.bin";
  for (const std::string& sentence :
       {data_error([&] { read_file(path); }), data_error([&] { MappedFile map(path); })}) {
    expect_contains(sentence, path.string());
    expect_contains(sentence, "No such file or directory");
  }
}

TEST(Files, FoldersAndPipesAreNotFiles) {
  const TempDir dir;
  expect_contains(data_error([&] { read_file(dir.path()); }), "name a file instead of a folder");
  expect_contains(data_error([&] { MappedFile map(dir.path()); }), "name a file instead of a folder");
  expect_contains(data_error([&] { FileWriter writer(dir.path()); }), "name a file instead of a folder");
  ASSERT_EQ(mkfifo((dir / "pipe").c_str(), 0600), 0);
  expect_contains(data_error([&] { MappedFile map(dir / "pipe"); }), "a pipe or a device");
}

TEST(Files, WriterCountsAndChecksums) {
  const TempDir dir;
  FileWriter writer(dir / "file");
  writer.write(std::string_view("1234"));
  writer.write(std::string_view(""));
  writer.write(std::string_view("56789"));
  writer.finish();
  EXPECT_EQ(writer.size(), 9u);
  EXPECT_EQ(writer.crc(), 0xe3069283u);
  EXPECT_EQ(read_file(dir / "file"), "123456789");
}

TEST(Files, FinishedFileStaysUnfinishedFileGoes) {
  const TempDir dir;
  {
    FileWriter finished(dir / "finished");
    finished.write(std::string_view("x"));
    finished.finish();
    FileWriter unfinished(dir / "unfinished");
    unfinished.write(std::string_view("x"));
    EXPECT_EQ(names_in(dir.path()), (std::set<std::string>{"finished", "unfinished"}));
  }
  EXPECT_EQ(names_in(dir.path()), (std::set<std::string>{"finished"}));
}

TEST(Files, WriterTruncates) {
  const TempDir dir;
  write_file_atomically(dir / "file", "a longer text");
  FileWriter writer(dir / "file");
  writer.write(std::string_view("short"));
  writer.finish();
  EXPECT_EQ(read_file(dir / "file"), "short");
}

TEST(Files, WriterDoesNotDeleteALinkThatIsNotIts) {
  const TempDir dir;
  fs::create_symlink("/dev/full", dir / "link");
  const std::string sentence = data_error([&] {
    FileWriter writer(dir / "link");
    writer.write(std::string_view("x"));
  });
  expect_contains(sentence, "No space left on device; free some space");
  EXPECT_TRUE(fs::is_symlink(dir / "link"));
}

TEST(Files, FailedAtomicWriteLeavesTheOldContentAndNothingElse) {
  const TempDir dir;
  write_file_atomically(dir / "latest", "old");
  const std::string sentence = data_error([&] {
    const FileSizeLimit limit(4096);
    write_file_atomically(dir / "latest", std::string(10000, 'x'));
  });
  expect_contains(sentence, (dir / "latest").string());
  expect_contains(sentence, "File too large");
  EXPECT_EQ(read_file(dir / "latest"), "old");
  EXPECT_EQ(names_in(dir.path()), (std::set<std::string>{"latest"}));
}

TEST(Files, AtomicWriteReplacesLeftoversOfACrash) {
  const TempDir dir;
  std::ofstream(dir / "latest.tmp") << "half a file from an earlier crash";
  write_file_atomically(dir / "latest", "new");
  EXPECT_EQ(read_file(dir / "latest"), "new");
  EXPECT_EQ(names_in(dir.path()), (std::set<std::string>{"latest"}));
}

TEST(Files, AtomicWriteDoesNotChangeTheOldFileInPlace) {
  const TempDir dir;
  write_file_atomically(dir / "file", "old");
  const MappedFile reader(dir / "file");
  write_file_atomically(dir / "file", "new");
  EXPECT_EQ(reader.chars(), "old");
  EXPECT_EQ(read_file(dir / "file"), "new");
}

TEST(Files, AtomicWriteOverAFolderFailsWithoutTraces) {
  const TempDir dir;
  fs::create_directory(dir / "folder");
  expect_contains(data_error([&] { write_file_atomically(dir / "folder", "x"); }), "cannot replace");
  EXPECT_EQ(names_in(dir.path()), (std::set<std::string>{"folder"}));
}

TEST(Files, UnwritableFolder) {
  if (!WithoutRoot::works()) GTEST_SKIP() << "root cannot be put aside here";
  const TempDir dir;
  fs::permissions(dir.path(), fs::perms(0555));
  const std::string sentence = data_error([&] {
    const WithoutRoot now;
    write_file_atomically(dir / "file", "x");
  });
  fs::permissions(dir.path(), fs::perms(0755));
  expect_contains(sentence, (dir / "file").string());
  expect_contains(sentence, "Permission denied; change its permissions or choose another place");
  EXPECT_TRUE(names_in(dir.path()).empty());
}

TEST(Files, MissingFolderAndFileInTheRoleOfAFolder) {
  const TempDir dir;
  write_file_atomically(dir / "file", "x");
  expect_contains(data_error([&] { FileWriter writer(dir / "no" / "file"); }), "create the missing folder");
  expect_contains(data_error([&] { FileWriter writer(dir / "file" / "x"); }),
                  "a file where a folder is needed");
  expect_contains(data_error([&] { sync_folder(dir / "no"); }), (dir / "no").string());
  expect_contains(data_error([&] { sync_folder(dir / "file"); }), (dir / "file").string());
}

TEST(Files, NoDescriptorsLeak) {
  const TempDir dir;
  const auto descriptors = [] { return names_in("/proc/self/fd").size(); };
  const size_t before = descriptors();
  for (int i = 0; i < 10; ++i) {
    write_file_atomically(dir / "file", "x");
    read_file(dir / "file");
    const MappedFile map(dir / "file");
    data_error([&] { read_file(dir.path()); });
    data_error([&] { MappedFile folder(dir.path()); });
    { FileWriter unfinished(dir / "unfinished"); }
  }
  EXPECT_EQ(descriptors(), before);
}

TEST(Files, FreeSpaceOfAPathThatDoesNotExistYet) {
  const TempDir dir;
  const uint64_t here = free_disk_bytes(dir.path());
  EXPECT_GT(here, 0u);
  const uint64_t below = free_disk_bytes(dir / "not" / "yet");
  // Others write at the same time; a wrong unit would be off by a factor.
  EXPECT_LT(std::max(here, below) / 2, std::min(here, below));
  const uint64_t expected = fs::space(dir.path()).available;
  EXPECT_LT(std::max(here, expected) / 2, std::min(here, expected));
  EXPECT_GT(free_disk_bytes("relative/not/yet"), 0u);
}

}  // namespace
}  // namespace hearth
