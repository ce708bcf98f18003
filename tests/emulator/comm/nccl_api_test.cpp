// NCCL's function table, and who may use it.
#include <gtest/gtest.h>

#include "device/cuda/api/nccl.h"
#include "parallel/transport.h"

namespace hearth {
namespace {

nccl::Result version_2_30(int* version) {
  *version = 23001;
  return nccl::Result::success;
}
nccl::Result version_2_17(int* version) {
  *version = 21705;
  return nccl::Result::success;
}

TEST(NcclApi, ALibraryThatLacksSomethingIsRefusedByName) {
  nccl::Api api{};
  const auto with = [&](auto* version, const std::string& missing) {
    return nccl::bind(
        [&](const char* name) -> void* {
          if (missing == name) return nullptr;
          return reinterpret_cast<void*>(version);
        },
        api);
  };
  EXPECT_EQ(with(&version_2_30, ""), std::nullopt);
  EXPECT_EQ(api.version, 23001);
  EXPECT_EQ(with(&version_2_30, "ncclCommSplit"), "libnccl.so.2 (NCCL 2.30.1) has no ncclCommSplit");
  EXPECT_EQ(with(&version_2_17, "ncclCommSplit"), "libnccl.so.2 is NCCL 2.17.5, older than 2.18.0");
  EXPECT_EQ(with(&version_2_30, "ncclGetVersion"), "libnccl.so.2 does not tell its version");
}

const RankDevice first{"a", 1, "cuda", "0000:01:00.0", "2.28.9", ""};
const RankDevice second{"a", 2, "cuda", "0000:02:00.0", "2.28.9", ""};

TEST(Transport, AutoTakesNcclWhereItCan) {
  EXPECT_TRUE(choose_transport("auto", {first, second}).nccl);
  EXPECT_TRUE(choose_transport("nccl", {first, second}).nccl);
  EXPECT_FALSE(choose_transport("gloo", {first, second}).nccl);
  RankDevice elsewhere = first;
  elsewhere.host = "b";  // the same address on another host
  EXPECT_TRUE(choose_transport("auto", {first, elsewhere}).nccl);
  EXPECT_EQ(choose_transport("auto", {first, second}).description, "nccl 2.28.9");
}

TEST(Transport, ObstaclesAreNamed) {
  const auto expect = [](const RankDevice& other, ExitCode code, const std::string& words) {
    const TransportChoice automatic = choose_transport("auto", {first, other});
    EXPECT_FALSE(automatic.nccl);
    EXPECT_TRUE(automatic.refusal.empty());
    EXPECT_NE(automatic.description.find(words), std::string::npos) << automatic.description;
    const TransportChoice asked = choose_transport("nccl", {first, other});
    EXPECT_EQ(asked.code, code);
    EXPECT_NE(asked.refusal.find(words), std::string::npos) << asked.refusal;
    EXPECT_NE(asked.refusal.find("gloo"), std::string::npos) << asked.refusal;
  };
  RankDevice other = second;
  other.identity = first.identity;
  expect(other, ExitCode::usage, "ranks 0 and 1 on a share GPU 0000:01:00.0");
  other = second;
  other.nccl_version = "";
  other.nccl_unavailable = "it is gone";
  expect(other, ExitCode::device, "rank 1 (a, pid 2) cannot use NCCL: it is gone");
  other = second;
  other.nccl_version = "2.27.3";
  expect(other, ExitCode::device, "has NCCL 2.27.3");
  other = second;
  other.kind = "cpu";
  expect(other, ExitCode::usage, "rank 1 (a, pid 2) has device cpu");
  const RankDevice cpu{"a", 1, "cpu", "", "", ""};
  EXPECT_EQ(choose_transport("auto", {cpu, cpu}).description, "gloo");
  EXPECT_EQ(choose_transport("nccl", {cpu, cpu}).code, ExitCode::usage);
}

TEST(Transport, GoesOverTheWire) {
  RankDevice d{"host", 123, "cuda", "id", "", "why not"};
  const RankDevice back = decode(encode(d));
  EXPECT_EQ(encode(back), encode(d));
  EXPECT_EQ(back.nccl_unavailable, "why not");
  const TransportChoice c{true, "nccl", "no", ExitCode::device};
  const TransportChoice again = decode_choice(encode(c));
  EXPECT_TRUE(again.nccl);
  EXPECT_EQ(again.refusal, "no");
  EXPECT_EQ(again.code, ExitCode::device);
}

}  // namespace
}  // namespace hearth
