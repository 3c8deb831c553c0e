# A thin façade over CMake: make, make demo, make check, make bench, make fuzz, make format.
.PHONY: all setup demo check bench fuzz format clean
BUILD ?= build

all: setup
	@cmake -S . -B $(BUILD) -DCMAKE_BUILD_TYPE=Release > $(BUILD).configure.log 2>&1 || { cat $(BUILD).configure.log; exit 1; }
	@cmake --build $(BUILD) -j$$(nproc)
