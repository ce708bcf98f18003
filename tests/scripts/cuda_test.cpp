// scripts/cuda.sh with an nvidia-smi and an nvcc that are shell scripts, and which GPUs a build runs on.
#include <gtest/gtest.h>

#include <fstream>

#include "base/files.h"
#include "device/cuda/targets.h"
#include "support/process.h"
#include "support/temp_dir.h"

namespace hearth {
namespace {

using Words = std::vector<std::string>;

class CudaScript : public ::testing::Test {
 protected:
  CudaScript() { fs::create_directory(dir_ / "bin"); }

  void tool(const std::string& name, const std::string& text) {
    std::ofstream(dir_ / "bin" / name) << "#!/bin/bash\n" << text << "\n";
    fs::permissions(dir_ / "bin" / name, fs::perms::owner_all);
  }
  void gpus(const std::string& capabilities) { tool("nvidia-smi", "printf '" + capabilities + "'"); }
  void nvcc(const std::string& architectures, const std::string& release = "13.0") {
    tool("nvcc", "[[ $1 == --version ]] && echo 'Cuda compilation tools, release " + release + ", V" +
                     release + ".88' || printf 'compute_%s\\n' " + architectures);
  }

  // What `cuda.sh WORDS...` prints.
  std::string cuda(const Words& words) {
    Words command{"env",
                  "-u",
                  "NVCC",
                  "CUDA_HOME=/nonexistent",
                  "PATH=" + (dir_ / "bin").string() + ":/usr/bin:/bin",
                  "scripts/cuda.sh"};
    command.insert(command.end(), words.begin(), words.end());
    std::string output = testing::run_program(command).output;
    while (output.ends_with('\n'))
      output.pop_back();
    return output;
  }

  TempDir dir_;
};

TEST_F(CudaScript, FindsWhatToCompileFor) {
  nvcc("80 86 89 90 100 120");
  gpus("9.0\\n9.0\\n8.6\\n");
  EXPECT_EQ(cuda({"seen"}), "86 90a");
  EXPECT_EQ(cuda({"why"}), "");
  gpus("10.3\\n");  // runs code for 10.0
  EXPECT_EQ(cuda({"seen"}), "100");
  EXPECT_EQ(cuda({"all"}), "80 86 89 90a 100 120");
  nvcc("80 86 89 90");
  EXPECT_EQ(cuda({"all"}), "80 86 89 90a");
}

TEST_F(CudaScript, SaysWhyThereIsNoCuda) {
  gpus("");
  nvcc("80 90");
  EXPECT_EQ(cuda({"seen"}), "");
  EXPECT_NE(cuda({"why"}).find("make ARCHS=\"80 90a\""), std::string::npos);
  for (const char* unknown : {"7.5\\n", "12.0\\n"}) {
    gpus(unknown);
    EXPECT_EQ(cuda({"seen"}), "");
    EXPECT_NE(cuda({"why"}).find("cannot compile for this GPU"), std::string::npos) << cuda({"why"});
  }
  gpus("[N/A]\\nNVIDIA-SMI has failed\\n");
  EXPECT_NE(cuda({"why"}).find("no NVIDIA GPU here"), std::string::npos);
}

TEST_F(CudaScript, SaysThatNvccIsMissing) {
  if (fs::exists("/usr/bin/nvcc")) GTEST_SKIP() << "this machine has an nvcc in /usr/bin";
  gpus("9.0\\n");
  EXPECT_EQ(cuda({"seen"}), "");
  EXPECT_NE(cuda({"why"}).find("no nvcc"), std::string::npos);
  EXPECT_NE(cuda({"problem", "80"}).find("needs nvcc"), std::string::npos);
}

TEST_F(CudaScript, RefusesArchitectures) {
  nvcc("75 80 90");
  EXPECT_EQ(cuda({"problem", "80", "90a"}), "");
  EXPECT_NE(cuda({"problem", "80", "75"}).find("'75'"), std::string::npos);
  EXPECT_NE(cuda({"problem", "sm_80"}).find("'sm_80'"), std::string::npos);
  EXPECT_NE(cuda({"problem", "120"}).find("cannot compile for '120'"), std::string::npos);
}

TEST_F(CudaScript, RefusesAnOldCompiler) {
  gpus("9.0\\n");
  for (const char* old : {"11.8", "12.0", "12.4"}) {
    nvcc("80 90", old);
    EXPECT_EQ(cuda({"seen"}), "");
    EXPECT_EQ(cuda({"all"}), "");
    const std::string found = std::string("is of CUDA ") + old + ", and Hearth needs 12.5 or newer";
    EXPECT_NE(cuda({"why"}).find(found), std::string::npos) << cuda({"why"});
    EXPECT_NE(cuda({"problem", "90a"}).find(found), std::string::npos) << cuda({"problem", "90a"});
  }
  for (const char* enough : {"12.5", "12.10", "13.0"}) {
    nvcc("80 90", enough);
    EXPECT_EQ(cuda({"seen"}), "90a");
    EXPECT_EQ(cuda({"problem", "80", "90a"}), "");
  }
}

TEST(CudaTargets, RunOnTheirGpus) {
  using cuda::runs_on;
  EXPECT_TRUE(runs_on("sm_80 sm_90a", 8, 0));
  EXPECT_TRUE(runs_on("sm_80 sm_90a", 8, 9));
  EXPECT_TRUE(runs_on("sm_80 sm_90a", 9, 0));
  EXPECT_FALSE(runs_on("sm_80 sm_90a", 10, 0));
  EXPECT_FALSE(runs_on("sm_86", 8, 0));
  EXPECT_FALSE(runs_on("sm_100a", 10, 3));
  EXPECT_TRUE(runs_on("sm_100", 10, 3));
  EXPECT_TRUE(runs_on("sm_120", 12, 0));
  EXPECT_TRUE(runs_on("the SIMT emulator", 9, 0));
}

}  // namespace
}  // namespace hearth
