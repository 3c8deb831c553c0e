# A thin façade over CMake and tools/: every target sets up what it needs first.
.PHONY: all setup demo check bench fuzz format clean
BUILD := build

all: setup
	@cmake -S . -B $(BUILD) -G Ninja -DCMAKE_BUILD_TYPE=Release -DBL_TESTS=ON > /dev/null
	@cmake --build $(BUILD) -j$$(nproc)

setup:
	@tools/setup build

# Fetches Gemma 3 270M and answers a prompt.
demo:
	@tools/setup demo
	@tools/demo

# Builds (gcc, clang, sanitizers) and runs every test; the last line counts them.
check:
	@tools/setup check
	@tools/check

# Speed on this machine, as ratios in one run; see bench/README.md.
bench: all
	@bench/run

# 60 s of libFuzzer for each target: make fuzz [SECONDS=600] [TARGET=gguf]
fuzz:
	@tools/setup check
	@tools/fuzz $(or $(SECONDS),60) $(TARGET)

format:
	@tools/check_format --fix

clean:
	rm -rf build build-asan build-clang build-fuzz
