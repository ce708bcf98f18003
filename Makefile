# Hearth's only build file.  `make help` lists the targets.
#
# Layout of build/: obj/ mirrors the sources, libhearth.a holds everything but main(), and the
# executables stand beside it.  Headers are tracked with -MMD; a changed flag rebuilds everything.

SHELL := /bin/bash
BUILD ?= build
CXX ?= g++
OPT ?= -O3
# WERROR=1 turns warnings into errors (CI and `make lint` do).  SANITIZE=address,undefined builds with sanitizers.
WERROR ?=
SANITIZE ?=
SEEDS ?= 3

comma := ,
# Plain `make` uses all cores; `make -jN` is left as it is.
JOBS = $(if $(findstring -j,$(MAKEFLAGS)),,-j$(shell nproc))

# Packages unpacked by scripts/setup.sh where there is no root are found in build/deps.
ARCH_TRIPLE := $(shell $(CXX) -print-multiarch 2>/dev/null)
DEPS := build/deps/usr
DEPS_FLAGS := $(if $(wildcard $(DEPS)/include),-isystem $(DEPS)/include)
DEPS_LINK := $(if $(wildcard $(DEPS)/lib),-L$(DEPS)/lib/$(ARCH_TRIPLE) -L$(DEPS)/lib -Wl$(comma)--disable-new-dtags$(comma)-rpath$(comma)$(abspath $(DEPS))/lib/$(ARCH_TRIPLE))

# -Wno-restrict: g++ 12 warns wrongly about "literal" + std::string (GCC bug 105651).
CXXFLAGS_ALL := -std=c++20 $(OPT) -g1 -Isrc $(DEPS_FLAGS) -Wall -Wextra -Wno-restrict -fno-math-errno -fno-trapping-math -fopenmp-simd -pthread \
  $(if $(WERROR),-Werror) $(if $(SANITIZE),-fsanitize=$(SANITIZE) -fno-omit-frame-pointer) -MMD -MP $(CXXFLAGS)
LDFLAGS_ALL := $(DEPS_LINK) -pthread $(if $(SANITIZE),-fsanitize=$(SANITIZE)) $(LDFLAGS)
LIBS := -ldnnl -lgomp -lpcre2-8 -lgloo

# What needs the CUDA runtime is built by nvcc's host compiler, or against the emulator.
CUDA_HOST := $(sort $(shell find src/device/cuda src/comm/nccl -name '*.cpp' 2>/dev/null))
SRC := $(sort $(filter-out $(CUDA_HOST),$(shell find src -name '*.cpp')))
LIB_OBJ := $(patsubst %.cpp,$(BUILD)/obj/%.o,$(filter-out src/main.cpp,$(SRC)))
TEST_SRC := $(sort $(shell find tests -name '*.cpp' -not -path 'tests/fuzz/*' -not -path 'tests/bench/*' \
  -not -path 'tests/emulator/*' -not -path 'tests/kernels/*'))
