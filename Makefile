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
# GPU architectures to compile for, like ARCHS="80 90a"; unless given, those of the GPUs in this machine.  Empty: CPU only.
ifeq ($(origin ARCHS),undefined)
ARCHS := $(shell scripts/cuda.sh seen)
endif

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
# Libraries beside a program, as in `make bundle`, come first; an RPATH (not a RUNPATH) holds for their own needs too.
LDFLAGS_ALL := -Wl,--disable-new-dtags,-rpath,'$$ORIGIN/lib' $(DEPS_LINK) -pthread $(if $(SANITIZE),-fsanitize=$(SANITIZE)) $(LDFLAGS)
LIBS := -ldnnl -lgomp -lpcre2-8 -lgloo

# What needs the CUDA runtime is built against the real one (below), or against the emulator.  Of api/ that is only the
# comparison with NVIDIA's headers.
CUDA_HOST := $(sort $(shell find src/device/cuda src/comm/nccl -name '*.cpp' \( -not -path '*/api/*' -o -name '*_header.cpp' \)))
SRC := $(sort $(filter-out $(CUDA_HOST),$(shell find src -name '*.cpp')))
LIB_OBJ := $(patsubst %.cpp,$(BUILD)/obj/%.o,$(filter-out src/main.cpp,$(SRC)))
TEST_SRC := $(sort $(shell find tests -name '*.cpp' -not -path 'tests/fuzz/*' -not -path 'tests/bench/*' \
  -not -path 'tests/emulator/*' -not -path 'tests/kernels/*' -not -path 'tests/faulty/*'))
