// SPDX-License-Identifier: Apache-2.0
#include "support.hpp"

#include "fleet_esp/log_capture.hpp"

#include "esp_log.h"

#include <regex>

TEST_SUITE_BEGIN("log");

TEST_CASE("a line of the log is taken apart") {
    using fleet::LogLevel;
    const auto line = fleet::esp::parse_log_line("W (1234) wifi: not connected: reason 201\n");
    CHECK(line.level == LogLevel::warn);
    CHECK(line.tag == "wifi");
    CHECK(line.text == "not connected: reason 201");
    const auto library = fleet::esp::parse_log_line("E (1) wifi:mode : sta (7c:df)");
    CHECK(library.level == LogLevel::error);
    CHECK(library.tag == "wifi");
    CHECK(library.text == "mode : sta (7c:df)");
    for (const char *odd :
         {"", "plain text", "I (12 wifi: x", ": ) (", "I (1) wifi no colon", "Guru Meditation (x) y: z"}) {
        CHECK(fleet::esp::parse_log_line(odd).tag.empty());
    }
}

namespace {

// Log is the kept log of a chip whose tasks log in pieces.
struct Log {
    Log() {
        fake::reset();
        REQUIRE(fleet::esp::start_log_capture().ok());
        fleet::esp::with_log([this](fleet::LogRing &ring) { from = ring.next(); });
    }
    ~Log() { fake::rtos::current = nullptr; }
    // of writes a piece by one of the tasks.
    void of(int task, const std::string &piece) {
        fake::rtos::current = &tasks[task];
        fake::log::write(piece);
    }
    // kept gives the lines since, each as "level tag: text".
    std::string kept() const {
        std::string lines;
        fleet::esp::with_log([&](fleet::LogRing &ring) {
            char buffer[4096];
            fleet::JsonWriter json(buffer, sizeof buffer);
            ring.tail(json, from, 100);
            lines = json.view();
        });
        static const std::regex line(R"re(\{"n":\d+,"t":\d+,"level":"(\w+)","tag":"([^"]*)","text":"([^"]*)"\})re");
        return std::regex_replace(lines, line, "$1 $2: $3");
    }
    char tasks[6] = {};
    std::uint32_t from = 0;
};

}  // namespace

TEST_CASE("a line in three calls, as the Wi-Fi library logs, is one record") {
    Log log;
    log.of(0, "I (10) wifi:");
    log.of(0, "state: init -> auth (0xb0)");
    log.of(0, "\n");
    log.of(0, "E (11) wifi:sta is connecting, return error\n");
    log.of(0, "\n");
    CHECK(log.kept() == "[info wifi: state: init -> auth (0xb0),error wifi: sta is connecting, return error]");
    CHECK(fake::log::text == "I (10) wifi:state: init -> auth (0xb0)\nE (11) wifi:sta is connecting, return error\n\n");
}

TEST_CASE("a level by tag holds for the Wi-Fi library, too") {
    Log log;
    fleet::esp::with_log([](fleet::LogRing &ring) { CHECK(ring.set_tag_level("wifi", fleet::LogLevel::warn)); });
    for (const std::string level : {"I", "W"}) {
        log.of(0, level + " (1) wifi:");
        log.of(0, "text");
        log.of(0, "\n");
    }
    fleet::esp::with_log([](fleet::LogRing &ring) { CHECK(ring.set_tag_level("wifi", fleet::LogLevel::info)); });
    CHECK(log.kept() == "[warn wifi: text]");
}

TEST_CASE("lines of tasks that log at the same time do not mix") {
    Log log;
    for (int task : {0, 1, 2})
        log.of(task, "W (1) t" + std::to_string(task) + ":");
    for (int task : {2, 0, 1})
        log.of(task, "line of " + std::to_string(task));
    for (int task : {1, 2, 0})
        log.of(task, "\n");
    CHECK(log.kept() == "[warn t1: line of 1,warn t2: line of 2,warn t0: line of 0]");
}

TEST_CASE("a line that does not end is kept all the same") {
    Log log;
    log.of(0, "I (1) a:first");
    log.of(0, "I (2) a: second\n");  // the task begins another one
    for (int task : {1, 2, 3, 4})
        log.of(task, "I (3) b:of " + std::to_string(task));  // more than there is room for: the oldest ends
    log.of(5, "E (4) c: " + std::string(1000, 'x') + "\n");
    const std::string kept = log.kept();
    CHECK(kept.find("[info a: first,info a: second,info b: of 1,info b: of 2,error c: xxx") == 0);
    log.of(3, " goes on\n");
    log.of(4, "\n");
    CHECK(log.kept().substr(kept.size() - 1) == ",info b: of 3 goes on,info b: of 4]");
}

TEST_CASE("what is logged is kept, and printed as before") {
    fake::reset();
    REQUIRE(fleet::esp::start_log_capture().ok());
    ESP_LOGW("test", "kept %d", 42);
    ESP_LOGE("test", "%s", std::string(1000, 'x').c_str());
    char buffer[1024];
    fleet::JsonWriter json(buffer, sizeof buffer);
    fleet::esp::with_log([&](fleet::LogRing &ring) { ring.tail(json, ring.next() - 2, 2); });
    const std::string kept(json.view());
    CHECK(kept.find("kept 42") != std::string::npos);
    CHECK(kept.find("xxxx") != std::string::npos);
    CHECK(fake::log::text.find("W (1234) test: kept 42\n") != std::string::npos);
}

TEST_SUITE_END();