TEST_OBJ := $(patsubst %.cpp,$(BUILD)/obj/%.o,$(TEST_SRC))
FUZZ_OBJ := $(patsubst %.cpp,$(BUILD)/obj/%.o,$(sort $(wildcard tests/fuzz/*.cpp)))
BENCH_OBJ := $(patsubst %.cpp,$(BUILD)/obj/%.o,$(sort $(wildcard tests/bench/*.cpp)))

# CUDA kernels on the CPU: kernels/*.cu compiled by the host compiler against the SIMT emulator (tests/emulator), which
# also stands in for the CUDA runtime.  `emulated` is the plain build; `checked` compiles the kernels and their tests so
# that the race detector sees every access to global memory (the __tsan_* calls are the emulator's, libtsan is not used).
KERNELS := $(sort $(wildcard kernels/*.cu))
# Libraries that a CUDA build opens at run time (src/device/cuda/api/*_library.cpp) have stand-ins in tests/emulator.
EMULATED_HOST := $(filter-out %_library.cpp,$(CUDA_HOST))
EMULATOR := $(filter-out %_test.cpp tests/emulator/planted_%,$(sort $(wildcard tests/emulator/*.cpp)))
KERNEL_TESTS := $(sort $(wildcard tests/emulator/*_test.cpp tests/emulator/planted_*.cpp tests/kernels/*.cpp))
EMULATED_FLAGS := -I. -Itests -Itests/emulator/include -Wno-unknown-pragmas -Wno-psabi -ftrivial-auto-var-init=pattern
CHECK_FLAGS := -fsanitize=thread -Wno-tsan
EMULATED_OBJ := $(patsubst %,$(BUILD)/obj/emulated/%.o,$(EMULATOR) $(KERNELS) $(EMULATED_HOST))
# Several ranks on emulated GPUs; they run no kernels.
CUDA_COMM_TESTS := $(sort $(wildcard tests/emulator/comm/*.cpp)) tests/comm/conformance.cpp
EMULATED_TEST_OBJ := $(patsubst %,$(BUILD)/obj/emulated/%.o,$(KERNEL_TESTS) $(CUDA_COMM_TESTS))
CHECKED_OBJ := $(patsubst %,$(BUILD)/obj/emulated/%.o,$(EMULATOR) $(EMULATED_HOST)) $(patsubst %,$(BUILD)/obj/checked/%.o,$(KERNELS) $(KERNEL_TESTS))

FORMATTED := '*.cpp' '*.h' '*.cu' '*.cuh'

.PHONY: all help emulated setup quickstart test test-long bench lint format clean FORCE
.DEFAULT_GOAL := all

all: setup  ## build build/hearth (installs what is missing first)
	@$(MAKE) --no-print-directory $(JOBS) $(BUILD)/hearth

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@echo "  variables:        BUILD=DIR  WERROR=1  SANITIZE=address,undefined  OPT=-O3  CXX=g++"

setup:  ## install the Debian packages that are missing
	@scripts/setup.sh

quickstart: all  ## fetch a small real corpus, train a small GPT on it, print a sample
	@scripts/quickstart.sh

test: setup  ## build and run all tests
	@$(MAKE) --no-print-directory $(JOBS) $(BUILD)/hearth $(BUILD)/hearth-tests $(BUILD)/hearth-emulated $(BUILD)/hearth-kernel-tests
	@tests/run.sh $(BUILD)

test-long: setup  ## soak, fuzz, kill loops, full matrices
	@$(MAKE) --no-print-directory $(JOBS) $(BUILD)/hearth $(BUILD)/hearth-tests
	@tests/run_long.sh $(BUILD)

emulated: setup  ## build build/hearth-emulated: device.kind = "cuda" on the CPU, through the SIMT emulator
	@$(MAKE) --no-print-directory $(JOBS) $(BUILD)/hearth-emulated

bench: setup  ## build build/hearth-bench, the microbenchmarks
	@$(MAKE) --no-print-directory $(JOBS) $(BUILD)/hearth-bench

lint: setup  ## formatting, a build with warnings as errors, and nvcc for every architecture where there is one
	@git ls-files $(FORMATTED) | xargs clang-format --dry-run -Werror
	@$(MAKE) --no-print-directory $(JOBS) BUILD=$(BUILD)/lint WERROR=1 $(BUILD)/lint/hearth $(BUILD)/lint/hearth-tests $(BUILD)/lint/hearth-kernel-tests
	@tests/kernels/ptxas.sh

format:  ## apply clang-format to every source file
	@git ls-files $(FORMATTED) | xargs clang-format -i

clean:  ## delete what was built
	rm -rf $(BUILD)/obj $(BUILD)/libhearth.a $(BUILD)/hearth $(BUILD)/hearth-tests $(BUILD)/hearth-bench $(BUILD)/hearth-emulated $(BUILD)/hearth-kernel-tests \
	  $(BUILD)/hearth-kernel-tests-checked $(BUILD)/lint

$(BUILD)/hearth: $(BUILD)/obj/src/main.o $(BUILD)/libhearth.a
	$(CXX) -o $@ $^ $(LDFLAGS_ALL) $(LIBS)

$(BUILD)/hearth-tests: $(TEST_OBJ) $(BUILD)/libhearth.a
	$(CXX) -o $@ $^ $(LDFLAGS_ALL) $(LIBS) -lgtest -lgtest_main

$(BUILD)/hearth-bench: $(BENCH_OBJ) $(BUILD)/libhearth.a
	$(CXX) -o $@ $^ $(LDFLAGS_ALL) $(LIBS) -lbenchmark

# The objects of src/device/cuda come before the library, so that their make_cuda_device is linked and not its stand-in.
$(BUILD)/hearth-emulated: $(BUILD)/obj/src/main.o $(EMULATED_OBJ) $(BUILD)/libhearth.a
	$(CXX) -o $@ $^ $(LDFLAGS_ALL) $(LIBS)

$(BUILD)/hearth-kernel-tests: $(EMULATED_OBJ) $(EMULATED_TEST_OBJ) $(BUILD)/libhearth.a
	$(CXX) -o $@ $^ $(LDFLAGS_ALL) $(LIBS) -lgtest -lgtest_main

$(BUILD)/hearth-kernel-tests-checked: $(CHECKED_OBJ) $(BUILD)/libhearth.a
	$(CXX) -o $@ $^ $(LDFLAGS_ALL) $(LIBS) -lgtest -lgtest_main

# The parsers under mutated input; `make test-long` builds it with sanitizers.
$(BUILD)/hearth-fuzz: $(FUZZ_OBJ) $(BUILD)/libhearth.a
	$(CXX) -o $@ $^ $(LDFLAGS_ALL) $(LIBS)

$(BUILD)/libhearth.a: $(LIB_OBJ)
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/obj/%.o: %.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS_ALL) $(if $(filter tests/%,$<),-Itests) -c $< -o $@

$(BUILD)/obj/emulated/%.cpp.o: %.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	$(CXX) $(EMULATED_FLAGS) $(CXXFLAGS_ALL) -c $< -o $@

$(BUILD)/obj/emulated/%.cu.o: %.cu $(BUILD)/flags
	@mkdir -p $(@D)
	$(CXX) $(EMULATED_FLAGS) $(CXXFLAGS_ALL) -x c++ -c $< -o $@

$(BUILD)/obj/checked/%.cpp.o: %.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	$(CXX) $(EMULATED_FLAGS) $(CHECK_FLAGS) $(CXXFLAGS_ALL) -c $< -o $@

$(BUILD)/obj/checked/%.cu.o: %.cu $(BUILD)/flags
	@mkdir -p $(@D)
	$(CXX) $(EMULATED_FLAGS) $(CHECK_FLAGS) $(CXXFLAGS_ALL) -x c++ -c $< -o $@

# The flags of the last build: rewritten only when they change, so that a change rebuilds everything.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CXX) $(CXXFLAGS_ALL)' | cmp -s - $@ || echo '$(CXX) $(CXXFLAGS_ALL)' > $@

-include $(EMULATED_OBJ:.o=.d) $(EMULATED_TEST_OBJ:.o=.d) $(CHECKED_OBJ:.o=.d)
-include $(LIB_OBJ:.o=.d) $(TEST_OBJ:.o=.d) $(BENCH_OBJ:.o=.d) $(FUZZ_OBJ:.o=.d) $(BUILD)/obj/src/main.d