TEST_OBJ := $(patsubst %.cpp,$(BUILD)/obj/%.o,$(TEST_SRC))
FUZZ_OBJ := $(patsubst %.cpp,$(BUILD)/obj/%.o,$(sort $(wildcard tests/fuzz/*.cpp)))
# The benchmark's cases and their checks are tested on the emulated GPU, so its tests belong to the kernel tests.
BENCH_TEST_OBJ := $(patsubst %.cpp,$(BUILD)/obj/%.o,$(sort $(wildcard tests/bench/*_test.cpp)))
BENCH_OBJ := $(filter-out $(BENCH_TEST_OBJ) $(BUILD)/obj/tests/bench/main.o,$(patsubst %.cpp,$(BUILD)/obj/%.o,$(sort $(wildcard tests/bench/*.cpp))))
BENCH_MAIN := $(BUILD)/obj/tests/bench/main.o

# CUDA kernels on the CPU: kernels/*.cu compiled by the host compiler against the SIMT emulator (tests/emulator), which
# also stands in for the CUDA runtime.  `emulated` is the plain build; `checked` compiles the kernels and their tests so
# that the race detector sees every access to global memory (the __tsan_* calls are the emulator's, libtsan is not used).
KERNELS := $(sort $(wildcard kernels/*.cu))
EMULATOR := $(filter-out %_test.cpp tests/emulator/planted_%,$(sort $(wildcard tests/emulator/*.cpp)))
CONFORMANCE := tests/kernels/conformance/conformance.cu
OP_TESTS := $(sort $(wildcard tests/device/ops_*_test.cpp)) tests/support/op_bench.cpp
KERNEL_TESTS := $(CONFORMANCE) $(sort $(wildcard tests/emulator/*_test.cpp tests/emulator/planted_*.cpp tests/kernels/*.cpp)) $(OP_TESTS)
EMULATED_FLAGS := -I. -Itests -Itests/emulator/include -Wno-unknown-pragmas -Wno-psabi -ftrivial-auto-var-init=pattern
CHECK_FLAGS := -fsanitize=thread -Wno-tsan
EMULATED_OBJ := $(patsubst %,$(BUILD)/obj/emulated/%.o,$(EMULATOR) $(KERNELS) $(CUDA_HOST))
# Several ranks on emulated GPUs; they run no kernels.
CUDA_COMM_TESTS := $(sort $(wildcard tests/emulator/comm/*.cpp)) tests/comm/conformance.cpp
EMULATED_TEST_OBJ := $(patsubst %,$(BUILD)/obj/emulated/%.o,$(KERNEL_TESTS) $(CUDA_COMM_TESTS))
CHECKED_OBJ := $(patsubst %,$(BUILD)/obj/emulated/%.o,$(EMULATOR) $(CUDA_HOST)) $(patsubst %,$(BUILD)/obj/checked/%.o,$(KERNELS) $(KERNEL_TESTS))

# The same sources for real GPUs, where ARCHS names some: kernels by nvcc, one object with code for every architecture; the
# host's side by $(CXX) with CUDA's headers; CUDA's runtime linked statically.  Nothing of this is touched without ARCHS.
override ARCHS := $(patsubst 90,90a,$(ARCHS))
export ARCHS
ifneq ($(ARCHS),)
NVCC ?= $(shell scripts/cuda.sh nvcc)
CUDA_PROBLEM := $(shell NVCC='$(NVCC)' scripts/cuda.sh problem $(ARCHS))
$(if $(CUDA_PROBLEM),$(error $(CUDA_PROBLEM)))
CUDA_HOME := $(shell NVCC='$(NVCC)' scripts/cuda.sh home)
NVCC_OPTIONS := $(shell NVCC='$(NVCC)' scripts/cuda.sh options)
CUDA_OBJ := $(patsubst %,$(BUILD)/obj/cuda/%.o,$(KERNELS) $(CUDA_HOST))
CUDA_LIBS := $(addprefix -L,$(wildcard $(CUDA_HOME)/lib64)) -lcudart_static -ldl -lrt -lpthread
endif
GPU_TEST_OBJ := $(patsubst %,$(BUILD)/obj/cuda/%.o,$(sort $(wildcard tests/kernels/*.cpp)) $(OP_TESTS) $(CONFORMANCE))
# Where there is no nvcc: do the same tests compile, at least, as for GPUs?
GPU_TESTS_COMPILE := $(patsubst %,$(BUILD)/obj/gpu-tests/%.ok,$(sort $(wildcard tests/kernels/*.cpp)))
CUDA_FLAGS := -I. -Itests/gpu -Itests $(addprefix -isystem ,$(wildcard $(CUDA_HOME)/include)) -DHEARTH_CUDA_TARGETS='"$(ARCHS:%=sm_%)"'
NVCC_FLAGS := -std=c++20 -O3 --expt-relaxed-constexpr $(NVCC_OPTIONS) -ccbin $(CXX) -I. -Isrc -Itests \
  $(foreach arch,$(ARCHS),-gencode arch=compute_$(arch)$(comma)code=sm_$(arch)) $(if $(WERROR),-Werror all-warnings) -MMD -MP

# Programs that `make test` runs.
TESTED := hearth hearth-tests hearth-faulty hearth-emulated hearth-kernel-tests hearth-kernel-tests-checked hearth-conformance-emulated

# Programs of `make bundle`.
BUNDLED := hearth hearth-bench hearth-gpu-tests hearth-conformance hearth-conformance-emulated

FORMATTED := '*.cpp' '*.h' '*.cu' '*.cuh'

.PHONY: all all-archs bundle help emulated mutants setup quickstart test test-long bench lint format clean FORCE
.DEFAULT_GOAL := all

all: setup  ## build build/hearth (installs what is missing first)
	@$(MAKE) --no-print-directory $(JOBS) $(BUILD)/hearth
	@$(if $(ARCHS),,scripts/cuda.sh why)

all-archs:  ## build build/hearth for every GPU architecture that nvcc and Hearth know
	@$(MAKE) --no-print-directory ARCHS="$$(scripts/cuda.sh all)" all

bundle: setup  ## collect the programs and their libraries in build/bundle, for machines where nothing can be installed
	@$(if $(ARCHS),,echo 'make bundle: for which GPUs?  For example: make bundle ARCHS="80 90a"' >&2; exit 2)
	@$(MAKE) --no-print-directory $(JOBS) $(addprefix $(BUILD)/,$(BUNDLED))
	@scripts/bundle.sh $(BUILD) $(BUNDLED)

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@echo "  variables:        ARCHS=\"80 90a\"  BUILD=DIR  WERROR=1  SANITIZE=address,undefined  OPT=-O3  CXX=g++"

setup:  ## install the Debian packages that are missing
	@scripts/setup.sh

quickstart: all  ## fetch a small real corpus, train a small GPT on it, print a sample
	@scripts/quickstart.sh

test: setup  ## build and run all tests
	@$(MAKE) --no-print-directory $(JOBS) $(addprefix $(BUILD)/,$(TESTED)) $(if $(ARCHS),$(BUILD)/hearth-gpu-tests,$(GPU_TESTS_COMPILE))
	@tests/run.sh $(BUILD)

test-long: setup  ## soak, fuzz, kill loops, full matrices
	@$(MAKE) --no-print-directory $(JOBS) $(BUILD)/hearth $(BUILD)/hearth-tests
	@tests/run_long.sh $(BUILD)

mutants:  ## break copies of the CUDA kernels; the tests must notice (part of make test)
	@EMULATED_CXX='$(CXX) $(EMULATED_FLAGS) $(CXXFLAGS_ALL)' CHECK_FLAGS='$(CHECK_FLAGS)' \
	  EMULATED_LINK='$(LDFLAGS_ALL) $(LIBS) -lgtest -lgtest_main' tests/kernels/mutants.sh $(BUILD)

emulated: setup  ## build build/hearth-emulated: device.kind = "cuda" on the CPU, through the SIMT emulator
	@$(MAKE) --no-print-directory $(JOBS) $(BUILD)/hearth-emulated

bench: setup  ## build build/hearth-bench, the microbenchmarks
	@$(MAKE) --no-print-directory $(JOBS) $(BUILD)/hearth-bench

lint: setup  ## formatting, warnings as errors, and, where there is nvcc, a GPU build and every architecture
	@git ls-files $(FORMATTED) | xargs clang-format --dry-run -Werror
	@archs=$$(scripts/cuda.sh all); archs=$${archs%% *}; \
	$(MAKE) --no-print-directory $(JOBS) BUILD=$(BUILD)/lint WERROR=1 ARCHS="$$archs" \
	  $(addprefix $(BUILD)/lint/,hearth hearth-tests hearth-kernel-tests) \
	  $${archs:+$(addprefix $(BUILD)/lint/,hearth-gpu-tests hearth-conformance)}
	@tests/kernels/ptxas.sh

format:  ## apply clang-format to every source file
	@git ls-files $(FORMATTED) | xargs clang-format -i

clean:  ## delete what was built
	rm -rf $(BUILD)/obj $(BUILD)/libhearth.a $(BUILD)/hearth $(BUILD)/hearth-* $(BUILD)/lint $(BUILD)/mutants $(BUILD)/bundle

# CUDA's objects come before the library, so that their make_cuda_device is linked and not its stand-in.
$(BUILD)/hearth: $(BUILD)/obj/src/main.o $(CUDA_OBJ) $(BUILD)/libhearth.a $(BUILD)/cuda-flags
	$(CXX) -o $@ $(filter-out %flags,$^) $(LDFLAGS_ALL) $(LIBS) $(CUDA_LIBS)

$(BUILD)/hearth-tests: $(TEST_OBJ) $(BUILD)/libhearth.a
	$(CXX) -o $@ $^ $(LDFLAGS_ALL) $(LIBS) -lgtest -lgtest_main

$(BUILD)/hearth-bench: $(BENCH_MAIN) $(BENCH_OBJ) $(CUDA_OBJ) $(BUILD)/libhearth.a $(BUILD)/cuda-flags
	$(CXX) -o $@ $(filter-out %flags,$^) $(LDFLAGS_ALL) $(LIBS) $(CUDA_LIBS)

# The benchmark's list for GPUs on the emulator: a test of its logic, no measurement.
$(BUILD)/hearth-bench-emulated: $(BENCH_MAIN) $(BENCH_OBJ) $(EMULATED_OBJ) $(BUILD)/libhearth.a
	$(CXX) -o $@ $^ $(LDFLAGS_ALL) $(LIBS)

$(BUILD)/hearth-emulated: $(BUILD)/obj/src/main.o $(EMULATED_OBJ) $(BUILD)/libhearth.a
	$(CXX) -o $@ $^ $(LDFLAGS_ALL) $(LIBS)

# Its CUDA device is the CPU with faults on demand.
$(BUILD)/hearth-faulty: $(BUILD)/obj/src/main.o $(BUILD)/obj/tests/faulty/faulty_device.o $(BUILD)/libhearth.a
	$(CXX) -o $@ $^ $(LDFLAGS_ALL) $(LIBS)

$(BUILD)/hearth-kernel-tests: $(EMULATED_OBJ) $(EMULATED_TEST_OBJ) $(BENCH_OBJ) $(BENCH_TEST_OBJ) $(BUILD)/libhearth.a
	$(CXX) -o $@ $^ $(LDFLAGS_ALL) $(LIBS) -lgtest -lgtest_main

$(BUILD)/hearth-kernel-tests-checked: $(CHECKED_OBJ) $(BUILD)/libhearth.a
	$(CXX) -o $@ $^ $(LDFLAGS_ALL) $(LIBS) -lgtest -lgtest_main

# The kernels' tests on this machine's GPU.
$(BUILD)/hearth-gpu-tests: $(GPU_TEST_OBJ) $(CUDA_OBJ) $(BUILD)/libhearth.a $(BUILD)/cuda-flags
	$(CXX) -o $@ $(filter-out %flags,$^) $(LDFLAGS_ALL) $(LIBS) $(CUDA_LIBS) -lgtest -lgtest_main

# What each PTX instruction does, as a file: on the GPU, and as the emulator has it.
CONFORMANCE_SRC := tests/kernels/conformance/main.cpp $(CONFORMANCE) kernels/tensor_map.cu
$(BUILD)/hearth-conformance: $(CONFORMANCE_SRC:%=$(BUILD)/obj/cuda/%.o) $(BUILD)/libhearth.a $(BUILD)/cuda-flags
	$(CXX) -o $@ $(filter-out %flags,$^) $(LDFLAGS_ALL) $(LIBS) $(CUDA_LIBS)

$(BUILD)/hearth-conformance-emulated: $(CONFORMANCE_SRC:%=$(BUILD)/obj/emulated/%.o) $(EMULATOR:%=$(BUILD)/obj/emulated/%.o) $(BUILD)/libhearth.a
	$(CXX) -o $@ $^ $(LDFLAGS_ALL) $(LIBS)

# The parsers under mutated input; `make test-long` builds it with sanitizers.
$(BUILD)/hearth-fuzz: $(FUZZ_OBJ) $(BUILD)/libhearth.a
	$(CXX) -o $@ $^ $(LDFLAGS_ALL) $(LIBS)

$(BUILD)/libhearth.a: $(LIB_OBJ)
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/obj/%.o: %.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS_ALL) $(if $(filter tests/%,$<),-Itests) -c $< -o $@

$(BUILD)/obj/emulated/src/device/cuda/%.o: EMULATED_FLAGS += -DHEARTH_CUDA_TARGETS='"the SIMT emulator"'

$(BUILD)/obj/emulated/%.cpp.o: %.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	$(CXX) $(EMULATED_FLAGS) $(CXXFLAGS_ALL) -c $< -o $@

$(BUILD)/obj/emulated/%.cu.o: %.cu $(BUILD)/flags
	@mkdir -p $(@D)
	$(CXX) $(EMULATED_FLAGS) $(CXXFLAGS_ALL) -x c++ -c $< -o $@

$(BUILD)/obj/cuda/%.cu.o: %.cu $(BUILD)/cuda-flags
	@mkdir -p $(@D)
	$(NVCC) $(NVCC_FLAGS) -c $< -o $@

$(BUILD)/obj/cuda/%.cpp.o: %.cpp $(BUILD)/flags $(BUILD)/cuda-flags
	@mkdir -p $(@D)
	$(CXX) $(CUDA_FLAGS) $(CXXFLAGS_ALL) -c $< -o $@

$(BUILD)/obj/gpu-tests/%.cpp.ok: %.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	$(CXX) -Itests/gpu $(EMULATED_FLAGS) $(CXXFLAGS_ALL) -fsyntax-only -MF $(@:.ok=.d) -MT $@ $<
	@touch $@

$(BUILD)/obj/checked/%.cpp.o: %.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	$(CXX) $(EMULATED_FLAGS) $(CHECK_FLAGS) $(CXXFLAGS_ALL) -c $< -o $@

$(BUILD)/obj/checked/%.cu.o: %.cu $(BUILD)/flags
	@mkdir -p $(@D)
	$(CXX) $(EMULATED_FLAGS) $(CHECK_FLAGS) $(CXXFLAGS_ALL) -x c++ -c $< -o $@

# The flags of the last build: rewritten only when they change, so that a change rebuilds everything, or, with other
# ARCHS, what depends on them.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CXX) $(CXXFLAGS_ALL)' | cmp -s - $@ || echo '$(CXX) $(CXXFLAGS_ALL)' > $@

$(BUILD)/cuda-flags: FORCE
	@mkdir -p $(@D)
	@echo '$(if $(ARCHS),$(NVCC) $(NVCC_FLAGS))' | cmp -s - $@ || echo '$(if $(ARCHS),$(NVCC) $(NVCC_FLAGS))' > $@

-include $(CUDA_OBJ:.o=.d) $(GPU_TEST_OBJ:.o=.d)
-include $(GPU_TESTS_COMPILE:.ok=.d) $(EMULATED_OBJ:.o=.d) $(EMULATED_TEST_OBJ:.o=.d) $(CHECKED_OBJ:.o=.d)
-include $(LIB_OBJ:.o=.d) $(TEST_OBJ:.o=.d) $(BENCH_OBJ:.o=.d) $(BENCH_TEST_OBJ:.o=.d) $(BENCH_MAIN:.o=.d) $(FUZZ_OBJ:.o=.d)
-include $(BUILD)/obj/src/main.d $(BUILD)/obj/tests/faulty/faulty_device.d
