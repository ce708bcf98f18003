// Files, overrides, stored configurations, printing, and the committed configurations.
#include "cli/config_source.h"

#include <gtest/gtest.h>

#include <cmath>

#include "base/files.h"
#include "cli/config_check.h"
#include "support/temp_dir.h"

namespace hearth {
namespace {

template <class Action>
Error error_of(Action action) {
  try {
    action();
  } catch (const Error& error) {
    return error;
  }
  ADD_FAILURE() << "nothing was thrown";
  return Error(ExitCode::done, "");
}

void expect_message(const Error& error, ExitCode code, const std::vector<std::string>& parts) {
  EXPECT_EQ(error.code(), code) << error.what();
  for (const std::string& part : parts)
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << error.what() << "\nlacks " << part;
}

Settings with_overrides(const std::vector<std::string>& arguments) {
  std::vector<Assignment> assignments;
  size_t at = 0;
  while (at < arguments.size())
    assignments.push_back(read_override(arguments, at));
  return apply(assignments);
}

// Settings in which every key differs from its default.
Settings unusual_settings() {
  const Settings settings = with_overrides({"--model.preset=tiny",
                                            "--model.layers=2",
                                            "--model.heads=2",
                                            "--model.kv_heads=1",
                                            "--model.channels=32",
                                            "--model.ffn=24",
                                            "--model.context=16",
                                            "--model.vocab=99",
                                            "--model.dropout=0.1",
                                            "--model.bias=false",
                                            "--model.tied=false",
                                            "--model.norm=rmsnorm",
                                            "--model.activation=swiglu",
                                            "--model.position=rope",
                                            "--data.train=a b,\"c\"",
                                            "--data.val=\\x",
                                            "--data.val_fraction=0.3333333333333333",
                                            "--data.tokenizer=char",
                                            "--train.steps=7",
                                            "--train.stop_after=3",
                                            "--train.max_minutes=1.5",
                                            "--train.batch=6",
                                            "--train.micro_batch=3",
                                            "--train.seed=9223372036854775807",
                                            "--train.precision=bf16",
                                            "--train.recompute=block",
                                            "--train.max_skipped=2",
                                            "--optimizer.lr=3e-4",
                                            "--optimizer.min_lr=1e-5",
                                            "--optimizer.warmup=1",
                                            "--optimizer.schedule=wsd",
                                            "--optimizer.decay_steps=5",
                                            "--optimizer.beta1=0.8",
                                            "--optimizer.beta2=0.7",
                                            "--optimizer.eps=1e-9",
                                            "--optimizer.weight_decay=0",
                                            "--optimizer.clip=0.5",
                                            "--parallel.data=1",
                                            "--parallel.tensor=2",
                                            "--parallel.pipeline=3",
                                            "--parallel.sequence=true",
                                            "--parallel.zero=1",
                                            "--parallel.schedule=gpipe",
                                            "--parallel.virtual=2",
                                            "--parallel.transport=gloo",
                                            "--parallel.timeout=1",
                                            "--parallel.init_timeout=9",
                                            "--parallel.check_every=7",
                                            "--device.kind=reference",
                                            "--device.gemm=cublaslt",
                                            "--device.threads=1",
                                            "--eval.every=1",
                                            "--eval.tokens=5",
                                            "--sample.every=2",
                                            "--sample.prompt=\"h\\u00e9\\n\"",
                                            "--sample.tokens=3",
                                            "--checkpoint.every=4",
                                            "--checkpoint.keep=1",
                                            "--checkpoint.resume=none",
                                            "--checkpoint.allow_data_change=true",
                                            "--log.every=1",
                                            "--log.tensorboard=false",
                                            "--run.dir=d",
                                            "--run.name=n",
                                            "--debug.dump_gradients=g"});
  for (const Key& key : schema())
    EXPECT_NE(literal_of(key, settings), default_literal(key)) << key.name << " was left at its default";
  return settings;
}

TEST(ConfigSource, OverridesInBothForms) {
  const Settings settings =
      with_overrides({"--train.batch=12", "--train.micro_batch", "4", "--parallel.data", "-1",
                      "--optimizer.lr", "1e-3", "--model.bias=false", "--run.name", "a=b", "--data.train=x=y",
                      "--sample.prompt=", "--log.tensorboard", "false"});
  EXPECT_EQ(settings.run.train.batch, 12);
  EXPECT_EQ(settings.run.train.micro_batch, 4);
  EXPECT_EQ(settings.run.parallel.data, -1);
  EXPECT_EQ(settings.run.optimizer.lr, 1e-3);
  EXPECT_FALSE(settings.run.model.bias);
  EXPECT_EQ(settings.run.run.name, "a=b");
  EXPECT_EQ(settings.run.data.train, "x=y");
  EXPECT_EQ(settings.run.sample.prompt, "");
  EXPECT_FALSE(settings.run.log.tensorboard);
}

TEST(ConfigSource, OverriddenStringsMayBeQuoted) {
  EXPECT_EQ(with_overrides({"--sample.prompt=\"a\\n\""}).run.sample.prompt, "a\n");
  EXPECT_EQ(with_overrides({"--sample.prompt=a\\n"}).run.sample.prompt, "a\\n");
  EXPECT_EQ(with_overrides({"--sample.prompt=\""}).run.sample.prompt, "\"");
  EXPECT_EQ(with_overrides({"--run.name=1"}).run.run.name, "1");
  EXPECT_EQ(with_overrides({"--device.kind", "cpu"}).run.device.kind, "cpu");
}

TEST(ConfigSource, WrongOverridesNameTheFlag) {
  const auto refused = [](std::vector<std::string> arguments, std::vector<std::string> parts) {
    expect_message(error_of([&] { with_overrides(arguments); }), ExitCode::usage, parts);
  };
  refused({"--train.batch=x"}, {"--train.batch=x", "\"x\"", "whole number"});
  refused({"--train.batch", "x"}, {"--train.batch", "\"x\"", "whole number"});
  refused({"--train.batch=0"}, {"--train.batch=0", "from 1"});
  refused({"--train.batch=1.5"}, {"1.5", "whole number"});
  refused({"--train.batch=1\n[x]"}, {"train.batch", "whole number"});
  refused({"--train.batch="}, {"train.batch", "whole number"});
  refused({"--train.batch"}, {"--train.batch needs a value"});
  refused({"--train.batch", "--train.steps=3"}, {"--train.batch needs a value"});
  refused({"--train.bach=3"}, {"--train.bach=3", "did you mean train.batch?"});
  refused({"--model.bias=yes"}, {"true or false"});
  refused({"--run.name=\xff"}, {"run.name", "UTF-8"});
  refused({"--device.kind=gpu"}, {"device.kind", "\"cuda\""});
  refused({"--optimizer.lr=nan"}, {"optimizer.lr", "nan"});
}

TEST(ConfigSource, TellsOverridesFromOtherArguments) {
  EXPECT_TRUE(is_override("--train.batch=3"));
  EXPECT_TRUE(is_override("--train.batch"));
  EXPECT_TRUE(is_override("--no.such"));
  EXPECT_FALSE(is_override("--help"));
  EXPECT_FALSE(is_override("--config=a.toml"));
  EXPECT_FALSE(is_override("configs/tiny.toml"));
}

TEST(ConfigSource, PrintedConfigurationReadsBackTheSame) {
  const Settings settings = unusual_settings();
  const std::string printed = config_text(settings);
  const Settings again = apply(read_toml(printed, "printed"));
  EXPECT_EQ(config_text(again), printed);
  EXPECT_EQ(values_of(again), values_of(settings));
  const std::string commented = reference_text(settings);
  EXPECT_EQ(values_of(apply(read_toml(commented, "reference"))), values_of(settings));
}

TEST(ConfigSource, StoredValuesReadBackTheSame) {
  const Settings settings = unusual_settings();
  const ConfigValues values = values_of(settings);
  EXPECT_EQ(values.size(), schema().size());
  EXPECT_EQ(values_of(settings_from(values, "checkpoint")), values);
}

TEST(ConfigSource, StoredValuesThatAreWrongAreDataErrors) {
  const auto refused = [](ConfigValues values, std::vector<std::string> parts) {
    expect_message(error_of([&] { settings_from(values, "runs/x"); }), ExitCode::data, parts);
  };
  refused({{"train.warp", "9"}}, {"runs/x", "train.warp", "newer"});
  refused({{"train.batch", "\"9\""}}, {"runs/x", "train.batch"});
  refused({{"train.batch", "0"}}, {"runs/x", "train.batch"});
  refused({{"train.batch", "][\n"}}, {"runs/x"});
}

TEST(ConfigSource, UnreadableFilesAreUsageErrors) {
  const TempDir dir;
  const std::string missing = (dir / "none.toml").string();
  expect_message(error_of([&] { read_config_file(missing); }), ExitCode::usage, {missing});
  expect_message(error_of([&] { read_config_file(dir.path().string()); }), ExitCode::usage,
                 {dir.path().string()});
  const std::string binary = (dir / "binary").string();
  write_file_atomically(binary, std::string("\x88\xd8\x34\x01\0\0\0\0", 8));
  expect_message(error_of([&] { read_config_file(binary); }), ExitCode::usage, {binary, "binary data"});
}

TEST(ConfigSource, HelpListsEveryKey) {
  const std::string help = key_help();
  for (const Key& key : schema())
    EXPECT_NE(help.find("--" + key.name + "=" + default_literal(key) + "\n"), std::string::npos) << key.name;
}

TEST(CommittedConfigs, ReferenceListsExactlyTheSchemaWithItsDefaults) {
  const std::string committed = read_file("configs/reference.toml");
  std::vector<std::string> listed;
  for (const Assignment& a : read_toml(committed, "configs/reference.toml"))
    if (!std::holds_alternative<TableValue>(a.value)) listed.push_back(a.key);
  std::vector<std::string> expected;
  for (const Key& key : schema())
    expected.push_back(key.name);
  EXPECT_EQ(listed, expected);
  EXPECT_EQ(values_of(apply(read_config_file("configs/reference.toml"))), values_of(Settings{}));
  EXPECT_TRUE(committed == reference_text(Settings{}))
      << "configs/reference.toml is not what the schema says; renew it with\n"
         "  build/hearth train --print-config > configs/reference.toml";
}

TEST(CommittedConfigs, AllOthersAreValid) {
  int count = 0;
  for (const auto& entry : fs::directory_iterator("configs")) {
    if (entry.path().extension() != ".toml" || entry.path().filename() == "reference.toml") continue;
    SCOPED_TRACE(entry.path());
    EXPECT_NO_THROW(validate(apply(read_config_file(entry.path().string())).run));
    ++count;
  }
  EXPECT_GE(count, 4);
}

}  // namespace
}  // namespace hearth
