// SPDX-License-Identifier: Apache-2.0
#include "fleet/ota_flow.hpp"
#include "machine.hpp"

#include <doctest/doctest.h>

using namespace fleet;
using namespace fleet::test;

namespace {

const char image_url[] = "https://fleet.example.org/fw/t0k3n.bin";

// OtaFixture is a machine that runs upgrades; reboot gives it a new life.
struct OtaFixture {
    OtaFixture() {
        policy.proof_ms = 0;
        m.http.files[image_url] = image;
        start_flow();
    }
    // Without the power cuts of one test: whatever was stored was made safe.
    ~OtaFixture() { CHECK((m.store.powerless || !m.store.dirty)); }

    void start_flow() {
        flow = std::make_unique<OtaFlow>(m.machine, policy);
        flow->on_report = [this](const JobReport &r) {
            std::string line = std::string(r.job) + " " + r.kind + " " + to_string(r.state);
            if (r.state == JobState::progress) {
                percents.push_back(r.percent);
                return;
            }
            if (r.state == JobState::failed)
                line += std::string(" ") + to_string(r.outcome.code) + ": " + r.outcome.why;
            reports.push_back(line);
        };
        flow->self_test = [this] { return self_test; };
    }

    // reboot is what the bootloader does, and the start of the next run.
    void reboot() {
        m.executor.forget();
        m.updater.boot();
        m.clock.us = 0;
        start_flow();
        flow->after_boot();
    }

    FirmwareOrder order() const {
        FirmwareOrder o;
        o.version = "2.0.0";
        o.url = image_url;
        o.sha256 = sha256_hex(image);
        return o;
    }

    std::string last() const { return reports.empty() ? "" : reports.back(); }

    FakeMachine m;
    OtaPolicy policy;
    std::string image = make_image("2.0.0");
    std::unique_ptr<OtaFlow> flow;
    std::vector<std::string> reports;
    std::vector<int> percents;
    Status self_test;
};

}  // namespace

