// SPDX-License-Identifier: Apache-2.0
// The power goes at every single change on disk, from the first of an update to
// the last of its confirmation: the unit boots a whole image each time.
#include "ports/steps.hpp"
#include "slots.hpp"

#include <doctest/doctest.h>
#include <sys/wait.h>
#include <unistd.h>
#include <csignal>

using namespace fleet;
using namespace fleet::test;

namespace {

// run_until_cut does the work in a child that dies at its n-th step; false
// when it lived to the end.
template <typename Work>
bool run_until_cut(int n, Work work) {
    const pid_t child = fork();
    if (child == 0) {
        int left = n;
        host::on_step([&left](const char *) {
            if (left-- == 0) raise(SIGKILL);
        });
        work();
        _exit(0);
    }
    int status = 0;
    REQUIRE(waitpid(child, &status, 0) == child);
    REQUIRE((WIFSIGNALED(status) || WEXITSTATUS(status) == 0));
    return WIFSIGNALED(status);
}

// life is one unit's way through an update: install, restart, prove itself.
void life(const Flash &flash, const std::string &image) {
    auto before = flash.updater(flash.boot());
    if (!install(before, image).ok()) _exit(3);
    auto after = flash.updater(flash.boot());
    if (!after.mark_valid().ok()) _exit(4);
}

}  // namespace

TEST_SUITE("power cut") {
    TEST_CASE("every step of an update and its confirmation") {
        const std::string image = image_of("1.1.0");
        int cuts = 0;
        for (int n = 0;; ++n) {
            Flash flash;
            if (!run_until_cut(n, [&] { life(flash, image); })) break;
            ++cuts;
            CAPTURE(n);
            const std::string first = flash.boot().image.app.version;
            CHECK((first == "1.0.0" || first == "1.1.0"));
            // Without a confirmation the unit is back on the old image by the
            // next boot, and it can be updated again.
            auto settled = flash.updater(flash.boot());
            if (settled.running().state == SlotState::pending_verify) REQUIRE(settled.mark_valid().ok());
            REQUIRE(install(settled, image_of("1.2.0")).ok());
            CHECK(flash.boot().image.app.version == "1.2.0");
        }
        CHECK(cuts > 15);
    }

    TEST_CASE("every step of a rollback") {
        int cuts = 0;
        for (int n = 0;; ++n) {
            Flash flash;
            auto old = flash.updater(flash.boot());
            REQUIRE(install(old, image_of("1.1.0")).ok());
            const auto pending = flash.boot();
            const bool cut = run_until_cut(n, [&] { (void)flash.updater(pending).mark_invalid(); });
            CHECK(flash.boot().image.app.version == "1.0.0");
            if (!cut) break;
            ++cuts;
        }
        CHECK(cuts >= 3);
    }
}
