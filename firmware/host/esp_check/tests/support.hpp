// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "fakes.hpp"

#include <doctest/doctest.h>

// A Bench is a chip after power-on with a running executor.
struct Bench {
    Bench() {
        fake::reset();
        REQUIRE(executor.start().ok());
    }
    void run(std::uint32_t ms) { fake::rtos::run(executor, ms); }

    fleet::esp::TaskExecutor executor;
};

inline std::string name_of(const fleet::Status &status) {
    return fleet::to_string(status.code);
}
template <typename T>
std::string name_of(const fleet::Result<T> &result) {
    return name_of(result.status());
}
