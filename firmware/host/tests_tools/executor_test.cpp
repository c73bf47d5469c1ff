// SPDX-License-Identifier: Apache-2.0
#include "ports/thread_executor.hpp"

#include <doctest/doctest.h>
#include <atomic>

using namespace fleet;

TEST_SUITE("executor") {
    TEST_CASE("what is posted runs in order, timers by their time") {
        host::ThreadExecutor executor;
        std::string order;
        executor.post_after(30, [&] { order += 'c'; });
        executor.post_after(10, [&] { order += 'b'; });
        executor.post_after(60, [&] { executor.stop(); });
        executor.post([&] {
            order += 'a';
            executor.post_after(0, [&] { order += 'x'; });
        });
        executor.run();
        CHECK(order == "axbc");
    }

    TEST_CASE("timers of the same moment keep their order") {
        host::ThreadExecutor executor;
        std::string order;
        for (char c = 'a'; c <= 'j'; ++c)
            executor.post_after(5, [&order, c] { order += c; });
        executor.post_after(20, [&] { executor.stop(); });
        executor.run();
        CHECK(order == "abcdefghij");
    }

    TEST_CASE("the worker takes one job at a time, off the executor's thread") {
        host::ThreadExecutor executor;
        std::atomic<int> running{0}, most{0};
        std::thread::id worker;
        for (int i = 0; i < 5; ++i) {
            executor.work([&] {
                most = std::max(most.load(), ++running);
                std::this_thread::sleep_for(std::chrono::milliseconds(2));
                --running;
                worker = std::this_thread::get_id();
            });
        }
        executor.work([&] { executor.post([&] { executor.stop(); }); });
        executor.run();
        CHECK(most == 1);
        executor.join();
        CHECK((worker != std::this_thread::get_id()));
    }

    TEST_CASE("an end leaves what is still waiting") {
        std::atomic<int> ran{0};
        {
            host::ThreadExecutor executor;
            executor.post_after(60000, [&] { ++ran; });
        }
        CHECK(ran == 0);
    }
}
