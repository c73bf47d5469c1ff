// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"
#include "picture/codec.hpp"
#include "script_server.hpp"

#include <doctest/doctest.h>

using namespace fleet;
using namespace fleet::test;

namespace {

bool has(const std::string &text, const std::string &part) {
    return text.find(part) != std::string::npos;
}
bool is_true(const std::string &answer) {
    return has(answer, R"("text":"true")") && !has(answer, "\"isError\":true");
}
bool is_refused(const std::string &answer) {
    return has(answer, "\"isError\":true") || has(answer, "\"error\":");
}

ScriptServer::Script upload(const std::string &status, std::string &got) {
    return [status, &got](Peer &peer) {
        got = peer.read_until("\r\n0\r\n\r\n");
        peer.send("HTTP/1.1 " + status + "\r\nContent-Length: 2\r\n\r\nok");
    };
}

ScriptServer::Script file(const std::string &body, bool with_length = true) {
    return [body, with_length](Peer &peer) {
        peer.read_until("\r\n\r\n");
        peer.send("HTTP/1.1 200 OK\r\n" +
                  (with_length ? "Content-Length: " + std::to_string(body.size()) : std::string("X: y")) + "\r\n\r\n" +
                  body);
    };
}

std::string url_argument(const std::string &url) {
    return R"({"url":")" + url + "\"}";
}

}  // namespace

