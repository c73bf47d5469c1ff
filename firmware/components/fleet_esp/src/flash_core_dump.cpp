// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/flash_core_dump.hpp"

#include "fleet_esp/status_of.hpp"

#include "esp_core_dump.h"
#include "esp_partition.h"

#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <memory>
#include <new>

namespace fleet::esp {

namespace {

struct Extent {
    std::size_t address = 0;
    std::size_t size = 0;
};

Extent extent() {
    Extent e;
    if (esp_core_dump_image_get(&e.address, &e.size) != ESP_OK) return {};
    return e;
}

void append_backtrace(std::string &line, const esp_core_dump_summary_t &summary) {
#if CONFIG_IDF_TARGET_ARCH_XTENSA
    line += " backtrace";
    char address[16];
    for (std::uint32_t i = 0; i < summary.exc_bt_info.depth && i < 16; ++i) {
        std::snprintf(address, sizeof address, " 0x%08" PRIx32, summary.exc_bt_info.bt[i]);
        line += address;
    }
    if (summary.exc_bt_info.corrupted) line += " (corrupted)";
#else
    // RISC-V keeps a piece of the stack instead; the server unwinds the dump.
    (void)line;
    (void)summary;
#endif
}

void append_reason(std::string &line) {
    char reason[128] = {};
    if (esp_core_dump_get_panic_reason(reason, sizeof reason) != ESP_OK || reason[0] == '\0') return;
    line.append(" reason ").append(reason, strnlen(reason, sizeof reason));
}

}  // namespace

bool FlashCoreDump::present() const {
    if (known_ == Known::no) known_ = esp_core_dump_image_check() == ESP_OK ? Known::present : Known::absent;
    return known_ == Known::present;
}

std::uint32_t FlashCoreDump::size() const {
    return present() ? static_cast<std::uint32_t>(extent().size) : 0;
}

Status FlashCoreDump::read(std::uint32_t offset, MutableBytes into) const {
    const esp_partition_t *partition =
        esp_partition_find_first(ESP_PARTITION_TYPE_DATA, ESP_PARTITION_SUBTYPE_DATA_COREDUMP, nullptr);
    if (partition == nullptr) return {Code::not_found, "this flash has no core dump partition"};
    const Extent e = extent();
    if (offset > e.size || into.size > e.size - offset) return {Code::invalid, "reading behind the core dump's end"};
    const std::size_t start = e.address - partition->address;
    return status_of(esp_partition_read(partition, start + offset, into.data, into.size), "the core dump was not read");
}

std::string FlashCoreDump::summary() const {
    // A kilobyte and more on RISC-V: too large for a stack.
    const std::unique_ptr<esp_core_dump_summary_t> summary(new (std::nothrow) esp_core_dump_summary_t());
    if (summary == nullptr || esp_core_dump_get_summary(summary.get()) != ESP_OK) return {};
    char head[48];
    std::snprintf(head, sizeof head, "task %.16s pc 0x%08" PRIx32, summary->exc_task, summary->exc_pc);
    std::string line = head;
    append_backtrace(line, *summary);
    append_reason(line);
    return line;
}

Status FlashCoreDump::erase() {
    known_ = Known::no;
    return status_of(esp_core_dump_image_erase(), "the core dump was not erased");
}

}  // namespace fleet::esp
