// SPDX-License-Identifier: Apache-2.0
#include "device/board.hpp"

#include "device/embedded.hpp"
#include "device/partitions.hpp"
#include "fleet/json.hpp"

#include <cstring>

namespace fleet::host {

namespace {

struct Chip {
    const char *model;
    std::uint16_t image_id;
    std::uint8_t cores;
    std::uint16_t revision;
};
constexpr Chip chips[] = {{"esp32", 0, 2, 301}, {"esp32c3", 5, 1, 4}, {"esp32c6", 13, 1, 1}, {"esp32s3", 9, 2, 2}};

Status set_chip(Board &board, std::uint32_t flash_size) {
    for (const Chip &c : chips) {
        if (board.chip != c.model) continue;
        board.chip_info = {board.chip.c_str(), c.image_id, c.cores, c.revision, flash_size};
        return {};
    }
    return {Code::invalid, "the board's chip is not known"};
}

std::uint32_t number(JsonView object, const char *key) {
    return static_cast<std::uint32_t>(object.member(key).integer_or(0));
}

Screen read_screen(JsonView screen) {
    Screen s;
    s.width = static_cast<int>(number(screen, "width"));
    s.height = static_cast<int>(number(screen, "height"));
    s.monochrome = screen.member("monochrome").is_true();
    s.backlight = screen.member("backlight").is_true();
    return s;
}

}  // namespace

Status load_board(const std::string &name, Board &board) {
    const char *text = embedded_board(name);
    if (text == nullptr) return {Code::not_found, "there is no board of this name"};
    const Result<JsonDocument> document = JsonDocument::parse(text);
    if (!document.ok()) return document.status();
    const JsonView root = document.value().root();
    board.name = name;
    board.type = std::string(root.member("type").text());
    board.chip = std::string(root.member("chip").text());
    board.heap_size = number(root, "heap_size");
    board.screen = read_screen(root.member("screen"));
    board.speaker = root.member("speaker").is_true();
    board.led = root.member("led").is_true();
    board.camera = root.member("camera").is_true();
    board.battery = root.member("battery").is_true();
    const char *csv = embedded_partitions(std::string(root.member("partitions").text()));
    const Result<PartitionTable> table = parse_partitions(csv != nullptr ? csv : "");
    if (!table.ok()) return table.status();
    board.partitions = table.value().json;
    board.slot_size = table.value().slot_size;
    return set_chip(board, number(root, "flash_size"));
}

}  // namespace fleet::host