TEST_SUITE("tools") {
    TEST_CASE("a board lists what it has parts for") {
        Bench full, bare(Bench::Parts::none);
        std::string all = full.list(), few = bare.list();
        for (const char *name : {"self.audio_speaker.set_volume", "self.screen.set_brightness", "self.screen.set_theme",
                                 "self.led.set_rgb", "self.screen.snapshot", "self.screen.preview_image"}) {
            CHECK_MESSAGE(has(all, name), name);
            CHECK_MESSAGE(!has(few, name), name);
        }
        for (const char *name :
             {"self.get_device_status", "self.get_system_info", "self.reboot", "self.upgrade_firmware", "self.rollback",
              "self.config.set", "self.logs.tail", "self.core_dump.upload"}) {
            CHECK_MESSAGE(has(few, name), name);
        }
        CHECK_FALSE(has(full.list(false), "self.reboot"));
    }

    TEST_CASE("in safe mode there is only what helps a device that keeps crashing") {
        Bench bench(Bench::Parts::safe_mode);
        const std::string list = bench.list();
        for (const char *name : {"self.get_device_status", "self.get_system_info", "self.reboot",
                                 "self.upgrade_firmware", "self.rollback", "self.logs.tail", "self.logs.set_level",
                                 "self.logs.stream", "self.core_dump.get_info", "self.core_dump.upload"}) {
            CHECK_MESSAGE(has(list, name), name);
        }
        for (const char *name : {"self.audio_speaker.set_volume", "self.screen.set_theme", "self.screen.snapshot",
                                 "self.led.set_rgb", "self.config.set"}) {
            CHECK_MESSAGE(!has(list, name), name);
            CHECK(has(bench.call(name), "Unknown tool"));
        }
    }

    TEST_CASE("what disrupts or reveals needs an operator") {
        Bench bench;
        for (const char *name : {"self.reboot", "self.upgrade_firmware", "self.rollback", "self.config.set",
                                 "self.logs.tail", "self.get_system_info", "self.core_dump.upload"}) {
            CHECK_MESSAGE(has(bench.call(name, "{}", false), "-32001"), name);
        }
        CHECK(has(bench.call("self.get_device_status", "{}", false), "audio_speaker"));
    }

    TEST_CASE("what is set shows in the status, and is set again after a restart") {
        Bench bench;
        CHECK(is_true(bench.call("self.audio_speaker.set_volume", R"({"volume":12})")));
        CHECK(is_true(bench.call("self.screen.set_brightness", R"({"brightness":34})")));
        CHECK(is_true(bench.call("self.screen.set_theme", R"({"theme":"dark"})")));
        CHECK(is_refused(bench.call("self.screen.set_theme", R"({"theme":"pink"})")));
        CHECK(has(bench.call("self.audio_speaker.set_volume", R"({"volume":101})"), "-32602"));
        const std::string status = bench.call("self.get_device_status");
        CHECK(has(status, R"(\"volume\":12)"));
        CHECK(has(status, R"(\"brightness\":34,\"theme\":\"dark\")"));
        REQUIRE(bench.speaker.set_volume(99).ok());
        restore_settings(bench.machine);
        CHECK(bench.speaker.volume() == 12);
    }

    TEST_CASE("the LED takes its colour") {
        Bench bench;
        CHECK(is_true(bench.call("self.led.set_rgb", R"({"r":255,"g":16,"b":1})")));
        CHECK(bench.led.rgb() == 0xff1001);
        CHECK(is_refused(bench.call("self.led.set_rgb", R"({"r":255,"g":16})")));
    }

    TEST_CASE("system information is the body of the poll") {
        Bench bench;
        const std::string info = bench.call("self.get_system_info");
        CHECK(has(info, bench.booted.image.app.elf_sha256));
        CHECK(has(info, R"(\"display\":{\"monochrome\":false,\"width\":160,\"height\":120})"));
    }

    TEST_CASE("a snapshot goes up, and the answer waits for it") {
        Bench bench;
        std::string got;
        SUBCASE("as JPEG") {
            ScriptServer server({upload("200 OK", got)});
            CHECK(is_true(bench.call("self.screen.snapshot", url_argument(server.url("/u/1")))));
            server.wait();
            CHECK(has(got, "screenshot.jpg"));
            CHECK(has(got, "\xff\xd8"));
        }
        SUBCASE("as PNG") {
            ScriptServer server({upload("200 OK", got)});
            CHECK(
                is_true(bench.call("self.screen.snapshot", R"({"format":"png","url":")" + server.url("/u/1") + "\"}")));
            server.wait();
            CHECK(has(got, "\x89PNG"));
        }
        SUBCASE("refused by the server") {
            ScriptServer server({upload("403 Forbidden", got)});
            CHECK(has(bench.call("self.screen.snapshot", url_argument(server.url("/u/1"))),
                      "unexpected status code: 403"));
        }
        SUBCASE("to a stranger") {
            CHECK(is_refused(bench.call("self.screen.snapshot", url_argument("http://192.0.2.1/u"))));
            CHECK(is_refused(bench.call("self.screen.snapshot", url_argument("file:///etc/passwd"))));
        }
        SUBCASE("as a film") {
            CHECK(is_refused(bench.call("self.screen.snapshot", R"({"format":"gif","url":"http://127.0.0.1/"})")));
        }
    }

    TEST_CASE("a picture is fetched and shown") {
        Bench bench;
        host::Canvas red(16, 12);
        red.fill(0, 0, 16, 12, {250, 0, 0});
        const std::string jpeg = host::encode_jpeg(red, 90).value();
        const auto preview = [&](ScriptServer::Script script) {
            ScriptServer server({std::move(script)});
            return bench.call("self.screen.preview_image", url_argument(server.url("/p.jpg")));
        };
        CHECK(is_true(preview(file(jpeg))));
        CHECK(is_refused(preview(file(jpeg, false))));
        CHECK(is_refused(preview(file("no picture"))));
        bench.kit.picture_bytes = 100;
        CHECK(has(preview(file(jpeg)), "too large"));
    }

    TEST_CASE("a core dump goes up, and is erased if asked to") {
        Bench bench;
        CHECK(has(bench.call("self.core_dump.get_info"), R"(\"present\":false)"));
        CHECK(is_refused(bench.call("self.core_dump.upload", url_argument("http://127.0.0.1/"))));
        put_file(bench.flash.dir / "coredump.bin", "task main, pc 0x1\n" + std::string(5000, 'd'));
        CHECK(has(bench.call("self.core_dump.get_info"), "task main, pc 0x1"));
        std::string got;
        {
            ScriptServer failing({upload("500 Oops", got)});
            CHECK(is_refused(
                bench.call("self.core_dump.upload", R"({"erase":true,"url":")" + failing.url("/c") + "\"}")));
        }
        CHECK(bench.core_dump.present());
        ScriptServer server({upload("200 OK", got)});
        CHECK(is_true(bench.call("self.core_dump.upload", R"({"erase":true,"url":")" + server.url("/c") + "\"}")));
        server.wait();
        CHECK(has(got, std::string(1000, 'd')));
        CHECK_FALSE(bench.core_dump.present());
    }

    TEST_CASE("configuration is taken whole or not at all") {
        Bench bench;
        const auto set = [&](const std::string &document) {
            return bench.call("self.config.set", R"({"document":")" + document + "\"}");
        };
        CHECK(has(set(R"({\"version\":1,\"values\":{\"heartbeat_s\":30}})"), R"(\"heartbeat_s\":30)"));
        CHECK(has(bench.call("self.config.get"), R"(\"on_trial\":true)"));
        CHECK(is_refused(set(R"({\"version\":1,\"values\":{}})")));
        CHECK(is_refused(set(R"({\"version\":2,\"values\":{\"heartbeat_s\":1}})")));
        CHECK(has(set(R"({\"version\":2,\"values\":{\"colour\":1}})"), "Unknown setting: colour"));
        CHECK(is_refused(set("{")));
        CHECK(has(bench.call("self.config.get"), R"(\"version\":1)"));
    }

    TEST_CASE("the log is read from its end, or from a number") {
        Bench bench;
        for (int i = 0; i < 10; ++i)
            bench.log.write(LogLevel::info, "t", "line " + std::to_string(i));
        const std::string last = bench.call("self.logs.tail", R"({"lines":2})");
        CHECK(has(last, "line 9"));
        CHECK_FALSE(has(last, "line 7"));
        CHECK(has(bench.call("self.logs.tail", R"({"from":3,"lines":1})"), "line 3"));
        CHECK(is_true(bench.call("self.logs.set_level", R"({"level":"error"})")));
        bench.log.write(LogLevel::info, "t", "not wanted");
        CHECK_FALSE(has(bench.call("self.logs.tail", R"({"lines":5})"), "not wanted"));
        CHECK(is_refused(bench.call("self.logs.set_level", R"({"level":"loud"})")));
    }

    TEST_CASE("new lines are sent as they come, for a time") {
        Bench bench;
        const auto sent_log = [&bench] {
            bench.transport.sent.clear();
            bench.executor.later();
            std::string all;
            for (const std::string &m : bench.transport.sent) {
                if (has(m, "notifications/log")) all += m;
            }
            return all;
        };
        bench.log.write(LogLevel::info, "t", "before");
        CHECK(is_refused(bench.call("self.logs.stream", R"({"seconds":601})")));
        CHECK(is_refused(bench.call("self.logs.stream", R"({"seconds":1,"level":"loud"})")));
        CHECK(is_true(bench.call("self.logs.stream", R"({"seconds":600})")));
        CHECK(sent_log() == "");
        bench.log.write(LogLevel::info, "t", "line \"one\"");
        bench.log.write(LogLevel::warn, "t", "line two");
        const std::string first = sent_log();
        CHECK(has(first, R"("tag":"t","text":"line \"one\""})"));
        CHECK(has(first, "line two"));
        CHECK(has(first, R"("dropped":0}})"));
        CHECK_FALSE(has(first, "before"));
        CHECK(sent_log() == "");

        CHECK(is_true(bench.call("self.logs.stream", R"({"seconds":600,"level":"warn"})")));
        bench.log.write(LogLevel::info, "t", "too quiet");
        bench.log.write(LogLevel::error, "t", "loud");
        const std::string second = sent_log();
        CHECK(has(second, "loud"));
        CHECK_FALSE(has(second, "too quiet"));

        for (int i = 0; i < 40; ++i)
            bench.log.write(LogLevel::error, "t", std::string(100, 'x') + std::to_string(i));
        const std::string third = sent_log(), fourth = sent_log();
        CHECK(third.size() <= 2048);
        CHECK(has(third, "x0\""));
        CHECK_FALSE(has(fourth, "x0\""));
        CHECK(has(fourth, "xxxx"));

        CHECK(is_true(bench.call("self.logs.stream", R"({"seconds":0})")));
        bench.log.write(LogLevel::error, "t", "unheard");
        CHECK(sent_log() == "");
        CHECK(sent_log() == "");
    }

    TEST_CASE("upgrades and the way back say what is wrong with them") {
        Bench bench;
        CHECK(has(bench.call("self.upgrade_firmware"), "url"));
        CHECK(is_refused(bench.call("self.upgrade_firmware", url_argument("http://192.0.2.1/fw.bin"))));
        CHECK(is_refused(bench.call("self.rollback", R"({"expected_sha256":"00"})")));
        CHECK(is_refused(bench.call("self.rollback")));  // nothing there
    }

    TEST_CASE("an upgrade names its job and reports its end") {
        Bench bench;
        ScriptServer server({file("this is no image, " + std::string(500, 'x'))});
        const std::string answer =
            bench.call("self.upgrade_firmware", R"({"job":"j-1","url":")" + server.url("/fw.bin") + "\"}");
        CHECK(has(answer, R"(\"job\":\"j-1\")"));
        std::string all;
        for (const std::string &sent : bench.transport.sent)
            all += sent;
        CHECK(has(all, R"("state":"accepted")"));
        CHECK(has(all, R"("state":"failed")"));
        CHECK(bench.updater.running().version == "1.0.0");
    }
}