TEST_SUITE("ota") {
    TEST_CASE("the whole way: download, restart, trial, done") {
        OtaFixture f;
        int goodbyes = 0;
        f.flow->before_restart = [&] { goodbyes++; };
        REQUIRE(f.flow->start(f.order(), "j1").ok());
        f.m.executor.run_for(1'000);
        CHECK(goodbyes == 1);
        CHECK(f.m.system.restarts == 0);
        CHECK(f.flow->state() == OtaState::restarting);
        f.m.executor.run_for(1'000);
        CHECK(f.m.system.restarts == 1);
        CHECK(f.m.updater.slots[1].bytes == f.image);
        CHECK(f.m.system.fed > 100);
        f.reboot();
        CHECK(f.m.system.info.version == "2.0.0");
        CHECK(f.flow->state() == OtaState::on_trial);
        CHECK(f.flow->start(f.order(), "j2").code == Code::refused);
        f.flow->prove_online();
        CHECK(f.last() == "j1 upgrade done");
        CHECK(f.reports.size() == 2);
        CHECK(f.m.updater.running().state == SlotState::valid);
        f.flow->prove_online();
        f.reboot();
        CHECK(f.reports.size() == 2);  // reported once
        f.m.executor.run_for(10 * 60'000);
        CHECK(f.m.updater.current == 1);
    }

    TEST_CASE("a new image has to stay online for a while before it is trusted") {
        OtaFixture f;
        f.policy.proof_ms = 30'000;
        f.start_flow();
        REQUIRE(f.flow->start(f.order(), "j1").ok());
        f.m.executor.run_for(5'000);
        f.reboot();
        REQUIRE(f.flow->state() == OtaState::on_trial);
        SUBCASE("it stays") {
            f.flow->prove_online();
            f.m.executor.run_for(29'000);
            CHECK(f.m.updater.running().state == SlotState::pending_verify);
            f.flow->prove_online();  // more messages change nothing
            f.m.executor.run_for(2'000);
            CHECK(f.m.updater.running().state == SlotState::valid);
            CHECK(f.last() == "j1 upgrade done");
            CHECK(f.reports.size() == 2);
        }
        SUBCASE("it loses the broker meanwhile: the time starts anew") {
            f.flow->prove_online();
            f.m.executor.run_for(20'000);
            f.flow->lose_online();
            f.m.executor.run_for(20'000);
            f.flow->prove_online();
            f.m.executor.run_for(20'000);
            CHECK(f.flow->state() == OtaState::on_trial);
            f.m.executor.run_for(11'000);
            CHECK(f.last() == "j1 upgrade done");
        }
        SUBCASE("it crashes meanwhile: the old image is back, and says so") {
            f.flow->prove_online();
            f.m.executor.run_for(20'000);
            f.reboot();
            CHECK(f.m.system.info.version == "1.0.0");
            CHECK(f.last() == "j1 upgrade failed rolled_back: the new image restarted before it had proved itself");
        }
        SUBCASE("its self-test fails by then") {
            f.flow->prove_online();
            f.self_test = {Code::io, "the sensor went silent"};
            f.m.executor.run_for(40'000);
            f.reboot();
            CHECK(f.m.system.info.version == "1.0.0");
            CHECK(f.last() == "j1 upgrade failed rolled_back: the sensor went silent");
        }
        SUBCASE("it is never online") {
            f.m.executor.run_for(310'000);
            f.reboot();
            CHECK(f.last() == "j1 upgrade failed rolled_back: the new image did not get through to the broker");
        }
    }

    TEST_CASE("a new image is marked valid after its self-test, not before") {
        OtaFixture f;
        REQUIRE(f.flow->start(f.order(), "j1").ok());
        f.m.executor.run_for(5'000);
        f.reboot();
        int tests = 0;
        f.flow->self_test = [&] {
            tests++;
            CHECK(f.m.updater.running().state == SlotState::pending_verify);
            return Status{};
        };
        f.flow->prove_online();
        CHECK(tests == 1);
        CHECK(f.m.updater.running().state == SlotState::valid);
    }

    TEST_CASE("the time online is at most half of the trial") {
        OtaFixture f;
        f.policy.proof_ms = 600'000;
        f.policy.trial_ms = 4'000;
        f.start_flow();
        REQUIRE(f.flow->start(f.order(), "j1").ok());
        f.m.executor.run_for(5'000);
        f.reboot();
        f.flow->prove_online();
        f.m.executor.run_for(1'900);
        CHECK(f.flow->state() == OtaState::on_trial);
        f.m.executor.run_for(200);
        CHECK(f.last() == "j1 upgrade done");
    }

    TEST_CASE("an attempt that gets no connection at all keeps what there is") {
        OtaFixture f;
        f.m.http.cut_at = {200'000, 0, 0};
        f.m.http.get_status = {0, 500, 503};
        REQUIRE(f.flow->start(f.order(), "j").ok());
        f.m.executor.run_for(200'000);
        REQUIRE(f.m.http.asked_from.size() == 4);
        CHECK(f.m.http.asked_from[1] > 150'000);
        CHECK(f.m.http.asked_from[3] == f.m.http.asked_from[1]);
        CHECK(f.m.updater.slots[1].bytes == f.image);
    }

    TEST_CASE("progress comes every 5 percent, in order, up to 100") {
        OtaFixture f;
        REQUIRE(f.flow->start(f.order(), "j").ok());
        f.m.executor.run_for(1'000);
        REQUIRE(f.percents.size() >= 15);
        CHECK(f.percents.size() <= 20);
        for (std::size_t i = 1; i < f.percents.size(); i++)
            CHECK(f.percents[i] - f.percents[i - 1] >= 5);
        CHECK(f.percents.back() == 100);
        CHECK(f.flow->percent() == 100);
    }

    TEST_CASE("images that are not for this device are refused before anything is erased") {
        const struct {
            std::string image;
            const char *want;
        } cases[] = {
            {make_image("2", 1000, 5), "wrong_target: the image is for another chip"},
            {make_image("2", 1000, 9, "xiaozhi"), "wrong_target: the image is of another project"},
            {make_image("2", 1000, 9, "fleet_unit", 0), "wrong_target: the image has an older secure version"},
            {std::string(2000, '\xE9'), "corrupt: the image has an impossible number of segments"},
            {std::string(2000, 'x'), "corrupt: not an app image: wrong magic"},
            {std::string("\xE9\x01") + std::string(2000, '\0'), "corrupt: not an app image: no app description"},
            {"short", "corrupt: the image's length is missing or impossible"},
            {make_image("2", 1 << 20), "no_space: the image is larger than the slot"},
        };
        for (const auto &c : cases) {
            OtaFixture f;
            f.m.updater.slots[1].bytes = "kept";
            f.m.http.files[image_url] = c.image;
            FirmwareOrder o = f.order();
            o.sha256.clear();
            REQUIRE(f.flow->start(o, "j").ok());
            f.m.executor.run_for(200'000);
            CHECK(f.last() == std::string("j upgrade failed ") + c.want);
            CHECK(f.m.updater.slots[1].bytes == "kept");
            CHECK(f.flow->state() == OtaState::idle);
            CHECK(f.m.system.restarts == 0);
        }
    }

    TEST_CASE("damage is found at the end, and the running image stays") {
        OtaFixture f;
        FirmwareOrder o = f.order();
        SUBCASE("stated hash") {
            o.sha256 = std::string(64, '0');
            REQUIRE(f.flow->start(o, "j").ok());
            f.m.executor.run_for(1'000);
            CHECK(f.last() == "j upgrade failed corrupt: the image's SHA-256 is not the stated one");
        }
        SUBCASE("hash that is no hex") {
            o.sha256 = std::string(64, 'z');
            REQUIRE(f.flow->start(o, "j").ok());
            f.m.executor.run_for(1'000);
            CHECK(f.last() == "j upgrade failed invalid: not hex");
        }
        SUBCASE("the image's own hash") {
            o.sha256.clear();
            f.m.http.files[image_url][5000] ^= 1;
            REQUIRE(f.flow->start(o, "j").ok());
            f.m.executor.run_for(1'000);
            CHECK(f.last() == "j upgrade failed corrupt: the image's checksum is wrong");
            CHECK(f.m.store.values.count("i:ota_offset") == 0);  // nothing to go on with
        }
        SUBCASE("stated size") {
            o.size = 5;
            REQUIRE(f.flow->start(o, "j").ok());
            f.m.executor.run_for(1'000);
            CHECK(f.last() == "j upgrade failed corrupt: the image's length is not the stated one");
        }
        SUBCASE("flash") {
            f.m.updater.broken = true;
            REQUIRE(f.flow->start(o, "j").ok());
            f.m.executor.run_for(1'000);
            CHECK(f.last() == "j upgrade failed io: flash write failed");
            CHECK(f.m.updater.aborts == 1);
        }
        SUBCASE("no length") {
            f.m.http.says_length = false;
            REQUIRE(f.flow->start(o, "j").ok());
            f.m.executor.run_for(1'000);
            CHECK(f.last() == "j upgrade failed corrupt: the image's length is missing or impossible");
        }
        SUBCASE("the switch") {
            f.m.updater.cannot_switch = true;
            REQUIRE(f.flow->start(o, "j").ok());
            f.m.executor.run_for(1'000);
            CHECK(f.last() == "j upgrade failed io: otadata cannot be written");
            CHECK(f.m.store.values.count("s:ota_want") == 0);
        }
        CHECK(f.m.system.restarts == 0);
        CHECK(f.m.updater.next == 0);
        f.reboot();
        CHECK(f.m.updater.current == 0);
        CHECK(f.flow->start(f.order(), "again").ok());
    }

    TEST_CASE("a restart before the upgrade was done is told, once") {
        OtaFixture f;
        const std::string expected = "j1 upgrade failed canceled: the device restarted before the switch";
        REQUIRE(f.flow->start(f.order(), "j1").ok());
        f.reboot();
        CHECK(f.last() == expected);
        const std::size_t reports = f.reports.size();
        f.reboot();
        CHECK(f.reports.size() == reports);
        f.m.http.files.clear();
        REQUIRE(f.flow->start(f.order(), "j2").ok());
        f.m.executor.run_for(60 * 60'000);
        REQUIRE(f.last().rfind("j2 upgrade failed", 0) == 0);  // reported already
        f.reboot();
        CHECK(f.last() != "j2 upgrade failed canceled: the device restarted before the switch");
    }

    TEST_CASE("what cannot begin is refused at once") {
        OtaFixture f;
        FirmwareOrder o = f.order();
        o.url = "ftp://x/";
        CHECK(f.flow->start(o, "j").code == Code::invalid);
        o = f.order();
        o.sha256 = "abc";
        CHECK(f.flow->start(o, "j").code == Code::invalid);
        f.m.updater.single = true;
        CHECK(f.flow->start(f.order(), "j").code == Code::not_found);
        CHECK(f.flow->roll_back("j").code == Code::not_found);
        f.m.updater.single = false;
        CHECK(f.reports.empty());
        CHECK(f.flow->start(f.order(), "j").ok());
        CHECK(f.flow->start(f.order(), "k").code == Code::busy);
        CHECK(f.flow->roll_back("k").code == Code::busy);
    }

    TEST_CASE("a download that is cut goes on where it was") {
        OtaFixture f;
        f.m.http.cut_at = {100'000, 60'500};
        REQUIRE(f.flow->start(f.order(), "j").ok());
        f.m.executor.run_for(300'000);
        CHECK(f.m.http.asked_from == std::vector<std::int64_t>{0, 98304, 155648});
        CHECK(f.m.updater.slots[1].bytes == f.image);
        CHECK(f.m.system.restarts == 1);
    }

    TEST_CASE("however the image is cut into pieces, it arrives") {
        for (const std::size_t piece : {std::size_t{1}, std::size_t{287}, std::size_t{288}, std::size_t{289}}) {
            OtaFixture f;
            f.image = make_image("2.0.0", 1000);
            f.m.http.files[image_url] = f.image;
            f.m.http.piece = piece;
            REQUIRE(f.flow->start(f.order(), "j").ok());
            f.m.executor.run_for(60'000);
            CHECK(f.m.updater.slots[1].bytes == f.image);
        }
        OtaFixture f;
        f.m.http.piece = f.image.size() - 1;
        REQUIRE(f.flow->start(f.order(), "j").ok());
        f.m.executor.run_for(60'000);
        CHECK(f.m.updater.slots[1].bytes == f.image);
    }

    TEST_CASE("a server without ranges begins anew; one with another image, too") {
        OtaFixture f;
        SUBCASE("no ranges") {
            f.m.http.ranges = false;
        }
        SUBCASE("another image") {
            f.m.http.on_piece = [&f] {
                if (f.m.http.asked_from.size() == 1) f.m.http.etag = "\"two\"";
            };
        }
        SUBCASE("416") {
            f.m.http.get_status = {0, 416};
        }
        f.m.http.cut_at = {100'000};
        REQUIRE(f.flow->start(f.order(), "j").ok());
        f.m.executor.run_for(300'000);
        CHECK(f.m.updater.slots[1].bytes == f.image);
        CHECK(f.m.system.restarts == 1);
    }

    TEST_CASE("the rest of another image is not added to what is there") {
        OtaFixture f;
        const std::string second = make_image("3.0.0", 300'000);
        f.m.http.cut_at = {100'000};
        f.m.http.on_piece = [&] { f.m.http.etag = "\"two\""; };
        FirmwareOrder any = f.order();
        any.sha256.clear();  // the ETag alone distinguishes the two
        REQUIRE(f.flow->start(any, "j").ok());
        f.m.executor.settle();
        f.m.http.files[image_url] = second;
        f.m.executor.run_for(300'000);
        CHECK(f.m.http.asked_from == std::vector<std::int64_t>{0, 98304, 0});
        CHECK(f.m.updater.slots[1].bytes == second);
        CHECK(f.m.system.restarts == 1);
    }

    TEST_CASE("after a restart the same image goes on, another begins at 0") {
        OtaFixture f;
        f.m.http.cut_at = {200'000};
        REQUIRE(f.flow->start(f.order(), "j").ok());
        f.m.executor.settle();
        f.reboot();
        CHECK(f.m.store.values.count("i:ota_offset") == 1);
        FirmwareOrder other = f.order();
        const std::string second = make_image("3.0.0");
        f.m.http.files["https://fleet.example.org/other"] = second;
        SUBCASE("the same") {
            REQUIRE(f.flow->start(f.order(), "j2").ok());
            f.m.executor.run_for(60'000);
            CHECK(f.m.http.asked_from.back() > 100'000);
            CHECK(f.m.updater.slots[1].bytes == f.image);
        }
        SUBCASE("another") {
            other.url = "https://fleet.example.org/other";
            other.sha256 = sha256_hex(second);
            REQUIRE(f.flow->start(other, "j2").ok());
            f.m.executor.run_for(60'000);
            CHECK(f.m.http.asked_from.back() == 0);
            CHECK(f.m.updater.slots[1].bytes == second);
        }
        SUBCASE("the same, but the slot was written by something else") {
            f.m.updater.slots[1].bytes.assign(f.m.updater.slots[1].bytes.size(), 'x');
            REQUIRE(f.flow->start(f.order(), "j2").ok());
            f.m.executor.run_for(60'000);
            CHECK(f.m.updater.slots[1].bytes == f.image);
        }
        SUBCASE("the same, but the slot is emptier than noted") {
            f.m.updater.slots[1].bytes.resize(10);
            REQUIRE(f.flow->start(f.order(), "j2").ok());
            f.m.executor.run_for(60'000);
            CHECK(f.m.updater.slots[1].bytes == f.image);
        }
        CHECK(f.m.system.restarts == 1);
    }

    TEST_CASE("an image may be as large as the slot, and no larger") {
        for (const std::uint32_t room : {0u, 1u}) {
            OtaFixture f;
            f.m.updater.slots[1].info.size = static_cast<std::uint32_t>(f.image.size()) - room;
            REQUIRE(f.flow->start(f.order(), "j").ok());
            f.m.executor.run_for(60'000);
            CHECK((f.m.system.restarts == 1) == (room == 0));
        }
    }

    TEST_CASE("a server that is busy for now is asked again") {
        for (const int status : {408, 429, 500, 503}) {
            OtaFixture f;
            f.m.http.get_status = {status};
            REQUIRE(f.flow->start(f.order(), "j").ok());
            f.m.executor.run_for(60'000);
            CHECK_MESSAGE(f.m.system.restarts == 1, status);
        }
        for (const int status : {400, 403, 404, 407, 409, 410, 428, 430, 499}) {
            OtaFixture f;
            f.m.http.get_status = {status};
            REQUIRE(f.flow->start(f.order(), "j").ok());
            f.m.executor.run_for(60'000);
            CHECK_MESSAGE(f.m.http.asked_from.size() == 1, status);
        }
    }

    TEST_CASE("another upgrade after a canceled one begins at 0") {
        OtaFixture f;
        f.m.http.cut_at = {100'000};
        REQUIRE(f.flow->start(f.order(), "j").ok());
        f.m.executor.settle();
        REQUIRE(f.flow->state() == OtaState::waiting);
        f.flow->cancel();
        f.m.executor.run_for(60'000);
        REQUIRE(f.flow->state() == OtaState::idle);
        const std::string second = make_image("3.0.0");
        f.m.http.files["https://fleet.example.org/other"] = second;
        FirmwareOrder other = f.order();
        other.url = "https://fleet.example.org/other";
        other.sha256 = sha256_hex(second);
        REQUIRE(f.flow->start(other, "j2").ok());
        f.m.executor.run_for(60'000);
        CHECK(f.m.http.asked_from == std::vector<std::int64_t>{0, 0});
        CHECK(f.m.updater.slots[1].bytes == second);
    }

    TEST_CASE("a server that is down is asked again, but not for ever") {
        OtaFixture f;
        f.m.http.get_status.assign(100, 503);
        REQUIRE(f.flow->start(f.order(), "j").ok());
        f.m.executor.settle();
        CHECK(f.flow->state() == OtaState::waiting);
        f.m.executor.run_for(3'600'000);
        CHECK(f.m.http.asked_from.size() == OtaFlow::max_attempts);
        CHECK(f.last() == "j upgrade failed unavailable: the server is not able to give the image");
    }

    TEST_CASE("a server that refuses is not asked again") {
        OtaFixture f;
        f.m.http.files.clear();
        REQUIRE(f.flow->start(f.order(), "j").ok());
        f.m.executor.run_for(3'600'000);
        CHECK(f.m.http.asked_from.size() == 1);
        CHECK(f.last() == "j upgrade failed unavailable: the server does not give the image");
    }

    TEST_CASE("cancel, while it runs, while it waits, and when all bytes are there") {
        OtaFixture f;
        SUBCASE("runs") {
            f.m.http.on_piece = [&f] { f.flow->cancel(); };
            REQUIRE(f.flow->start(f.order(), "j").ok());
        }
        SUBCASE("waits") {
            f.m.http.cut_at = {1000};
            REQUIRE(f.flow->start(f.order(), "j").ok());
            f.m.executor.settle();
            f.flow->cancel();
        }
        SUBCASE("all bytes are there") {
            f.m.executor.post([&f] {  // runs before the download: what it posts comes between download and verdict
                f.m.executor.post([&f] { f.flow->cancel(); });
            });
            REQUIRE(f.flow->start(f.order(), "j").ok());
        }
        f.m.executor.run_for(100'000);
        CHECK(f.m.system.restarts == 0);
        CHECK(f.m.updater.next == f.m.updater.current);
        CHECK(f.last() == "j upgrade failed canceled: the upgrade was canceled");
        CHECK(f.flow->start(f.order(), "j2").ok());
    }

    TEST_CASE("signed images only") {
        OtaFixture f;
        f.policy.signed_only = true;
        f.policy.key = public_key(1);
        f.start_flow();
        FirmwareOrder o = f.order();
        const auto manifest = [&](int chip, const char *project, int secure, const char *more) {
            o.manifest = "{\"project\":\"" + std::string(project) +
                         "\",\"version\":\"2.0.0\",\"chip\":" + std::to_string(chip) +
                         ",\"size\":" + std::to_string(f.image.size()) + ",\"sha256\":\"" + sha256_hex(f.image) +
                         "\",\"secure_version\":" + std::to_string(secure) + more + "}";
            o.signature = sign_base64(1, o.manifest);
        };
        CHECK(f.flow->start(o, "j").code == Code::refused);
        manifest(5, "fleet_unit", 1, "");
        CHECK(f.flow->start(o, "j").code == Code::wrong_target);
        manifest(9, "other", 1, "");
        CHECK(f.flow->start(o, "j").code == Code::wrong_target);
        manifest(9, "fleet_unit", 0, "");
        CHECK(f.flow->start(o, "j").code == Code::wrong_target);
        manifest(9, "fleet_unit", 1, ",\"not_before\":9000000000000");
        CHECK(f.flow->start(o, "j").code == Code::refused);
        manifest(9, "fleet_unit", 1, "");
        o.signature = sign_base64(2, o.manifest);
        CHECK(f.flow->start(o, "j").code == Code::corrupt);
        CHECK(f.m.http.asked_from.empty());
        o.signature = sign_base64(1, o.manifest);
        o.sha256 = std::string(64, '0');  // what the order says does not count
        REQUIRE(f.flow->start(o, "j").ok());
        f.m.executor.run_for(10'000);
        CHECK(f.m.system.restarts == 1);
    }

    TEST_CASE("an old image with a good signature is not taken again, except by a signed permission") {
        OtaFixture f;
        f.policy.signed_only = true;
        f.policy.key = public_key(1);
        f.m.system.info.version = "2.4.0";
        f.start_flow();
        FirmwareOrder o = f.order();
        o.force = true;  // the server's wish does not count
        const auto order = [&](const std::string &version, const std::string &more = "") {
            o.manifest = "{\"project\":\"fleet_unit\"," + version +
                         "\"chip\":9,\"size\":" + std::to_string(f.image.size()) + ",\"sha256\":\"" +
                         sha256_hex(f.image) + "\",\"secure_version\":1" + more + "}";
            o.signature = sign_base64(1, o.manifest);
            return f.flow->start(o, "j");
        };
        CHECK(order("\"version\":\"2.3.9\",").code == Code::refused);
        CHECK(order("").code == Code::refused);
        CHECK(order("\"version\":\"new\",").code == Code::refused);
        CHECK(order("\"version\":\"2.3.9\",", ",\"rollback_from\":\"2.3.9\"").code == Code::refused);
        CHECK(order("\"version\":\"2.3.9\",", ",\"rollback_from\":\"\"").code == Code::refused);
        CHECK(f.m.http.asked_from.empty());
        SUBCASE("the permission names the version that it is for") {
            CHECK(order("\"version\":\"2.3.9\",", ",\"rollback_from\":\"2.4.0\"").ok());
        }
        SUBCASE("the same version may be written again") {
            CHECK(order("\"version\":\"2.4.0\",").ok());
        }
        SUBCASE("a newer one needs none") {
            CHECK(order("\"version\":\"2.10.0\",").ok());
        }
    }

    TEST_CASE("a signed statement about other bytes is no help") {
        OtaFixture f;
        f.policy.signed_only = true;
        f.policy.key = public_key(1);
        f.start_flow();
        FirmwareOrder o = f.order();
        o.manifest =
            "{\"project\":\"fleet_unit\",\"version\":\"2.0.0\",\"chip\":9,\"size\":" + std::to_string(f.image.size()) +
            ",\"sha256\":\"" + sha256_hex(f.image) + "\",\"secure_version\":1}";
        o.signature = sign_base64(1, o.manifest);
        f.m.http.files[image_url] = make_image("6.6.6");
        REQUIRE(f.flow->start(o, "j").ok());
        f.m.executor.run_for(10'000);
        CHECK(f.last() == "j upgrade failed corrupt: the image's SHA-256 is not the stated one");
    }

    TEST_CASE("a new image that fails its self-test makes way, and the old one tells why") {
        OtaFixture f;
        REQUIRE(f.flow->start(f.order(), "j").ok());
        f.m.executor.run_for(2'000);
        const char *want = "";
        SUBCASE("self-test") {
            f.self_test = {Code::io, "the sensor is silent"};
            f.reboot();
            want = "j upgrade failed rolled_back: the sensor is silent";
        }
        SUBCASE("no broker") {
            f.reboot();
            f.m.executor.run_for(f.policy.trial_ms);
            want = "j upgrade failed rolled_back: the new image did not get through to the broker";
        }
        SUBCASE("crash") {
            f.reboot();
            want = "j upgrade failed rolled_back: the new image restarted before it had proved itself";
        }
        SUBCASE("mark_valid fails") {
            f.reboot();
            f.m.updater.broken = true;
            f.flow->prove_online();
            want = "j upgrade failed rolled_back: otadata cannot be written";
        }
        f.m.updater.broken = false;
        f.m.executor.run_for(5'000);
        f.reboot();
        CHECK(f.m.updater.current == 0);
        CHECK(f.last() == want);
        CHECK(f.reports.size() == 2);
        CHECK(f.flow->state() == OtaState::idle);
    }

    TEST_CASE("a trial whose store is full fails") {
        OtaFixture f;
        REQUIRE(f.flow->start(f.order(), "j").ok());
        f.m.executor.run_for(2'000);
        f.m.store.full = true;
        f.reboot();
        CHECK(f.flow->state() == OtaState::restarting);
        f.m.store.full = false;
        f.reboot();
        CHECK(f.m.updater.current == 0);
    }

    TEST_CASE("rolling back by hand") {
        OtaFixture f;
        CHECK(f.flow->roll_back("r").code == Code::refused);
        REQUIRE(f.flow->start(f.order(), "j").ok());
        f.m.executor.run_for(2'000);
        f.reboot();
        f.flow->prove_online();
        f.m.updater.cannot_switch = true;
        CHECK(f.flow->roll_back("r").code == Code::io);
        CHECK(f.m.store.values.count("s:ota_want") + f.m.store.values.count("s:ota_job") == 0);
        f.m.updater.cannot_switch = false;
        REQUIRE(f.flow->roll_back("r").ok());
        CHECK(f.last() == "r rollback accepted");
        f.m.executor.run_for(2'000);
        CHECK(f.m.system.restarts == 2);
        f.reboot();
        CHECK(f.m.updater.current == 0);
        CHECK(f.last() == "r rollback done");
    }

    TEST_CASE("states have names") {
        for (int i = 0; i <= static_cast<int>(OtaState::on_trial); i++)
            CHECK(*to_string(static_cast<OtaState>(i)));
    }
}

TEST_SUITE("power") {
    // Cuts the power at the n-th step that changes flash or settings, for every n
    // until an upgrade comes through whole. Whatever the cut, the device comes
    // back on a sound image, and an upgrade ordered again succeeds.
    TEST_CASE("cut at every step of an upgrade") {
        for (int cut = 1;; cut++) {
            OtaFixture f;
            f.m.http.piece = 20'000;
            int steps = 0;
            const auto powerless = [&] { return ++steps > cut; };
            f.m.store.powerless = powerless;
            f.m.updater.powerless = powerless;
            (void)f.flow->start(f.order(), "j");
            f.m.executor.run_for(5'000);
            if (steps <= cut) {
                f.reboot();
                f.flow->prove_online();
            }
            const bool whole = steps <= cut;
            f.m.store.powerless = nullptr;
            f.m.updater.powerless = nullptr;
            for (int boots = 0; boots < 3; boots++)
                f.reboot();
            const SlotState state = f.m.updater.running().state;
            REQUIRE(state == SlotState::valid);
            if (whole) {
                CHECK(f.m.updater.current == 1);
                CHECK(cut > 20);
                break;
            }
            f.m.http.asked_from.clear();
            if (f.m.updater.current == 0) {
                REQUIRE(f.flow->start(f.order(), "again").ok());
                f.m.executor.run_for(5'000);
                f.reboot();
                f.flow->prove_online();
                CHECK(f.last() == "again upgrade done");
            }
            CHECK(f.m.updater.current == 1);
            REQUIRE(cut < 500);
        }
    }
}
