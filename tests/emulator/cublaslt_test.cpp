// The stand-in for cuBLASLt against numbers worked out by hand, and what it refuses.
//
// Matrices are written as they lie in memory, one column of numbers after another.
#include "emulator/cublaslt.h"

#include <cmath>

#include "kernels/device_array.h"

namespace hearth::testing {
namespace {

using namespace cublaslt;

// D (2 x 3) = op(A) (2 x 2) op(B) (2 x 3), where op(A) has rows 1 2, 3 4 and op(B) rows 1 0 2, 0 1 -1:
//   1  2   0
//   3  4   2
struct Call {
  Api api = load();
  Context* context = nullptr;
  MatmulDesc* operation = nullptr;
  MatrixLayout *a_layout = nullptr, *b_layout = nullptr, *c_layout = nullptr, *d_layout = nullptr;
  Preference* preference = nullptr;
  HeuristicResult choice{};
  float alpha = 1, beta = 0;
  DeviceArray<bf16> a{std::vector<bf16>(64)}, b{std::vector<bf16>(64)}, d{64}, bias{16}, aux{64};
  DeviceArray<float> wide_d{64}, wide_bias{16};
  DeviceArray<char> workspace{1 << 16};
  bool wide = false;  // C and D are fp32

  Call() {
    EXPECT_EQ(api.create(&context), Status::success);
    EXPECT_EQ(api.matmul_desc_create(&operation, ComputeType::f32, DataType::f32), Status::success);
    EXPECT_EQ(api.matmul_preference_create(&preference), Status::success);
    prefer(PreferenceAttribute::workspace_bytes, uint64_t{1 << 16});
    layout(a_layout, DataType::bf16, 2, 2, 2);
    layout(b_layout, DataType::bf16, 2, 3, 2);
    layouts_of_d(DataType::bf16, 2, 3, 2);
    a.set(padded({1, 3, 2, 4}));
    b.set(padded({1, 0, 0, 1, 2, -1}));
  }
  Call(const Call&) = delete;
  ~Call() {
    for (MatrixLayout* x : {a_layout, b_layout, c_layout, d_layout})
      api.matrix_layout_destroy(x);
    api.matmul_preference_destroy(preference);
    api.matmul_desc_destroy(operation);
    api.destroy(context);
  }

