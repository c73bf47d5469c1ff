// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

TEST_SUITE_BEGIN("executor");

TEST_CASE("functions run in the order they were posted") {
    Bench b;
    std::string order;
    b.executor.post([&] {
        order += "a";
        b.executor.post([&] { order += "c"; });
    });
    b.executor.post([&] { order += "b"; });
    b.run(1);
    CHECK(order == "abc");
}

TEST_CASE("what is due later runs then, equals in the order they were posted") {
    Bench b;
    std::string order;
    b.executor.post_after(20, [&] { order += "c"; });
    b.executor.post_after(10, [&] { order += "a"; });
    b.executor.post_after(10, [&] { order += "b"; });
    b.run(9);
    CHECK(order.empty());
    b.run(2);
    CHECK(order == "ab");
    b.run(10);
    CHECK(order == "abc");
}

TEST_CASE("jobs run on the worker, and time on the executor goes on") {
    Bench b;
    std::string order;
    b.executor.work([&] { b.executor.post([&] { order += "done"; }); });
    b.run(1);
    CHECK(order == "done");
}

TEST_CASE("an idle executor feeds the watchdog") {
    Bench b;
    for (int i = 0; i < 3; ++i)
        b.executor.turn(5000);
    CHECK(fake::rtos::watchdog_feeds == 3);
}

TEST_CASE("no memory for tasks is a failure") {
    fake::reset();
    fake::rtos::tasks_to_refuse = 1;
    fleet::esp::TaskExecutor executor;
    CHECK(name_of(executor.start()) == "no_memory");
}
