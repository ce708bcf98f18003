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

SRC := $(sort $(shell find src -name '*.cpp'))
LIB_OBJ := $(patsubst %.cpp,$(BUILD)/obj/%.o,$(filter-out src/main.cpp,$(SRC)))
TEST_SRC := $(sort $(shell find tests -name '*.cpp' -not -path 'tests/fuzz/*' -not -path 'tests/bench/*'))
TEST_OBJ := $(patsubst %.cpp,$(BUILD)/obj/%.o,$(TEST_SRC))
FUZZ_OBJ := $(patsubst %.cpp,$(BUILD)/obj/%.o,$(sort $(wildcard tests/fuzz/*.cpp)))
BENCH_OBJ := $(patsubst %.cpp,$(BUILD)/obj/%.o,$(sort $(wildcard tests/bench/*.cpp)))

.PHONY: all help setup quickstart test test-long bench lint format clean FORCE
.DEFAULT_GOAL := all

all: setup  ## build build/hearth (installs what is missing first)
	@$(MAKE) --no-print-directory $(BUILD)/hearth

help:  ## list the targets
	@awk -F':.*## ' '/^[a-z-]+:.*## /{printf "  make %-12s %s\n", $$1, $$2}' Makefile
	@echo "  variables:        BUILD=DIR  WERROR=1  SANITIZE=address,undefined  OPT=-O3  CXX=g++"

setup:  ## install the Debian packages that are missing
	@scripts/setup.sh

quickstart: all  ## fetch a small real corpus, train a small GPT on it, print a sample
	@scripts/quickstart.sh

test: setup  ## build and run all tests
	@$(MAKE) --no-print-directory $(BUILD)/hearth $(BUILD)/hearth-tests
	@tests/run.sh $(BUILD)

test-long: setup  ## soak, fuzz, kill loops, full matrices
	@$(MAKE) --no-print-directory $(BUILD)/hearth $(BUILD)/hearth-tests
	@tests/run_long.sh $(BUILD)

bench: setup  ## build build/hearth-bench, the microbenchmarks
	@$(MAKE) --no-print-directory $(BUILD)/hearth-bench

lint: setup  ## formatting, and a build with warnings as errors
	@git ls-files '*.cpp' '*.h' | xargs clang-format --dry-run -Werror
	@$(MAKE) --no-print-directory BUILD=$(BUILD)/lint WERROR=1 $(BUILD)/lint/hearth $(BUILD)/lint/hearth-tests

format:  ## apply clang-format to every source file
	@git ls-files '*.cpp' '*.h' | xargs clang-format -i

clean:  ## delete what was built
	rm -rf $(BUILD)/obj $(BUILD)/libhearth.a $(BUILD)/hearth $(BUILD)/hearth-tests $(BUILD)/hearth-bench $(BUILD)/lint

$(BUILD)/hearth: $(BUILD)/obj/src/main.o $(BUILD)/libhearth.a
	$(CXX) -o $@ $^ $(LDFLAGS_ALL) $(LIBS)

$(BUILD)/hearth-tests: $(TEST_OBJ) $(BUILD)/libhearth.a
	$(CXX) -o $@ $^ $(LDFLAGS_ALL) $(LIBS) -lgtest -lgtest_main

$(BUILD)/hearth-bench: $(BENCH_OBJ) $(BUILD)/libhearth.a
	$(CXX) -o $@ $^ $(LDFLAGS_ALL) $(LIBS) -lbenchmark

# The parsers under mutated input; `make test-long` builds it with sanitizers.
$(BUILD)/hearth-fuzz: $(FUZZ_OBJ) $(BUILD)/libhearth.a
	$(CXX) -o $@ $^ $(LDFLAGS_ALL) $(LIBS)

$(BUILD)/libhearth.a: $(LIB_OBJ)
	@rm -f $@
	ar rcs $@ $^

$(BUILD)/obj/%.o: %.cpp $(BUILD)/flags
	@mkdir -p $(@D)
	$(CXX) $(CXXFLAGS_ALL) $(if $(filter tests/%,$<),-Itests) -c $< -o $@

# The flags of the last build: rewritten only when they change, so that a change rebuilds everything.
$(BUILD)/flags: FORCE
	@mkdir -p $(@D)
	@echo '$(CXX) $(CXXFLAGS_ALL)' | cmp -s - $@ || echo '$(CXX) $(CXXFLAGS_ALL)' > $@

-include $(LIB_OBJ:.o=.d) $(TEST_OBJ:.o=.d) $(BENCH_OBJ:.o=.d) $(FUZZ_OBJ:.o=.d) $(BUILD)/obj/src/main.d
