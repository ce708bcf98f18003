// The CUDA backend without a GPU: the executable whose kernels run on the emulator trains like the CPU.
#include <gtest/gtest.h>

#include <cmath>

#include "support/launch_run.h"

namespace hearth {
namespace {

using testing::metrics;
using testing::Outcome;
using testing::run_program;
using testing::Words;

std::string emulated_binary() {
  const char* path = std::getenv("HEARTH_EMULATED");
  return path ? path : "build/hearth-emulated";
}

Outcome train_on(const std::string& binary, const fs::path& run, const Words& more) {
  Words words{binary,
              "train",
              "configs/tiny.toml",
              "--run.dir=" + run.string(),
              "--eval.every=0",
              "--sample.every=0",
              "--train.precision=bf16"};
  words.insert(words.end(), more.begin(), more.end());
  return run_program(words);
}

// Losses within 0.5% of the CPU's, gradient norms within 1%.
void expect_same_course(const fs::path& a, const fs::path& b) {
  const auto emulated = metrics(a, "step");
  const auto cpu = metrics(b, "step");
  ASSERT_EQ(emulated.size(), cpu.size());
  for (size_t i = 0; i < cpu.size(); ++i) {
    const double loss = cpu[i].at("loss");
    const double norm = cpu[i].at("grad_norm");
    EXPECT_NEAR(emulated[i].at("loss").get<double>(), loss, 5e-3 * loss) << "step " << i + 1;
    EXPECT_NEAR(emulated[i].at("grad_norm").get<double>(), norm, 1e-2 * norm) << "step " << i + 1;
  }
}

TEST(Cuda, TrainsLikeTheCpu) {
  TempDir dir;
  const Words steps = {"--train.steps=4"};
  const Outcome emulated =
      train_on(emulated_binary(), dir / "cuda", {"--train.steps=4", "--device.kind=cuda"});
  ASSERT_EQ(emulated.code, 0) << emulated.output;
  EXPECT_NE(emulated.output.find("device     cuda"), std::string::npos) << emulated.output;
  ASSERT_EQ(train_on(testing::hearth_binary(), dir / "cpu", {"--train.steps=4", "--device.kind=cpu"}).code,
            0);
  expect_same_course(dir / "cuda", dir / "cpu");
}

TEST(Cuda, GemmEnginesTrainAlike) {
  TempDir dir;
  const Words small = {"--train.steps=4", "--device.kind=cuda", "--model.layers=2", "--model.context=32",
                       "--train.batch=4"};
  const auto train = [&](const std::string& binary, const char* name, const char* option) {
    Words words = small;
    words.push_back(option);
    const Outcome outcome = train_on(binary, dir / name, words);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
    return outcome.output;
  };
  train(testing::hearth_binary(), "cpu", "--device.kind=cpu");
  train(emulated_binary(), "native", "--device.gemm=native");
  const std::string output = train(emulated_binary(), "cublaslt", "--device.gemm=cublaslt");
  EXPECT_NE(output.find(", cuBLASLt "), std::string::npos) << output;
  expect_same_course(dir / "cublaslt", dir / "native");
  expect_same_course(dir / "cublaslt", dir / "cpu");
  // Its products are other bits, and the same ones each time.
  train(emulated_binary(), "again", "--device.gemm=cublaslt");
  EXPECT_EQ(testing::checkpoint_bytes(dir / "again", 4), testing::checkpoint_bytes(dir / "cublaslt", 4));
  EXPECT_NE(testing::checkpoint_bytes(dir / "native", 4), testing::checkpoint_bytes(dir / "cublaslt", 4));
}

TEST(Cuda, RecomputationChangesNoBitAndCheckpointsLoadAnywhere) {
  TempDir dir;
  const Words small = {"--train.steps=2",    "--device.kind=cuda",  "--model.layers=2",
                       "--model.context=32", "--model.dropout=0.1", "--train.batch=4"};
  ASSERT_EQ(train_on(emulated_binary(), dir / "none", small).code, 0);
  for (const char* policy : {"selective", "block"}) {
    Words words = small;
    words.push_back(std::string("--train.recompute=") + policy);
    const Outcome outcome = train_on(emulated_binary(), dir / policy, words);
    ASSERT_EQ(outcome.code, 0) << outcome.output;
    EXPECT_EQ(testing::checkpoint_bytes(dir / policy, 2), testing::checkpoint_bytes(dir / "none", 2))
        << policy;
  }
  // A run of the GPU goes on on the CPU.
  Words resumed = small;
  resumed[0] = "--train.steps=3";
  resumed[1] = "--device.kind=cpu";
  const Outcome outcome = train_on(testing::hearth_binary(), dir / "none", resumed);
  EXPECT_EQ(outcome.code, 0) << outcome.output;
  EXPECT_EQ(metrics(dir / "none", "step").size(), 3u);
}

TEST(Cuda, GeneratesLikeTheCpu) {
  TempDir dir;
  ASSERT_EQ(train_on(testing::hearth_binary(), dir / "run", {"--train.steps=30", "--device.kind=cpu"}).code,
            0);
  const auto text = [&](const std::string& binary, const char* device) {
    const Outcome o = run_program({binary, "generate", (dir / "run").string(), "--prompt", "The ", "--tokens",
                                   "12", "--temperature", "0", "--device", device});
    EXPECT_EQ(o.code, 0) << o.output;
    return o.output;
  };
  EXPECT_EQ(text(emulated_binary(), "cuda"), text(testing::hearth_binary(), "cpu"));
}

// The number behind a word of a line for people.
double number_after(const std::string& output, const std::string& word) {
  const size_t at = output.find(word);
  EXPECT_NE(at, std::string::npos) << output;
  return at == std::string::npos ? NAN : std::strtod(output.c_str() + at + word.size(), nullptr);
}

// Forwards alone, between steps and as a command: the loss of the CPU on the same weights, and training goes
// on as without it.
TEST(Cuda, EvaluatesLikeTheCpu) {
  TempDir dir;
  const Words small = {"--train.steps=3",    "--device.kind=cuda", "--model.layers=2",
                       "--model.context=32", "--train.batch=4",    "--model.dropout=0.1"};
  const auto train = [&](const char* name, const Words& evaluation) {
    Words words = small;
    words.insert(words.end(), evaluation.begin(), evaluation.end());
    const Outcome outcome = train_on(emulated_binary(), dir / name, words);
    EXPECT_EQ(outcome.code, 0) << outcome.output;
  };
  train("without", {});
  // 9 samples in microbatches of 4: the last one is not whole.
  train("with", {"--eval.every=2", "--eval.tokens=288"});
  const auto evaluations = metrics(dir / "with", "eval");
  ASSERT_EQ(evaluations.size(), 2u);
  EXPECT_EQ(testing::checkpoint_bytes(dir / "with", 3), testing::checkpoint_bytes(dir / "without", 3));

  const auto evaluate = [&](const std::string& binary, const char* device) {
    const Outcome o =
        run_program({binary, "eval", (dir / "with").string(), "--tokens", "288", "--device", device});
    EXPECT_EQ(o.code, 0) << o.output;
    return number_after(o.output, "val_loss=");
  };
  const double during = evaluations.back().at("val_loss");
  const double gpu = evaluate(emulated_binary(), "cuda");
  const double cpu = evaluate(testing::hearth_binary(), "cpu");
  EXPECT_NEAR(gpu, during, 1e-5 * during);
  EXPECT_NEAR(gpu, cpu, 1e-3 * cpu);
  // Three steps have moved it, so an evaluation of other weights would be seen.
  EXPECT_GT(std::abs(evaluations.front().at("val_loss").get<double>() - during), 1e-3 * during);
}

// ---- several ranks, over both transports

Words ranks_on_gpus(int ranks, int gpus, const fs::path& run, const Words& more) {
  Words words{"env", "HEARTH_EMULATED_GPUS=" + std::to_string(gpus), emulated_binary()};
  if (ranks > 1) words.insert(words.end(), {"launch", "-n", std::to_string(ranks)});
  words.insert(words.end(),
               {"train", "configs/tiny.toml", "--run.dir=" + run.string(), "--device.kind=cuda",
                "--eval.every=0", "--sample.every=0", "--train.steps=3", "--model.layers=2",
                "--model.context=32", "--train.batch=4", "--model.dropout=0.1", "--parallel.timeout=20"});
  words.insert(words.end(), more.begin(), more.end());
  return words;
}

Outcome run_on_gpus(int ranks, int gpus, const fs::path& run, const Words& more) {
  return run_program(ranks_on_gpus(ranks, gpus, run, more));
}

// bf16 rounds partial sums over a split model; a split batch changes the order of fp32 sums only.
TEST(CudaRanks, TrainLikeOneOverNcclAndThroughHostMemory) {
  struct Layout {
    int ranks;
    double tolerance;
    Words options;
  };
  const Layout layouts[] = {
      {2, 1e-5, {"--parallel.data=2"}},
      {2, 1e-3, {"--parallel.tensor=2"}},
      {2, 1e-5, {"--parallel.pipeline=2", "--train.micro_batch=2"}},
      {4, 1e-3, {"--parallel.tensor=2", "--parallel.zero=1"}},
  };
  TempDir dir;
  ASSERT_EQ(run_on_gpus(1, 1, dir / "one", {}).code, 0);
  const auto one = metrics(dir / "one", "step");
  ASSERT_EQ(one.size(), 3u);
  int number = 0;
  for (const Layout& layout : layouts)
    for (const bool nccl : {false, true}) {
      const fs::path run = dir / std::to_string(number++);
      // Where every rank has a GPU of its own, auto takes NCCL.
      const Outcome outcome = run_on_gpus(layout.ranks, nccl ? layout.ranks : 1, run, layout.options);
      ASSERT_EQ(outcome.code, 0) << outcome.output;
      EXPECT_NE(outcome.output.find(nccl ? "transport  nccl 2.28.9"
                                         : "transport  gloo, through host memory (ranks 0"),
                std::string::npos)
          << outcome.output;
      const auto steps = metrics(run, "step");
      ASSERT_EQ(steps.size(), 3u);
      for (size_t i = 0; i < steps.size(); ++i)
        for (const char* number_of : {"loss", "grad_norm"}) {
          const double want = one[i].at(number_of);
          EXPECT_NEAR(steps[i].at(number_of).get<double>(), want, layout.tolerance * want)
              << layout.options[0] << (nccl ? " nccl " : " staged ") << number_of << " of step " << i + 1;
        }
    }
}

TEST(CudaRanks, WhatNcclCannotDoIsSaidInOneSentence) {
  TempDir dir;
  const Words nccl = {"--parallel.transport=nccl"};
  const Outcome shared = run_on_gpus(2, 1, dir / "run", nccl);
  EXPECT_EQ(shared.code, 2) << shared.output;
  EXPECT_NE(shared.output.find("ranks 0 and 1 on "), std::string::npos) << shared.output;
  EXPECT_NE(shared.output.find("share GPU 0000:01:00.0"), std::string::npos) << shared.output;

  for (const auto& [library, words] :
       {std::pair{"absent", "cannot be opened"}, std::pair{"21705", "is NCCL 2.17.5"}}) {
    Words command = ranks_on_gpus(2, 2, dir / "run", nccl);
    command.insert(command.begin() + 1, std::string("HEARTH_EMULATED_NCCL=") + library);
    const Outcome missing = run_program(command);
    EXPECT_EQ(missing.code, 72) << missing.output;
    EXPECT_NE(missing.output.find(words), std::string::npos) << missing.output;
    EXPECT_NE(missing.output.find("parallel.transport = \"gloo\""), std::string::npos) << missing.output;
  }
  EXPECT_FALSE(fs::exists(dir / "run"));
}

// A rank that dies between steps ends the other, whose host waits for its GPU.
TEST(CudaRanks, OneThatDiesEndsTheOtherOverNccl) {
  TempDir dir;
  testing::Process run(ranks_on_gpus(2, 2, dir / "run", {"--train.steps=1000", "--log.every=1"}));
  ASSERT_TRUE(run.wait_for("step 2/")) << run.output();
  const auto launcher = testing::ranks_of(run.pid());
  ASSERT_EQ(launcher.size(), 2u);
  ::kill(launcher.at(1), SIGKILL);
  const Outcome outcome = run.finish(15);
  EXPECT_EQ(outcome.code, 128 + SIGKILL);  // the first to fail
  EXPECT_NE(outcome.output.find(" died: its connection closed"), std::string::npos) << "it hangs\n"
                                                                                    << outcome.output;
  EXPECT_NE(outcome.output.find("[rank 0 ("), std::string::npos) << outcome.output;
}

TEST(Cuda, WhatCannotBeIsSaidInOneSentence) {
  TempDir dir;
  const Outcome fp32 =
      train_on(emulated_binary(), dir / "run", {"--device.kind=cuda", "--train.precision=fp32"});
  EXPECT_EQ(fp32.code, 2) << fp32.output;
  EXPECT_NE(fp32.output.find("bf16"), std::string::npos) << fp32.output;
  const Outcome no_engine =
      train_on(emulated_binary(), dir / "run", {"--device.kind=cuda", "--device.gemm=cutlass"});
  EXPECT_EQ(no_engine.code, 2) << no_engine.output;
  EXPECT_NE(no_engine.output.find("cublaslt"), std::string::npos) << no_engine.output;
  ::setenv("CUDA_VISIBLE_DEVICES", "", 1);  // also where there is a GPU
  const Outcome no_gpu = train_on(testing::hearth_binary(), dir / "run", {"--device.kind=cuda"});
  EXPECT_EQ(no_gpu.code, 72) << no_gpu.output;
  EXPECT_NE(no_gpu.output.find("device.kind"), std::string::npos) << no_gpu.output;
  EXPECT_FALSE(fs::exists(dir / "run"));
  const Outcome automatic =
      train_on(testing::hearth_binary(), dir / "run", {"--device.kind=auto", "--train.steps=1"});
  ::unsetenv("CUDA_VISIBLE_DEVICES");
  EXPECT_EQ(automatic.code, 0) << automatic.output;
  EXPECT_NE(automatic.output.find("device     cpu"), std::string::npos) << automatic.output;
  EXPECT_NE(automatic.output.find("; not a GPU: "), std::string::npos) << automatic.output;
}

TEST(Cuda, TheVersionNamesTheBuild) {
  const Outcome emulated = run_program({emulated_binary(), "--version"});
  EXPECT_NE(emulated.output.find(", CUDA 13.0 for the SIMT emulator"), std::string::npos) << emulated.output;
  const Outcome plain = run_program({testing::hearth_binary(), "--version"});
  EXPECT_TRUE(plain.output.ends_with(", no CUDA\n") || plain.output.find(" for sm_") != std::string::npos)
      << plain.output;
}

// A model that the kernels have no room for is refused before anything runs or is written.
TEST(Cuda, AModelThatTheKernelsCannotRunIsSaidInOneSentence) {
  TempDir dir;
  const Outcome refused = train_on(emulated_binary(), dir / "run",
                                   {"--device.kind=cuda", "--model.channels=8200", "--model.heads=1025",
                                    "--model.layers=1", "--model.ffn=8", "--model.context=8"});
  EXPECT_EQ(refused.code, 2) << refused.output;
  EXPECT_NE(
      refused.output.find(
          "device cuda: the CUDA kernels need model.channels to be a multiple of 8 up to 8192, and it is "
          "8200; use another width, or the cpu device"),
      std::string::npos)
      << refused.output;
  EXPECT_FALSE(fs::exists(dir / "run"));
}

}  // namespace
}  // namespace hearth