  static std::vector<bf16> padded(const std::vector<float>& values, size_t size = 64) {
    std::vector<bf16> all(size, bf16(NAN));
    for (size_t i = 0; i < values.size(); ++i)
      all[i] = bf16(values[i]);
    return all;
  }
  void layout(MatrixLayout*& x, DataType type, uint64_t rows, uint64_t columns, int64_t stride) {
    api.matrix_layout_destroy(x);
    EXPECT_EQ(api.matrix_layout_create(&x, type, rows, columns, stride), Status::success);
  }
  void layouts_of_d(DataType type, uint64_t rows, uint64_t columns, int64_t stride) {
    layout(c_layout, type, rows, columns, stride);
    layout(d_layout, type, rows, columns, stride);
    wide = type == DataType::f32;
  }
  template <class T>
  Status set(DescAttribute attribute, T value) {
    return api.matmul_desc_set_attribute(operation, attribute, &value, sizeof value);
  }
  template <class T>
  void prefer(PreferenceAttribute attribute, T value) {
    EXPECT_EQ(api.matmul_preference_set_attribute(preference, attribute, &value, sizeof value),
              Status::success);
  }
  void with_bias(Epilogue epilogue, void* address) {
    EXPECT_EQ(set(DescAttribute::epilogue, epilogue), Status::success);
    EXPECT_EQ(set(DescAttribute::bias_pointer, address), Status::success);
  }
  void with_aux(Epilogue epilogue, int64_t stride) {
    EXPECT_EQ(set(DescAttribute::epilogue, epilogue), Status::success);
    EXPECT_EQ(set(DescAttribute::aux_pointer, static_cast<void*>(aux.data())), Status::success);
    EXPECT_EQ(set(DescAttribute::aux_stride, stride), Status::success);
  }
  Status choose() {
    int found = 0;
    return api.matmul_algo_get_heuristic(context, operation, a_layout, b_layout, c_layout, d_layout,
                                         preference, 1, &choice, &found);
  }
  Status multiply() {
    void* out = wide ? static_cast<void*>(wide_d.data()) : d.data();
    return api.matmul(context, operation, &alpha, a.data(), a_layout, b.data(), b_layout, &beta, out,
                      c_layout, out, d_layout, &choice.algorithm, workspace.data(), 1 << 16, nullptr);
  }
  Status run() {
    const Status status = choose();
    return status == Status::success ? multiply() : status;
  }
};

// The first numbers of an array, and NaN after them.
template <class T>
void expect_numbers(const DeviceArray<T>& array, std::vector<float> expected) {
  const std::vector<T> all = array.to_host();
  expected.resize(all.size(), NAN);
  for (size_t i = 0; i < all.size(); ++i) {
    const float value = static_cast<float>(all[i]);
    if (std::isnan(expected[i]))
      EXPECT_TRUE(std::isnan(value)) << "element " << i << " is " << value;
    else
      EXPECT_FLOAT_EQ(value, expected[i]) << "element " << i;
  }
}

TEST(CublasLt, MultipliesColumnsAfterColumns) {
  Call call;
  EXPECT_EQ(call.run(), Status::success);
  expect_numbers(call.d, {1, 3, 2, 4, 0, 2});
}

TEST(CublasLt, TransposesEitherOperand) {
  Call first;
  first.a.set(Call::padded({1, 2, 3, 4}));
  first.set(DescAttribute::transpose_a, Operation::transpose);
  EXPECT_EQ(first.run(), Status::success);
  expect_numbers(first.d, {1, 3, 2, 4, 0, 2});

  Call second;
  second.layout(second.b_layout, DataType::bf16, 3, 2, 3);
  second.b.set(Call::padded({1, 0, 2, 0, 1, -1}));
  second.set(DescAttribute::transpose_b, Operation::transpose);
  EXPECT_EQ(second.run(), Status::success);
  expect_numbers(second.d, {1, 3, 2, 4, 0, 2});
}

TEST(CublasLt, StepsFromColumnToColumnByTheLeadingDimension) {
  Call call;
  call.layout(call.a_layout, DataType::bf16, 2, 2, 3);
  call.a.set(Call::padded({1, 3, NAN, 2, 4}));
  call.layout(call.b_layout, DataType::bf16, 2, 3, 4);
  call.b.set(Call::padded({1, 0, NAN, NAN, 0, 1, NAN, NAN, 2, -1}));
  call.layouts_of_d(DataType::bf16, 2, 3, 5);
  EXPECT_EQ(call.run(), Status::success);
  expect_numbers(call.d, {1, 3, NAN, NAN, NAN, 2, 4, NAN, NAN, NAN, 0, 2});
}

TEST(CublasLt, ScalesAndAccumulates) {
  Call call;
  call.layouts_of_d(DataType::f32, 2, 3, 2);
  std::vector<float> c(64, NAN);
  for (size_t i = 0; i < 6; ++i)
    c[i] = 10 * static_cast<float>(i);
  call.wide_d.set(c);
  call.alpha = 2, call.beta = 0.5f;
  EXPECT_EQ(call.run(), Status::success);
  expect_numbers(call.wide_d, {2, 11, 14, 23, 20, 29});
}

TEST(CublasLt, AddsABiasToEveryColumn) {
  Call call;
  call.bias.set(Call::padded({100, 200}, 16));
  call.with_bias(Epilogue::bias, call.bias.data());
  EXPECT_EQ(call.run(), Status::success);
  expect_numbers(call.d, {101, 203, 102, 204, 100, 202});
}

// The tanh form of gelu: 0 at 0, 0.841192 at 1, -0.158808 at -1, -0.045402 at -2.
TEST(CublasLt, AppliesGeluAfterTheBiasAndKeepsItsArgument) {
  Call call;
  call.bias.set(Call::padded({-1, -4}, 16));
  call.with_aux(Epilogue::gelu_aux_bias, 8);
  call.with_bias(Epilogue::gelu_aux_bias, call.bias.data());
  EXPECT_EQ(call.run(), Status::success);
  expect_numbers(call.aux, {0, -1, NAN, NAN, NAN, NAN, NAN, NAN, 1, 0, NAN, NAN, NAN, NAN, NAN, NAN, -1, -2});
  const auto rounded = [](double x) { return static_cast<float>(bf16(static_cast<float>(x))); };
  expect_numbers(call.d,
                 {0, rounded(-0.158808), rounded(0.841192), 0, rounded(-0.158808), rounded(-0.045402)});
}

TEST(CublasLt, AppliesGeluToTheUnroundedSum) {
  Call call;
  call.bias.set(Call::padded({0.00390625f, 0.00390625f}, 16));  // 2^-8: lost when 1 + 2^-8 is rounded to bf16
  call.with_aux(Epilogue::gelu_aux_bias, 8);
  call.with_bias(Epilogue::gelu_aux_bias, call.bias.data());
  EXPECT_EQ(call.run(), Status::success);
  EXPECT_EQ(static_cast<float>(call.aux.to_host()[0]), 1.0f);
  // gelu(1 + 2^-8) = 216.4 / 256, gelu(1) = 215.3 / 256.
  EXPECT_EQ(static_cast<float>(call.d.to_host()[0]), 216 / 256.0f);
}

TEST(CublasLt, MultipliesByTheDerivativeOfGelu) {
  Call call;
  // gelu'(0) = 1/2; gelu'(x) is 1 and 0 far out.
  call.aux.set(
      Call::padded({0, 0, NAN, NAN, NAN, NAN, NAN, NAN, 30, -30, NAN, NAN, NAN, NAN, NAN, NAN, 0, 0}));
  call.with_aux(Epilogue::dgelu, 8);
  EXPECT_EQ(call.run(), Status::success);
  expect_numbers(call.d, {0.5f, 1.5f, 2, 0, 0, 1});
}

TEST(CublasLt, SumsTheSecondOperandOverK) {
  Call call;
  call.b.set(Call::padded({1, 0, 0, 3, 2, 5}));
  call.layouts_of_d(DataType::f32, 2, 3, 2);
  call.with_bias(Epilogue::bgrad_b, call.wide_bias.data());
  EXPECT_EQ(call.run(), Status::success);
  expect_numbers(call.wide_d, {1, 3, 6, 12, 12, 26});
  expect_numbers(call.wide_bias, {1, 3, 7});
}

TEST(CublasLt, DoesNothingBeforeSomebodyWaits) {
  Call call;
  EXPECT_EQ(call.run(), Status::success);
  call.a.set(Call::padded({2, 6, 4, 8}));  // set() waits for the copy alone: it is on the same stream
  expect_numbers(call.d, {1, 3, 2, 4, 0, 2});
  cudaStream_t other = nullptr;
  cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking);
  DeviceArray<bf16> late(64);
  EXPECT_EQ(call.api.matmul(call.context, call.operation, &call.alpha, call.a.data(), call.a_layout,
                            call.b.data(), call.b_layout, &call.beta, late.data(), call.c_layout, late.data(),
                            call.d_layout, &call.choice.algorithm, call.workspace.data(), 1 << 16, other),
            Status::success);
  call.a.set(Call::padded({0, 0, 0, 0}));  // overtakes the product
  expect_numbers(late, {0, 0, 0, 0, 0, 0});
}

TEST(CublasLt, SpoilsTheWorkspace) {
  Call call;
  call.workspace.set(std::vector<char>(1 << 16, 0));
  EXPECT_EQ(call.run(), Status::success);
  const std::vector<char> after = call.workspace.to_host();
  EXPECT_EQ(after.front(), -1);
  EXPECT_EQ(after.back(), -1);
}

// In place the order of addition changes from call to call; in a step of its own it does not.
TEST(CublasLt, AddsPartsAsTheReductionSchemeSays) {
  const auto differs = [](uint32_t schemes) {
    Call call;
    call.prefer(PreferenceAttribute::reduction_schemes, schemes);
    call.layout(call.a_layout, DataType::bf16, 2, 3, 2);
    call.layout(call.b_layout, DataType::bf16, 3, 3, 3);
    call.layouts_of_d(DataType::f32, 2, 3, 2);
    call.a.set(Call::padded({1, 1, 1, 1, 1, 1}));
    call.b.set(Call::padded({1e8f, 1, -1e8f, 0, 0, 0, 0, 0, 0}));
    std::vector<float> first;
    bool different = false;
    EXPECT_EQ(call.choose(), Status::success);
    for (int i = 0; i < 3; ++i) {
      EXPECT_EQ(call.multiply(), Status::success);
      const std::vector<float> now = call.wide_d.to_host();
      if (first.empty()) first = now;
      different |= std::memcmp(first.data(), now.data(), 6 * sizeof(float)) != 0;
    }
    return different;
  };
  EXPECT_TRUE(differs(7));
  EXPECT_TRUE(differs(static_cast<uint32_t>(ReductionScheme::in_place)));
  EXPECT_FALSE(differs(static_cast<uint32_t>(ReductionScheme::compute_type)));
  EXPECT_FALSE(differs(static_cast<uint32_t>(ReductionScheme::none)));
}

// ---- what is refused

TEST(CublasLtRefuses, ShapesThatDoNotFit) {
  Call call;
  call.layout(call.b_layout, DataType::bf16, 3, 3, 3);
  EXPECT_EQ(call.run(), Status::invalid_value);
  call.layout(call.b_layout, DataType::bf16, 2, 3, 1);  // a leading dimension below the rows
  EXPECT_EQ(call.run(), Status::invalid_value);
  call.layout(call.b_layout, DataType::bf16, 2, 3, 2);
  call.set(DescAttribute::transpose_b, Operation::transpose);
  EXPECT_EQ(call.run(), Status::invalid_value);
}

TEST(CublasLtRefuses, Types) {
  Call call;
  EXPECT_EQ(call.api.matmul_desc_create(&call.operation, ComputeType{64}, DataType::f32),
            Status::not_supported);
  call.layout(call.a_layout, DataType::f32, 2, 2, 2);
  EXPECT_EQ(call.run(), Status::not_supported);
  call.layout(call.a_layout, DataType::bf16, 2, 2, 2);
  call.layout(call.c_layout, DataType::f32, 2, 3, 2);
  EXPECT_EQ(call.run(), Status::not_supported);
}

TEST(CublasLtRefuses, Epilogues) {
  Call call;
  call.set(DescAttribute::epilogue, Epilogue::bias);
  EXPECT_EQ(call.run(), Status::invalid_value) << "without a bias";
  call.set(DescAttribute::epilogue, Epilogue::dgelu);
  EXPECT_EQ(call.run(), Status::invalid_value) << "without aux";
  call.with_aux(Epilogue::dgelu, 12);
  EXPECT_EQ(call.run(), Status::invalid_value) << "a leading dimension that is no multiple of 8";
  call.with_aux(Epilogue::dgelu, 0);
  EXPECT_EQ(call.run(), Status::invalid_value) << "a leading dimension below the rows";
  call.with_aux(Epilogue::dgelu, 8);
  EXPECT_EQ(call.run(), Status::success);
  call.layouts_of_d(DataType::f32, 2, 3, 2);
  EXPECT_EQ(call.run(), Status::not_supported) << "gelu' into fp32";
  call.set(DescAttribute::epilogue, Epilogue{8 | 128});
  EXPECT_EQ(call.run(), Status::not_supported) << "relu'";
}

TEST(CublasLtRefuses, AttributesOfAnotherSize) {
  Call call;
  EXPECT_EQ(call.set(DescAttribute::aux_stride, int32_t{8}), Status::invalid_value);
  EXPECT_EQ(call.set(DescAttribute::epilogue, uint64_t{4}), Status::invalid_value);
  EXPECT_EQ(call.set(DescAttribute{2}, int32_t{0}), Status::invalid_value);
}

TEST(CublasLtRefuses, AlgorithmsOfAnotherProblem) {
  Call call;
  EXPECT_EQ(call.choose(), Status::success);
  call.layouts_of_d(DataType::bf16, 2, 3, 4);
  EXPECT_EQ(call.multiply(), Status::invalid_value);
}

TEST(CublasLtRefuses, AddressesLessAlignedThanTheAlgorithmWasChosenFor) {
  Call call;
  EXPECT_EQ(call.choose(), Status::success);
  const auto multiply_from = [&](const bf16* a) {
    return call.api.matmul(call.context, call.operation, &call.alpha, a, call.a_layout, call.b.data(),
                           call.b_layout, &call.beta, nullptr, call.c_layout, call.d.data(), call.d_layout,
                           &call.choice.algorithm, call.workspace.data(), 1 << 16, nullptr);
  };
  EXPECT_EQ(multiply_from(call.a.data() + 8), Status::not_supported);
  call.prefer(PreferenceAttribute::alignment_a, uint32_t{16});
  EXPECT_EQ(call.choose(), Status::success);
  EXPECT_EQ(multiply_from(call.a.data() + 8), Status::success);
  EXPECT_EQ(multiply_from(call.a.data() + 1), Status::not_supported);
}

TEST(CublasLtRefuses, TooLittleMemory) {
  Call call;
  const ExactArray<bf16> bias(1);
  call.with_bias(Epilogue::bias, bias.data());
  EXPECT_EQ(call.choose(), Status::success);
  EXPECT_THROW(call.multiply(), emulator::Failure);
  call.set(DescAttribute::epilogue, Epilogue::none);
  EXPECT_EQ(call.choose(), Status::success);
  EXPECT_EQ(call.api.matmul(call.context, call.operation, &call.alpha, call.a.data(), call.a_layout,
                            call.b.data(), call.b_layout, &call.beta, nullptr, call.c_layout, call.d.data(),
                            call.d_layout, &call.choice.algorithm, call.workspace.data(), 1024, nullptr),
            Status::invalid_value)
      << "a workspace smaller than the algorithm's";
}

TEST(CublasLtRefuses, ToStartWithoutADevice) {
  const emulator::Options before = emulator::options();
  emulator::options().present = false;
  Context* context = nullptr;
  EXPECT_EQ(load().create(&context), Status::not_initialized);
  emulator::options() = before;
}

}  // namespace
}  // namespace hearth::testing
