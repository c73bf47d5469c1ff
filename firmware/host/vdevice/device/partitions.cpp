// SPDX-License-Identifier: Apache-2.0
#include "device/partitions.hpp"

#include <cstdlib>

namespace fleet::host {

namespace {

constexpr std::uint32_t first_offset = 0x9000;  // behind bootloader and table
constexpr std::uint32_t app_alignment = 0x10000;
constexpr int type_app = 0, type_data = 1;

struct Named {
    const char *name;
    int value;
};
constexpr Named subtypes[] = {{"factory", 0}, {"ota_0", 0x10},  {"ota_1", 0x11},   {"ota", 0},   {"phy", 1},
                              {"nvs", 2},     {"coredump", 3},  {"nvs_keys", 4},   {"efuse", 5}, {"undefined", 6},
                              {"fat", 0x81},  {"spiffs", 0x82}, {"littlefs", 0x83}};

std::string_view trimmed(std::string_view s) {
    while (!s.empty() && static_cast<unsigned char>(s.front()) <= ' ')
        s.remove_prefix(1);
    while (!s.empty() && static_cast<unsigned char>(s.back()) <= ' ')
        s.remove_suffix(1);
    return s;
}

std::string_view cut(std::string_view &rest, char at) {
    const std::size_t end = rest.find(at);
    const std::string_view piece = rest.substr(0, end);
    rest = end == std::string_view::npos ? std::string_view{} : rest.substr(end + 1);
    return trimmed(piece);
}

// "0x1E0000", "1920K", "2M" or ""
std::uint32_t size_of(std::string_view text) {
    char *end = nullptr;
    const std::string copy(text);
    const auto number = static_cast<std::uint32_t>(std::strtoul(copy.c_str(), &end, 0));
    if (*end == 'K' || *end == 'k') return number << 10;
    if (*end == 'M' || *end == 'm') return number << 20;
    return number;
}

int subtype_of(std::string_view text) {
    for (const Named &s : subtypes) {
        if (text == s.name) return s.value;
    }
    return static_cast<int>(size_of(text));
}

struct Row {
    std::string_view label;
    int type = 0, subtype = 0;
    std::uint32_t offset = 0, size = 0;
    bool is_slot() const { return type == type_app && subtype >= 0x10 && subtype < 0x20; }
};

Row row_of(std::string_view line, std::uint32_t next) {
    Row row;
    row.label = cut(line, ',');
    const std::string_view type = cut(line, ',');
    row.type = type == "app" ? type_app : type == "data" ? type_data : static_cast<int>(size_of(type));
    row.subtype = subtype_of(cut(line, ','));
    row.offset = size_of(cut(line, ','));
    row.size = size_of(cut(line, ','));
    if (row.offset == 0) {
        const std::uint32_t alignment = row.type == type_app ? app_alignment : 0x1000;
        row.offset = (next + alignment - 1) / alignment * alignment;
    }
    return row;
}

void append(std::string &json, const Row &r) {
    if (json.size() > 1) json += ',';
    json += "{\"label\":\"" + std::string(r.label) + "\",\"type\":" + std::to_string(r.type) +
            ",\"subtype\":" + std::to_string(r.subtype) + ",\"address\":" + std::to_string(r.offset) +
            ",\"size\":" + std::to_string(r.size) + "}";
}

}  // namespace

Result<PartitionTable> parse_partitions(std::string_view csv) {
    PartitionTable table;
    table.json = "[";
    std::uint32_t next = first_offset;
    while (!csv.empty()) {
        const std::string_view line = cut(csv, '\n');
        if (line.empty() || line.front() == '#') continue;
        const Row row = row_of(line, next);
        if (row.label.empty() || row.size == 0) return Status{Code::invalid, "a line of the partition table"};
        append(table.json, row);
        next = row.offset + row.size;
        if (row.is_slot()) table.slot_size = row.size;
    }
    table.json += "]";
    if (table.slot_size == 0) return Status{Code::invalid, "the partition table has no slots"};
    return table;
}

}  // namespace fleet::host
