// SPDX-License-Identifier: Apache-2.0
// The program as a whole, over real sockets, with its faults.
#include "boot/bootloader.hpp"
#include "process.hpp"
#include "slots.hpp"
#include "stub_fleet.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <csignal>
#include <cstdlib>

using namespace fleet;
using namespace fleet::test;

namespace {

std::string image_with(const std::string &payload, std::uint32_t size = 150000) {
    host::ImageSpec spec;
    spec.chip_id = chip_s3;
    spec.version = "1.1.0";
    spec.payload = payload;
    spec.size = size;
    return host::make_image(spec);
}

std::vector<std::string> command(const StubFleet &fleet, const std::string &state_dir, const std::string &fault = "") {
    std::vector<std::string> c = {VDEVICE, "--ota-url",  fleet.poll_url(), "--state-dir", state_dir, "--restart-ms",
                                  "200",   "--trial-ms", "3000",           "--id",        "test"};
    if (!fault.empty()) c.insert(c.end(), {"--fault", fault});
    return c;
}

// What is on the flash, seen from outside.
struct Seen {
    std::string version;
    SlotState state, other;
};

Seen look(const std::string &state_dir) {
    const host::OtaData data = host::load_ota_data(state_dir);
    const auto image = host::read_slot(state_dir, data.boot_slot, chip_s3);
    return {image.ok() ? image.value().app.version : "none", data.states[data.boot_slot],
            data.states[1 - data.boot_slot]};
}

bool settled_on_new(const std::string &state_dir) {
    const Seen seen = look(state_dir);
    return seen.version == "1.1.0" && seen.state == SlotState::valid;
}

bool went_back(const std::string &state_dir, SlotState verdict) {
    const Seen seen = look(state_dir);
    return seen.version == "1.0.0" && seen.state == SlotState::valid && seen.other == verdict;
}

}  // namespace

TEST_SUITE("vdevice") {
    TEST_CASE("it takes the image that the poll offers, proves it, and stays") {
        StubFleet fleet(image_with(""));
        TempDir dir;
        Process device(command(fleet, dir / "u"), dir / "log");
        CHECK(Process::wait_for([&] { return settled_on_new(dir / "u"); }, 10000));
        CHECK(device.running());
        device.kill(SIGTERM);
        CHECK(Process::wait_for([&] { return !device.running(); }, 3000));
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
        CHECK(Process::wait_for([&] { return went_back(dir / "u", verdict); }, 15000));
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
            Process device(command(fleet, dir / "u", fault), dir / "log");
            Process::wait_for([&] { return settled_on_new(dir / "u"); }, retried_by_server ? 2000 : 15000);
            CHECK(device.running());
        }
        Process again(command(fleet, dir / "u", fault), dir / "log");
        CHECK(Process::wait_for([&] { return settled_on_new(dir / "u"); }, 10000));
        CHECK((fleet.resumed > 0) >= resumes);
    }

    TEST_CASE("a slot that cannot be written leaves the old image running") {
        StubFleet fleet(image_with(""));
        TempDir dir;
        Process device(command(fleet, dir / "u", "full-disk"), dir / "log");
        CHECK(Process::wait_for([&] { return fleet.downloads > 0; }, 5000));
        CHECK_FALSE(Process::wait_for([&] { return look(dir / "u").version != "1.0.0"; }, 1000));
        CHECK(device.running());
    }

    // Steps lie between any two changes on disk. All of them take minutes:
    // VDEVICE_STEPS=1 tries each, otherwise every seventh is.
    TEST_CASE("killed at any step, it comes back and still gets its update") {
        const int stride = std::getenv("VDEVICE_STEPS") != nullptr ? std::atoi(std::getenv("VDEVICE_STEPS")) : 7;
        StubFleet fleet(image_with("", 60000));
        int kills = 0;
        for (int n = 1;; n += stride) {
            CAPTURE(n);
            TempDir dir;
            {
                Process cut(command(fleet, dir / "u", "kill=" + std::to_string(n)), dir / "log");
                Process::wait_for([&] { return !cut.running() || settled_on_new(dir / "u"); }, 10000);
                if (cut.running()) break;
                REQUIRE((WIFSIGNALED(cut.status()) && WTERMSIG(cut.status()) == SIGKILL));
            }
            ++kills;
            Process device(command(fleet, dir / "u"), dir / "log");
            REQUIRE(Process::wait_for([&] { return settled_on_new(dir / "u"); }, 15000));
        }
        MESSAGE("killed ", kills, " times");
        CHECK(kills > 3);
    }

    TEST_CASE("a crash leaves a core dump") {
        StubFleet fleet(image_with(""));
        TempDir dir;
        Process device(command(fleet, dir / "u"), dir / "log");
        REQUIRE(Process::wait_for([&] { return settled_on_new(dir / "u"); }, 10000));
        device.kill(SIGSEGV);
        CHECK(Process::wait_for([&] { return std::filesystem::exists(dir / "u/coredump.bin"); }, 3000));
        CHECK(Process::wait_for([&] { return host::load_ota_data(dir / "u").boot_count == 3; }, 3000));
        CHECK(device.running());
        CHECK(look(dir / "u").version == "1.1.0");
    }

    TEST_CASE("two processes do not share a unit") {
        StubFleet fleet(image_with(""));
        TempDir dir;
        Process device(command(fleet, dir / "u"), dir / "log");
        REQUIRE(Process::wait_for([&] { return fleet.polls > 0; }, 5000));
        Process second(command(fleet, dir / "u"), dir / "log2");
        CHECK(Process::wait_for([&] { return !second.running(); }, 3000));
        CHECK(WEXITSTATUS(second.status()) == 1);
    }
}
