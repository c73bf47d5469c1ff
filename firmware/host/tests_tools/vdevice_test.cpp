// SPDX-License-Identifier: Apache-2.0
// The program as a whole, over real sockets: updates, the way back, crashes.
#include "process.hpp"
#include "virtual_unit.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <csignal>
#include <list>

using namespace fleet;
using namespace fleet::test;

TEST_SUITE("vdevice") {
    TEST_CASE("it takes the image that the poll offers, proves it, and stays") {
        StubFleet fleet(image_with(""));
        TempDir dir;
        Process device(command(fleet, dir / "u"), dir / "log");
        CHECK(Process::eventually([&] { return settled_on_new(dir / "u"); }));
        CHECK(device.running());
        device.kill(SIGTERM);
        CHECK(Process::eventually([&] { return !device.running(); }));
        CHECK((WIFEXITED(device.status()) && WEXITSTATUS(device.status()) == 0));
        CHECK(fleet.polls == 2);
    }

    TEST_CASE("an image that does not prove itself makes way") {
        std::string payload;
        SlotState verdict = SlotState::invalid;
        SUBCASE("its self-test fails") {
            payload = R"({"selftest":"fail"})";
        }
        SUBCASE("it has no network") {
            payload = R"({"no_network":true})";
        }
        SUBCASE("it crashes at once") {
            payload = R"({"crash_after_ms":1})";
            verdict = SlotState::aborted;
        }
        StubFleet fleet(image_with(payload));
        fleet.offers_left = 1;
        TempDir dir;
        Process device(command(fleet, dir / "u"), dir / "log");
        CHECK(Process::eventually([&] { return went_back(dir / "u", verdict); }));
        CHECK(device.running());
    }

    TEST_CASE("a download survives what happens on the way") {
        std::string fault;
        bool resumes = false;
        SUBCASE("connection lost") {
            fault = "drop-at=100000";
            resumes = true;
        }
        SUBCASE("power cut") {
            fault = "reset-at=100000";
        }
        SUBCASE("one wrong bit") {
            fault = "corrupt-at=100000";
        }
        SUBCASE("every message twice") {
            fault = "duplicate";
        }
        CAPTURE(fault);
        StubFleet fleet(image_with(""));
        TempDir dir;
        const bool retried_by_server = fault[0] == 'c';  // the unit gives up: the next boot is offered it again
        {
            Process device(command(fleet, dir / "u", {"--fault", fault}), dir / "log");
            const auto gave_up = [&] { return fleet.said().find(R"("state":"failed")") != std::string::npos; };
            CHECK(Process::eventually([&] { return retried_by_server ? gave_up() : settled_on_new(dir / "u"); }));
            CHECK(device.running());
        }
        Process again(command(fleet, dir / "u", {"--fault", fault}), dir / "log");
        CHECK(Process::eventually([&] { return settled_on_new(dir / "u"); }));
        CHECK((fleet.resumed > 0) >= resumes);
    }

    TEST_CASE("a slot that cannot be written leaves the old image running") {
        StubFleet fleet(image_with(""));
        TempDir dir;
        Process device(command(fleet, dir / "u", {"--fault", "full-disk"}), dir / "log");
        CHECK(Process::eventually([&] { return fleet.downloads > 0; }));
        CHECK_FALSE(Process::wait_for([&] { return look(dir / "u").version != "1.0.0"; }, 1000));
        CHECK(device.running());
    }

    // Steps lie between any two changes on disk. Each is tried, many at a time:
    // the units mostly wait.
    TEST_CASE("killed at any step, it comes back and still gets its update") {
        constexpr int at_once = 12;
        StubFleet fleet(image_with("", 60000));
        int kills = 0;
        for (int first = 1, lived = 0; lived == 0; first += at_once) {
            std::list<TempDir> dirs(at_once);
            {
                std::list<Process> cut;
                int n = first;
                for (const TempDir &dir : dirs)
                    cut.emplace_back(command(fleet, dir / "u", {"--fault", "kill=" + std::to_string(n++)}),
                                     dir / "log");
                auto dir = dirs.begin();
                for (Process &p : cut) {
                    Process::eventually([&] { return !p.running() || settled_on_new(*dir / "u"); });
                    if (p.running()) {
                        ++lived;  // its life has fewer steps
                    } else {
                        REQUIRE((WIFSIGNALED(p.status()) && WTERMSIG(p.status()) == SIGKILL));
                        ++kills;
                    }
                    ++dir;
                }
            }
            std::list<Process> again;
            for (const TempDir &dir : dirs)
                again.emplace_back(command(fleet, dir / "u"), dir / "log");
            for (const TempDir &dir : dirs)
                REQUIRE(Process::eventually([&] { return settled_on_new(dir / "u"); }));
        }
        MESSAGE("killed ", kills, " times");
        CHECK(kills > 25);
    }

    TEST_CASE("a crash leaves a core dump") {
        StubFleet fleet(image_with(""));
        TempDir dir;
        Process device(command(fleet, dir / "u"), dir / "log");
        REQUIRE(Process::eventually([&] { return settled_on_new(dir / "u"); }));
        device.kill(SIGSEGV);
        CHECK(Process::eventually([&] { return std::filesystem::exists(dir / "u/coredump.bin"); }));
        CHECK(Process::eventually([&] { return host::load_ota_data(dir / "u").boot_count == 3; }));
        CHECK(device.running());
        CHECK(look(dir / "u").version == "1.1.0");
    }

    TEST_CASE("two processes do not share a unit") {
        StubFleet fleet(image_with(""));
        TempDir dir;
        Process device(command(fleet, dir / "u"), dir / "log");
        // A restart releases the lock for a moment: wait until the first device has made its restarts.
        REQUIRE(Process::eventually([&] { return settled_on_new(dir / "u"); }));
        Process second(command(fleet, dir / "u"), dir / "log2");
        CHECK(Process::eventually([&] { return !second.running(); }));
        CHECK(WEXITSTATUS(second.status()) == 1);
    }
}
