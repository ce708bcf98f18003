// Every planted bug is caught, and nothing is reported on the clean kernels.
#include "emulator/planted_bugs.h"

#include "kernels/device_array.h"

namespace hearth::testing {
namespace {

std::vector<PlantedBug> all_bugs() {
  std::vector<PlantedBug> all = basic_bugs();
  for (auto* more : {copying_bugs, hopper_bugs})
    for (const PlantedBug& bug : more())
      all.push_back(bug);
  return all;
}

class PlantedBugs : public ::testing::TestWithParam<PlantedBug> {
 protected:
  ~PlantedBugs() override { emulator::options() = before_; }

  // True when the run went wrong; `report` is then the first message.
  bool goes_wrong(const Schedule& schedule, bool check, bool bug) {
    emulator::options().order = schedule.order;
    emulator::options().async = schedule.async;
    emulator::options().check = check;
    try {
      if (GetParam().run(bug)) return false;
      if (report_.empty()) report_ = "wrong result";
    } catch (const emulator::Failure& failure) {
      if (report_.empty() || report_ == "wrong result") report_ = failure.what();
    }
    return true;
  }

  int count_wrong(bool check, bool bug) {
    int wrong = 0;
    for (const Schedule& schedule : all_schedules())
      wrong += goes_wrong(schedule, check, bug);
    return wrong;
  }

  std::string report_;

 private:
  emulator::Options before_ = emulator::options();
};

INSTANTIATE_TEST_SUITE_P(, PlantedBugs, ::testing::ValuesIn(all_bugs()),
                         [](const auto& info) { return info.param.name; });

TEST_P(PlantedBugs, CleanKernelIsRightAndNothingIsReported) {
  EXPECT_EQ(count_wrong(false, false), 0) << report_;
  EXPECT_EQ(count_wrong(true, false), 0) << report_;
}

TEST_P(PlantedBugs, BugIsCaught) {
  const int plain = count_wrong(false, true);
  report_.clear();
  const int checked = count_wrong(true, true);
  RecordProperty("plain", plain);
  RecordProperty("check", checked);
  std::printf("  plain %d/9, check %d/9: %s\n", plain, checked, report_.c_str());
  switch (GetParam().caught_by) {
    case Catch::plain:
      EXPECT_GT(plain, 0);
      EXPECT_GT(checked, 0);
      break;
    case Catch::check:
      EXPECT_EQ(checked, 9);
      break;
    case Catch::instrumented:
      if (emulator::sees_global_accesses()) {
        EXPECT_EQ(checked, 9);
      }
      break;
  }
}

TEST(PlantedBugList, IsLongEnough) {
  EXPECT_GE(all_bugs().size(), 29u);
}

}  // namespace
}  // namespace hearth::testing
