// SPDX-License-Identifier: Apache-2.0
#include "bench.hpp"

#include <doctest/doctest.h>

namespace fleet::test {

namespace {

host::SystemSettings system_of(const host::Booted &booted) {
    host::SystemSettings s;
    s.app = booted.image.app;
    s.chip = {"esp32s3", chip_s3, 2, 2, 8u << 20};
    s.mac = "02:00:00:00:00:01";
    s.partitions = "[]";
    s.heap_size = 300000;
    return s;
}

}  // namespace

Bench::Bench(Parts parts) : system(system_of(booted)) {
    Machine &m = machine;
    m.board.type = "test";
    m.board.name = "bench";
    m.executor = &executor;
    m.clock = &clock;
    m.transport = &transport;
    m.http = &http;
    m.store = &store;
    m.updater = &updater;
    m.system = &system;
    m.network = &network;
    m.core_dump = &core_dump;
    m.crypto = &crypto;
    if (parts != Parts::none) {
        m.display = &display;
        m.speaker = &speaker;
        m.led = &led;
        m.battery = &battery;
        m.camera = &camera;
    }
    fleet.offers_left = 0;
    UnitOptions options;
    options.poll_url = fleet.poll_url();
    unit = std::make_unique<Unit>(machine, options);
    kit.machine = &machine;
    kit.unit = unit.get();
    kit.with_log = [this](FunctionRef<void(LogRing &)> use) { log.with(use); };
    REQUIRE(add_all_tools(unit->tools(), kit, parts == Parts::safe_mode).ok());
    REQUIRE(camera_tool.add(unit->tools(), kit).ok());
    unit->start();
    executor.pump();
    transport.on_state(TransportState::up, {});
    executor.pump();
}

std::string Bench::list(bool with_user_tools) {
    std::string all, cursor;
    do {
        const std::string page =
            request("tools/list", std::string(R"({"withUserTools":)") + (with_user_tools ? "true" : "false") +
                                      R"(,"cursor":")" + cursor + "\"}");
        all += page;
        const std::size_t at = page.find(R"("nextCursor":")");
        cursor = at == std::string::npos ? "" : page.substr(at + 14, page.find('"', at + 14) - at - 14);
    } while (!cursor.empty());
    return all;
}

std::string Bench::request(const std::string &method, const std::string &params, bool as_operator) {
    const std::string id = std::to_string(next_id_++);
    const std::string message = R"({"type":"mcp",)" + std::string(as_operator ? R"("scope":"operator",)" : "") +
                                R"("payload":{"jsonrpc":"2.0","id":)" + id + R"(,"method":")" + method +
                                R"(","params":)" + params + "}}";
    transport.on_message(Bytes{message});
    executor.pump();
    for (const std::string &sent : transport.sent) {
        if (sent.find("\"id\":" + id + ",") != std::string::npos) return sent;
    }
    return "";
}

std::string Bench::call(const std::string &tool, const std::string &arguments, bool as_operator) {
    return request("tools/call", R"({"name":")" + tool + R"(","arguments":)" + arguments + "}", as_operator);
}

}  // namespace fleet::test
