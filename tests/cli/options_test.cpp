// Flags of the subcommands: what is accepted, what is refused and how, and quoting for the shell.
#include "cli/options.h"

#include <gtest/gtest.h>

#include "base/error.h"
#include "cli/shell.h"

namespace hearth {
namespace {

CommandSpec one_file() {
  return {.name = "show",
          .about = "Shows.",
          .positional = "FILE",
          .options = {{"tokens", "N", "200", "how many"},
                      {"top-p", "P", "0.5", "how likely"},
                      {"prompt", "TEXT", "", "text"}}};
}

void refused(const std::vector<std::string>& arguments, const std::vector<std::string>& parts) {
  try {
    const Arguments parsed(one_file(), arguments);
    parsed.whole("tokens", 0, 1000);
    parsed.number("top-p", 0, 1, true);
    ADD_FAILURE() << "accepted " << arguments.size() << " arguments";
  } catch (const Error& error) {
    EXPECT_EQ(error.code(), ExitCode::usage);
    for (const std::string& part : parts)
      EXPECT_NE(std::string(error.what()).find(part), std::string::npos)
          << error.what() << "\nlacks " << part;
  }
}

TEST(Options, BothFormsAndDefaults) {
  const Arguments parsed(one_file(), {"--tokens=3", "a,b", "--prompt", "x=y z"});
  EXPECT_EQ(parsed.positional(), std::vector<std::string>{"a,b"});
  EXPECT_EQ(parsed.whole("tokens", 0, 10), 3);
  EXPECT_EQ(parsed.text("prompt"), "x=y z");
  EXPECT_EQ(parsed.number("top-p", 0, 1), 0.5);
  EXPECT_TRUE(parsed.given("tokens"));
  EXPECT_FALSE(parsed.given("top-p"));
}

TEST(Options, TextOfEveryKind) {
  const std::string longest(100000, 'x');
  for (const std::string& value : {std::string(), std::string("a\nb"), std::string("--tokens"), longest}) {
    EXPECT_EQ(Arguments(one_file(), {"f", "--prompt=" + value}).text("prompt"), value);
    EXPECT_EQ(Arguments(one_file(), {"f", "--prompt", value}).text("prompt"), value);
  }
}

TEST(Options, SeveralFiles) {
  CommandSpec spec = one_file();
  spec.positional = "FILE...";
  const std::vector<std::string> files = {"a", "b,c", "d e"};
  EXPECT_EQ(Arguments(spec, files).positional(), files);
}

TEST(Options, WrongOnesAreNamed) {
  refused({}, {"show needs FILE"});
  refused({""}, {"FILE is an empty string"});
  refused({"a", "b"}, {"one FILE", "\"b\""});
  refused({"a", "--tokesn", "3"}, {"--tokesn", "did you mean --tokens?"});
  refused({"a", "--xyzzy=3"}, {"--xyzzy", "show --help"});
  refused({"a", "-z"}, {"-z"});
  refused({"a", "--tokens"}, {"tokens"});
  for (const char* value : {"x", "", "1.5", "1e2", "-1", "1001", "3x", " 3", "99999999999999999999"})
    refused({"a", "--tokens", value}, {"--tokens", "whole number from 0 to 1000"});
  for (const char* value : {"x", "", "0", "1.1", "nan", "inf", "-1", "0.5x"})
    refused({"a", "--top-p", value}, {"--top-p", "above 0 to 1"});
}

TEST(Options, HelpNeedsNothingElseAndListsEverything) {
  EXPECT_TRUE(Arguments(one_file(), {"--help"}).help());
  EXPECT_TRUE(Arguments(one_file(), {"-h"}).help());
  EXPECT_FALSE(Arguments(one_file(), {"a"}).help());
  const std::string help = help_text(one_file());
  for (const char* part :
       {"hearth show", "FILE", "--tokens N", "default 200", "--top-p P", "--prompt TEXT", "--help"})
    EXPECT_NE(help.find(part), std::string::npos) << part << "\n" << help;
  EXPECT_EQ(help.find("positional"), std::string::npos) << help;
}

TEST(Shell, QuotesWhatNeedsIt) {
  EXPECT_EQ(shell_quoted("--train.batch=3"), "--train.batch=3");
  EXPECT_EQ(shell_quoted(""), "''");
  EXPECT_EQ(shell_quoted("a b"), "'a b'");
  EXPECT_EQ(shell_quoted("it's"), "'it'\\''s'");
  EXPECT_EQ(shell_quoted("$HOME/*"), "'$HOME/*'");
  EXPECT_EQ(shell_quoted("~x"), "'~x'");
  EXPECT_EQ(shell_quoted("a\nb"), "'a\nb'");
}

}  // namespace
}  // namespace hearth
