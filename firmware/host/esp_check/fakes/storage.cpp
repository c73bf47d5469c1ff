// SPDX-License-Identifier: Apache-2.0
// NVS, partitions, OTA slots and core dumps.
#include "fakes.hpp"

#include "nvs_flash.h"

#include <cstring>

namespace fake::nvs {
std::map<std::string, Value> values;
esp_err_t init_result = ESP_OK, write_result = ESP_OK;
int erases = 0, commits = 0;
}  // namespace fake::nvs

namespace fake::ota {
std::vector<Slot> slots;
const esp_partition_t *boots = nullptr;
std::size_t erase_mode = 0, resumed_at = 0;
esp_err_t begin_result = ESP_OK, write_result = ESP_OK, end_result = ESP_OK, boot_result = ESP_OK;
bool rollback_possible = true, marked_valid = false, marked_invalid = false, aborted = false;

void describe(Slot &slot, const char *project, const char *version, std::uint32_t secure_version) {
    slot.desc = {};
    std::strncpy(slot.desc.project_name, project, sizeof slot.desc.project_name);
    std::strncpy(slot.desc.version, version, sizeof slot.desc.version);
    std::memset(slot.desc.app_elf_sha256, 0xab, sizeof slot.desc.app_elf_sha256);
    slot.desc.secure_version = secure_version;
    slot.described = true;
}
}  // namespace fake::ota

namespace fake::core_dump {
bool present = false;
int checks = 0;
std::string bytes, reason;
esp_core_dump_summary_t summary = {};
}  // namespace fake::core_dump

using namespace fake;

namespace {

constexpr std::size_t dump_offset = 8;  // of the image in its partition

esp_partition_t dump_partition = {
    nullptr, ESP_PARTITION_TYPE_DATA, ESP_PARTITION_SUBTYPE_DATA_COREDUMP, 0x13000, 0x10000, 4096, "coredump", false,
    false};

ota::Slot *slot_of(const esp_partition_t *partition) {
    for (ota::Slot &slot : ota::slots) {
        if (&slot.partition == partition) return &slot;
    }
    return nullptr;
}

std::vector<const esp_partition_t *> all_partitions() {
    std::vector<const esp_partition_t *> all = {&dump_partition};
    for (const ota::Slot &slot : ota::slots)
        all.push_back(&slot.partition);
    return all;
}

}  // namespace

struct esp_partition_iterator_opaque_ {
    std::size_t next;
};

