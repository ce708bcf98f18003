// The schema table: every key refuses what it must, names itself, and survives being printed and read again.
#include "cli/schema.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>

#include "base/files.h"
#include "cli/config_check.h"
#include "cli/config_source.h"
#include "cli/literal.h"
#include "support/temp_dir.h"

namespace hearth {
namespace {

Settings parse(const std::string& document) {
  return apply(read_toml(document, "test.toml"));
}

// The Error that `action` throws; a failure of the test when it throws none.
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

void expect_refused(const std::string& document, const std::vector<std::string>& parts) {
  const Error error = error_of([&] { parse(document); });
  EXPECT_EQ(error.code(), ExitCode::usage) << document;
  for (const std::string& part : parts)
    EXPECT_NE(std::string(error.what()).find(part), std::string::npos) << document << "\n"
                                                                       << error.what() << "\nlacks " << part;
}

std::string document_for(const Key& key, const std::string& literal) {
  return "# line 1\n[" + key.section() + "]\n" + key.leaf() + " = " + literal + "\n";
}

bool is_kind(const Key& key, const std::string& kind) {
  Settings settings;
  const Field field = key.field(settings);
  if (kind == "bool") return std::holds_alternative<bool*>(field);
  if (kind == "real") return std::holds_alternative<double*>(field);
  const bool whole = std::holds_alternative<int64_t*>(field) || std::holds_alternative<uint64_t*>(field) ||
                     std::holds_alternative<int*>(field);
  return kind == "whole" ? whole : !whole && !is_kind(key, "bool") && !is_kind(key, "real");
}

TEST(Schema, TheTableIsConsistent) {
  std::set<std::string> names;
  std::vector<std::string> sections;
  for (const Section& section : schema_sections())
    sections.push_back(section.name);
  for (const Key& key : schema()) {
    EXPECT_TRUE(names.insert(key.name).second) << key.name << " twice";
    EXPECT_EQ(std::count(key.name.begin(), key.name.end(), '.'), 1) << key.name;
    EXPECT_NE(std::find(sections.begin(), sections.end(), key.section()), sections.end()) << key.name;
    EXPECT_FALSE(key.help.empty()) << key.name;
    EXPECT_EQ(is_kind(key, "whole"), std::holds_alternative<Whole>(key.limits)) << key.name;
    EXPECT_EQ(is_kind(key, "real"), std::holds_alternative<Real>(key.limits)) << key.name;
  }
}

// The names are a promise to users and to the configurations stored in old checkpoints: none may vanish.
TEST(Schema, TheNamesAreFixed) {
  const std::string promised =
      "model.preset model.layers model.heads model.kv_heads model.channels model.ffn model.context "
      "model.vocab "
      "model.dropout model.bias model.tied model.norm model.activation model.position data.train data.val "
      "data.val_fraction data.tokenizer train.steps train.stop_after train.max_minutes train.batch "
      "train.micro_batch train.seed train.precision train.recompute train.max_skipped optimizer.lr "
      "optimizer.min_lr optimizer.warmup optimizer.schedule optimizer.decay_steps optimizer.beta1 "
      "optimizer.beta2 optimizer.eps optimizer.weight_decay optimizer.clip parallel.data parallel.tensor "
      "parallel.pipeline parallel.sequence parallel.zero parallel.schedule parallel.virtual "
      "parallel.transport "
      "parallel.timeout parallel.init_timeout parallel.check_every device.kind device.gemm device.threads "
      "eval.every eval.tokens "
      "sample.every "
      "sample.prompt sample.tokens checkpoint.every checkpoint.keep checkpoint.resume "
      "checkpoint.allow_data_change log.every "
      "log.tensorboard run.dir run.name debug.dump_gradients ";
  std::string names;
  for (const Key& key : schema())
    names += key.name + " ";
  EXPECT_EQ(names, promised);
}

TEST(Schema, EveryKeyHasItsOwnField) {
  Settings settings;
  std::set<const void*> fields;
  for (const Key& key : schema()) {
    const void* address =
        std::visit([](auto* pointer) -> const void* { return pointer; }, key.field(settings));
    EXPECT_TRUE(fields.insert(address).second) << key.name << " shares its field with another key";
  }
}

TEST(Schema, EveryKeyAcceptsItsDefault) {
  for (const Key& key : schema()) {
    const Settings settings = parse(document_for(key, default_literal(key)));
    EXPECT_EQ(literal_of(key, settings), default_literal(key)) << key.name;
  }
}

TEST(Schema, EveryKeyRefusesWrongTypes) {
  for (const Key& key : schema()) {
    std::vector<std::string> wrong = {"[1, 2]", "1979-05-27", "07:32:00", "{a = 1}"};
    if (!is_kind(key, "bool")) wrong.push_back("true");
    if (!is_kind(key, "string")) wrong.push_back("\"12\"");
    if (!is_kind(key, "real")) wrong.push_back("1.5");
    if (!is_kind(key, "real") && !is_kind(key, "whole")) wrong.push_back("1");
    for (const std::string& literal : wrong)
      expect_refused(document_for(key, literal), {"test.toml:3: ", key.name + " = ", "expected "});
  }
}

TEST(Schema, EveryKeyRefusesValuesOutOfRange) {
  for (const Key& key : schema()) {
    std::vector<std::string> outside;
    if (const auto* range = std::get_if<Whole>(&key.limits)) {
      outside.push_back(text(range->low - 1));
      if (range->high < INT64_MAX) outside.push_back(text(range->high + 1));
    } else if (const auto* range = std::get_if<Real>(&key.limits)) {
      outside = {"nan", "inf", "-inf", "-1e-9"};
      outside.push_back(
          number_literal(range->without_high ? range->high : std::nextafter(range->high, INFINITY)));
      if (range->without_low) outside.push_back(number_literal(range->low));
    } else if (std::holds_alternative<Choices>(key.limits)) {
      outside = {"\"no such choice\"", "\"\\u0000\""};
    }
    for (const std::string& literal : outside)
      expect_refused(document_for(key, literal), {"test.toml:3: ", key.name + " = ", "expected "});
  }
}

TEST(Schema, EveryKeyAcceptsItsBounds) {
  for (const Key& key : schema()) {
    std::vector<std::string> inside;
    if (const auto* range = std::get_if<Whole>(&key.limits)) {
      inside = {text(range->low), text(range->high)};
    } else if (const auto* range = std::get_if<Real>(&key.limits)) {
      inside = {number_literal(range->without_low ? std::nextafter(range->low, 1) : range->low),
                number_literal(range->without_high ? std::nextafter(range->high, 0) : range->high)};
    } else if (const auto* choices = std::get_if<Choices>(&key.limits)) {
      for (const std::string& name : choices->names)
        inside.push_back(string_literal(name));
    } else if (is_kind(key, "string")) {
      inside = {"\"\"", "\"h\\u00e9 \\\"q\\\" \\\\ \\n\\t\\u0001\"", "'literal'", "\"\"\"two\nlines\"\"\""};
    } else {
      inside = {"true", "false"};
    }
    for (const std::string& literal : inside) {
      const Settings settings = parse(document_for(key, literal));
      const std::string printed = literal_of(key, settings);
      const Settings again = parse(document_for(key, printed));
      EXPECT_EQ(literal_of(key, again), printed) << key.name << " = " << literal;
    }
  }
}

TEST(Schema, EnumsFollowTheirChoices) {
  EXPECT_EQ(parse("train.precision = 'bf16'").run.train.precision, Precision::bf16);
  EXPECT_EQ(parse("train.precision = 'fp32'").run.train.precision, Precision::fp32);
  EXPECT_EQ(parse("train.precision = 'fp64'").run.train.precision, Precision::fp64);
  EXPECT_EQ(parse("train.recompute = 'none'").run.train.recompute, Recompute::none);
  EXPECT_EQ(parse("train.recompute = 'selective'").run.train.recompute, Recompute::selective);
  EXPECT_EQ(parse("train.recompute = 'block'").run.train.recompute, Recompute::block);
  EXPECT_EQ(parse("optimizer.schedule = 'constant'").run.optimizer.schedule, LrSchedule::constant);
  EXPECT_EQ(parse("optimizer.schedule = 'linear'").run.optimizer.schedule, LrSchedule::linear);
  EXPECT_EQ(parse("optimizer.schedule = 'cosine'").run.optimizer.schedule, LrSchedule::cosine);
  EXPECT_EQ(parse("optimizer.schedule = 'wsd'").run.optimizer.schedule, LrSchedule::wsd);
  EXPECT_EQ(parse("parallel.virtual = 3").run.parallel.virtual_stages, 3);
}

TEST(Schema, ThePresetComesFirstWhereverItStands) {
  const std::string orders[] = {"[model]\npreset = 'gpt2-124m'\nlayers = 3\n",
                                "[model]\nlayers = 3\npreset = 'gpt2-124m'\n",
                                "model = {layers = 3, preset = 'gpt2-124m'}\n"};
  for (const std::string& document : orders) {
    const Settings settings = parse(document);
    EXPECT_EQ(settings.preset, "gpt2-124m");
    EXPECT_EQ(settings.run.model.layers, 3) << document;
    EXPECT_EQ(settings.run.model.channels, 768) << document;
    EXPECT_EQ(settings.run.model.vocab, 50257) << document;
  }
  const Settings tiny = parse("model.preset = 'tiny'");
  EXPECT_EQ(tiny.run.model.channels, 64);
  EXPECT_EQ(tiny.run.model.layers, 4);
}

TEST(Schema, AnOverriddenPresetKeepsTheFilesOtherKeys) {
  std::vector<Assignment> assignments = read_toml("[model]\npreset = 'tiny'\nlayers = 3\n", "test.toml");
  size_t at = 0;
  assignments.push_back(read_override({"--model.preset=gpt2-350m"}, at));
  const Settings settings = apply(assignments);
  EXPECT_EQ(settings.preset, "gpt2-350m");
  EXPECT_EQ(settings.run.model.layers, 3);
  EXPECT_EQ(settings.run.model.channels, 1024);
}

TEST(Schema, UnknownNamesAreRefusedWithTheNearest) {
  expect_refused("[train]\nsteps = 3\nbacth = 4\n",
                 {"test.toml:3: ", "train.bacth", "did you mean train.batch?"});
  expect_refused("train.batch_size = 4", {"train.batch_size", "unknown key"});
  expect_refused("steps = 4", {"test.toml:1: ", "did you mean train.steps?"});
  expect_refused("[optimizer]\nlearning_rate = 4", {"optimizer.learning_rate"});
  expect_refused("[optim]\nlr = 4", {"test.toml:1: ", "[optim]"});
  expect_refused("[optimiser]\n", {"[optimiser]", "did you mean [optimizer]?"});
  expect_refused("[model.layers]\n", {"model.layers = a table", "whole number"});
  expect_refused("[model.shape]\nlayers = 3\n", {"model.shape"});
  expect_refused("train = 3", {"train = 3", "section"});
  expect_refused("[[train]]\nbatch = 3\n", {"train = an array", "section"});
  expect_refused("\"train.batch\" = 3", {"unknown key"});
  expect_refused("[model]\npreset = 'gpt2-125m'", {"did you mean \"gpt2-124m\"?"});
  expect_refused("'" + std::string(100000, 'x') + "' = 1", {"test.toml:1: unknown key"});
}

TEST(Schema, SyntaxErrorsNameFileAndLine) {
  expect_refused("[train]\nsteps = \n", {"test.toml:2: "});
  expect_refused("[train]\nsteps = 3\nsteps = 4\n", {"test.toml:3: "});
  expect_refused("[train]\n[train]\n", {"test.toml:2: "});
  expect_refused("[train\n", {"test.toml:1: "});
  expect_refused("train.steps = 99999999999999999999", {"test.toml:1: "});
  expect_refused("run.name = \"\xff\"", {"test.toml:1: "});
  expect_refused("[train]\nsteps = 1\n[[\n[data]\n", {"test.toml:3: "});  // toml++ would abort
  expect_refused(std::string(1000, '[') + "\n", {"test.toml:1: "});
  expect_refused("a = " + std::string(100000, '['), {"test.toml:1: "});
}

// toml++ 3.3 has undefined behaviour for all of the refused ones.
TEST(Schema, CharactersBeyondAsciiOnlyInStringsAndComments) {
  expect_refused("[train]\ncaf\u00e9 = 3\n", {"test.toml:2: ", "\u00e9", "string or a comment"});
  expect_refused("train.steps = 3\u00e9", {"test.toml:1: "});
  expect_refused("train.steps =\u00a03", {"test.toml:1: "});
  expect_refused("train.steps = 1\"\u00e9\"", {"test.toml:1: "});
  expect_refused("model.bias = tru\u1681", {"test.toml:1: "});
  expect_refused("run.name = \"a\n\u00e9\"", {"test.toml:2: "});
  const std::string fine[] = {"run.name = \"\u00e9\" # \u00e9",
                              "run.name = '\u00e9'",
                              "run.name = \"a\\\"\u00e9\"",
                              "run.name = \"\"\"\"\u00e9\n\"\"\u00e9\"\"\"\"\" # \u00e9",
                              "run={name='\u00e9'}",
                              "\xEF\xBB\xBFrun.name = '''\\'\u00e9'''",
                              "# it's \u00e9\nrun.name = '\u00e9'"};
  for (const std::string& document : fine)
    EXPECT_NE(parse(document).run.run.name.find("\u00e9"), std::string::npos) << document;
}

TEST(Schema, NumbersPrintNicelyAndExactly) {
  EXPECT_EQ(number_literal(6e-4), "0.0006");
  EXPECT_EQ(number_literal(1e-8), "1e-8");
  EXPECT_EQ(number_literal(1.0), "1.0");
  EXPECT_EQ(number_literal(0.0), "0.0");
  EXPECT_EQ(number_literal(1e20), "1e20");
  EXPECT_EQ(number_literal(0.1), "0.1");
  EXPECT_EQ(number_literal(2.5e-300), "2.5e-300");
  for (const double value : {1.0 / 3, 6e-4, 1e-8, 0.99, 123456789.125, 5e-324, 999.0000000000001, 1e-5 / 3})
    EXPECT_EQ(std::get<double>(read_toml_literal(number_literal(value), "")), value) << number_literal(value);
}

TEST(Schema, OneLiteralIsOneValue) {
  EXPECT_EQ(std::get<int64_t>(read_toml_literal("12", "w")), 12);
  for (const std::string literal : {"", "x", "1\ny = 2", "1\n[t]", "1, 2", "\"", "1 2"})
    EXPECT_EQ(error_of([&] { read_toml_literal(literal, "w"); }).code(), ExitCode::usage) << literal;
}

}  // namespace
}  // namespace hearth
