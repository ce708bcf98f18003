// The function table of cuBLASLt: filled where the library is, and a reason where it is not.
#include <gtest/gtest.h>

#include "base/error.h"
#include "device/cuda/api/cublaslt.h"

namespace hearth {
namespace {

using cublaslt::Status;

cublaslt::Api load_only(const char* name) {
  return cublaslt::load_from({&name, 1});
}

TEST(CublasLtLoad, SaysWhichLibraryCannotBeOpened) {
  const cublaslt::Api api = load_only("libno-such-library.so.1");
  EXPECT_EQ(api.missing.find("cuBLASLt cannot be opened (libno-such-library.so.1: "), 0u) << api.missing;
  EXPECT_EQ(api.matmul, nullptr);
}

TEST(CublasLtLoad, SaysWhichFunctionIsMissing) {
  const cublaslt::Api api = load_only("libm.so.6");
  EXPECT_EQ(api.missing, "cuBLASLt cannot be opened (libm.so.6 has no function cublasLtCreate)");
  EXPECT_EQ(api.matmul, nullptr);
}

TEST(CublasLtLoad, SaysWhyEachOfThemIsNotTaken) {
  const char* names[] = {"libno-such-library.so.1", "libm.so.6"};
  const std::string missing = cublaslt::load_from(names).missing;
  EXPECT_NE(missing.find("libno-such-library.so.1: "), std::string::npos) << missing;
  EXPECT_NE(missing.find("; libm.so.6 has no function cublasLtCreate)"), std::string::npos) << missing;
}

// Libraries by their first letter: "a"bsent, "o"pens but does not start, "s"tarts.
std::string taken(std::vector<const char*> names) {
  static int contexts;
  contexts = 0;
  const cublaslt::Api api = cublaslt::load_from(names, [](const char* name) {
    cublaslt::Api one;
    if (*name == 'a') one.missing = text("no ", name);
    one.create = [](cublaslt::Context**) { return Status::not_initialized; };
    if (*name == 's')
      one.create = [](cublaslt::Context**) {
        ++contexts;
        return Status::success;
      };
    one.destroy = [](cublaslt::Context*) {
      --contexts;
      return Status::success;
    };
    if (name[1] == '1') one.get_version = [] { return size_t{1}; };
    if (name[1] == '2') one.get_version = [] { return size_t{2}; };
    return one;
  });
  EXPECT_EQ(contexts, 0) << "a context was left behind";
  return api.missing.empty() ? text("library ", api.get_version()) : api.missing;
}

TEST(CublasLtLoad, TakesTheFirstThatStarts) {
  EXPECT_EQ(taken({"s1", "s2"}), "library 1");
  EXPECT_EQ(taken({"a1", "s2"}), "library 2");
  EXPECT_EQ(taken({"o1", "s2"}), "library 2");
  EXPECT_EQ(taken({"o1", "o2"}), "library 1");
  EXPECT_EQ(taken({"o1", "a2"}), "library 1");
  EXPECT_EQ(taken({"a1", "o2"}), "library 2");
  EXPECT_EQ(taken({"a1", "a2"}), "cuBLASLt cannot be opened (no a1; no a2)");
}

// Nothing of this needs a GPU: NVIDIA's library takes the attributes that we set, in the sizes that we give.
class NvidiasCublasLt : public ::testing::Test {
 protected:
  void SetUp() override {
    if (!api.missing.empty() && api.missing.find("has no function") == std::string::npos)
      GTEST_SKIP() << api.missing;
  }
  cublaslt::Api api = cublaslt::load();
};

TEST_F(NvidiasCublasLt, HasEveryFunction) {
  EXPECT_EQ(api.missing, "");
  EXPECT_GE(api.get_version(), 120000u);
  EXPECT_STREQ(api.get_status_string(Status::not_supported), "the requested functionality is not supported");
}

TEST_F(NvidiasCublasLt, TakesOurAttributes) {
  cublaslt::MatmulDesc* operation = nullptr;
  ASSERT_EQ(api.matmul_desc_create(&operation, cublaslt::ComputeType::f32, cublaslt::DataType::f32),
            Status::success);
  const auto set = [&](cublaslt::DescAttribute attribute, auto value) {
    return api.matmul_desc_set_attribute(operation, attribute, &value, sizeof value);
  };
  EXPECT_EQ(set(cublaslt::DescAttribute::transpose_a, cublaslt::Operation::transpose), Status::success);
  EXPECT_EQ(set(cublaslt::DescAttribute::transpose_b, cublaslt::Operation::none), Status::success);
  EXPECT_EQ(set(cublaslt::DescAttribute::epilogue, cublaslt::Epilogue::gelu_aux_bias), Status::success);
  EXPECT_EQ(set(cublaslt::DescAttribute::bias_pointer, static_cast<const void*>(this)), Status::success);
  EXPECT_EQ(set(cublaslt::DescAttribute::aux_pointer, static_cast<const void*>(this)), Status::success);
  EXPECT_EQ(set(cublaslt::DescAttribute::aux_stride, int64_t{64}), Status::success);
  EXPECT_EQ(set(cublaslt::DescAttribute::aux_stride, int32_t{64}), Status::invalid_value);
  EXPECT_EQ(api.matmul_desc_destroy(operation), Status::success);
}

TEST_F(NvidiasCublasLt, TakesOurLayoutsAndPreferences) {
  cublaslt::MatrixLayout* layout = nullptr;
  ASSERT_EQ(api.matrix_layout_create(&layout, cublaslt::DataType::bf16, 64, 32, 72), Status::success);
  EXPECT_EQ(api.matrix_layout_destroy(layout), Status::success);
  cublaslt::Preference* preference = nullptr;
  ASSERT_EQ(api.matmul_preference_create(&preference), Status::success);
  const auto prefer = [&](cublaslt::PreferenceAttribute attribute, auto value) {
    return api.matmul_preference_set_attribute(preference, attribute, &value, sizeof value);
  };
  using enum cublaslt::PreferenceAttribute;
  EXPECT_EQ(prefer(workspace_bytes, uint64_t{1} << 25), Status::success);
  EXPECT_EQ(prefer(reduction_schemes, cublaslt::ReductionScheme::compute_type), Status::success);
  for (const auto alignment : {alignment_a, alignment_b, alignment_c, alignment_d})
    EXPECT_EQ(prefer(alignment, uint32_t{16}), Status::success);
  EXPECT_EQ(prefer(workspace_bytes, uint32_t{1}), Status::invalid_value);
  EXPECT_EQ(api.matmul_preference_destroy(preference), Status::success);
}

}  // namespace
}  // namespace hearth