extern "C" {

esp_err_t nvs_flash_init(void) {
    return nvs::init_result;
}
esp_err_t nvs_flash_erase(void) {
    ++nvs::erases;
    nvs::values.clear();
    nvs::init_result = ESP_OK;
    return ESP_OK;
}
esp_err_t nvs_open(const char *, nvs_open_mode_t, nvs_handle_t *handle) {
    *handle = 1;
    return ESP_OK;
}
esp_err_t nvs_get_i64(nvs_handle_t, const char *key, int64_t *out) {
    const auto at = nvs::values.find(key);
    if (at == nvs::values.end() || !at->second.is_int) return ESP_ERR_NVS_NOT_FOUND;
    *out = at->second.number;
    return ESP_OK;
}
esp_err_t nvs_set_i64(nvs_handle_t, const char *key, int64_t value) {
    if (nvs::write_result == ESP_OK) nvs::values[key] = {true, value, {}};
    return nvs::write_result;
}
esp_err_t nvs_get_blob(nvs_handle_t, const char *key, void *out, size_t *length) {
    const auto at = nvs::values.find(key);
    if (at == nvs::values.end() || at->second.is_int) return ESP_ERR_NVS_NOT_FOUND;
    const std::string &blob = at->second.blob;
    if (out != nullptr && *length < blob.size()) return ESP_ERR_NVS_INVALID_LENGTH;
    if (out != nullptr) blob.copy(static_cast<char *>(out), blob.size());
    *length = blob.size();
    return ESP_OK;
}
esp_err_t nvs_set_blob(nvs_handle_t, const char *key, const void *value, size_t length) {
    if (nvs::write_result == ESP_OK)
        nvs::values[key] = {false, 0, std::string(static_cast<const char *>(value), length)};
    return nvs::write_result;
}
esp_err_t nvs_erase_key(nvs_handle_t, const char *key) {
    return nvs::values.erase(key) == 0 ? ESP_ERR_NVS_NOT_FOUND : ESP_OK;
}
esp_err_t nvs_commit(nvs_handle_t) {
    ++nvs::commits;
    return ESP_OK;
}

esp_partition_iterator_t esp_partition_find(esp_partition_type_t, esp_partition_subtype_t, const char *) {
    return all_partitions().empty() ? nullptr : new esp_partition_iterator_opaque_{0};
}
const esp_partition_t *esp_partition_get(esp_partition_iterator_t it) {
    return all_partitions()[it->next];
}
esp_partition_iterator_t esp_partition_next(esp_partition_iterator_t it) {
    if (++it->next < all_partitions().size()) return it;
    delete it;  // as the real one does at the end
    return nullptr;
}
void esp_partition_iterator_release(esp_partition_iterator_t it) {
    delete it;
}
const esp_partition_t *esp_partition_find_first(esp_partition_type_t, esp_partition_subtype_t subtype, const char *) {
    return subtype == ESP_PARTITION_SUBTYPE_DATA_COREDUMP ? &dump_partition : nullptr;
}
esp_err_t esp_partition_read(const esp_partition_t *partition, size_t offset, void *dst, size_t size) {
    const ota::Slot *slot = slot_of(partition);
    const std::string flash = slot != nullptr ? slot->flash : std::string(dump_offset, '\xff') + core_dump::bytes;
    if (offset + size > flash.size()) return ESP_ERR_INVALID_SIZE;
    flash.copy(static_cast<char *>(dst), size, offset);
    return ESP_OK;
}

const esp_partition_t *esp_ota_get_running_partition(void) {
    return &ota::slots.at(0).partition;
}
const esp_partition_t *esp_ota_get_next_update_partition(const esp_partition_t *) {
    return ota::slots.size() > 1 ? &ota::slots[1].partition : nullptr;
}
esp_err_t esp_ota_begin(const esp_partition_t *partition, size_t size, esp_ota_handle_t *handle) {
    if (ota::begin_result != ESP_OK) return ota::begin_result;
    ota::erase_mode = size;
    slot_of(partition)->flash.clear();
    *handle = 7;
    return ESP_OK;
}
esp_err_t esp_ota_resume(const esp_partition_t *partition, const size_t erase, const size_t offset,
                         esp_ota_handle_t *handle) {
    if (ota::begin_result != ESP_OK) return ota::begin_result;
    ota::erase_mode = erase;
    ota::resumed_at = offset;
    slot_of(partition)->flash.resize(offset);
    *handle = 7;
    return ESP_OK;
}
esp_err_t esp_ota_write(esp_ota_handle_t, const void *data, size_t size) {
    if (ota::write_result == ESP_OK) ota::slots[1].flash.append(static_cast<const char *>(data), size);
    return ota::write_result;
}
esp_err_t esp_ota_end(esp_ota_handle_t) {
    return ota::end_result;
}
esp_err_t esp_ota_abort(esp_ota_handle_t) {
    ota::aborted = true;
    return ESP_OK;
}
esp_err_t esp_ota_set_boot_partition(const esp_partition_t *partition) {
    if (ota::boot_result == ESP_OK) ota::boots = partition;
    return ota::boot_result;
}
esp_err_t esp_ota_get_partition_description(const esp_partition_t *partition, esp_app_desc_t *desc) {
    const ota::Slot *slot = slot_of(partition);
    if (!slot->described) return ESP_ERR_NOT_FOUND;
    *desc = slot->desc;
    return ESP_OK;
}
const esp_app_desc_t *esp_app_get_description(void) {
    return &ota::slots.at(0).desc;
}
esp_err_t esp_ota_get_state_partition(const esp_partition_t *partition, esp_ota_img_states_t *state) {
    *state = slot_of(partition)->state;
    return ESP_OK;
}
esp_err_t esp_ota_mark_app_valid_cancel_rollback(void) {
    ota::marked_valid = true;
    ota::slots[0].state = ESP_OTA_IMG_VALID;
    return ESP_OK;
}
esp_err_t esp_ota_mark_app_invalid_rollback(void) {
    ota::marked_invalid = true;
    return ESP_OK;
}
bool esp_ota_check_rollback_is_possible(void) {
    return ota::rollback_possible;
}

esp_err_t esp_core_dump_image_check(void) {
    ++core_dump::checks;
    return core_dump::present ? ESP_OK : ESP_ERR_INVALID_CRC;
}
esp_err_t esp_core_dump_image_get(size_t *address, size_t *size) {
    if (!core_dump::present) return ESP_ERR_NOT_FOUND;
    *address = dump_partition.address + dump_offset;
    *size = core_dump::bytes.size();
    return ESP_OK;
}
esp_err_t esp_core_dump_image_erase(void) {
    core_dump::present = false;
    return ESP_OK;
}
esp_err_t esp_core_dump_get_summary(esp_core_dump_summary_t *summary) {
    if (!core_dump::present) return ESP_ERR_NOT_FOUND;
    *summary = core_dump::summary;
    return ESP_OK;
}
esp_err_t esp_core_dump_get_panic_reason(char *reason, size_t size) {
    if (core_dump::reason.empty()) return ESP_ERR_NOT_FOUND;
    std::strncpy(reason, core_dump::reason.c_str(), size);
    return ESP_OK;
}
}
