// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/ota_updater.hpp"

#include "fleet/hex.hpp"
#include "fleet_esp/status_of.hpp"

#include "esp_log.h"

#include <cstring>

namespace fleet::esp {

namespace {

constexpr const char *TAG = "updater";
constexpr std::uint32_t sector = 4096;
constexpr Status no_other_slot{Code::not_found, "this flash has no second app slot"};

const esp_partition_t *other_slot() {
    return esp_ota_get_next_update_partition(nullptr);
}

SlotState state_of(const esp_partition_t *slot) {
    esp_ota_img_states_t state = ESP_OTA_IMG_UNDEFINED;
    if (esp_ota_get_state_partition(slot, &state) != ESP_OK) return SlotState::undefined;
    switch (state) {
        case ESP_OTA_IMG_NEW: return SlotState::fresh;
        case ESP_OTA_IMG_PENDING_VERIFY: return SlotState::pending_verify;
        case ESP_OTA_IMG_VALID: return SlotState::valid;
        case ESP_OTA_IMG_INVALID: return SlotState::invalid;
        case ESP_OTA_IMG_ABORTED: return SlotState::aborted;
        default: return SlotState::undefined;
    }
}

// A field of the description need not be terminated.
template <std::size_t N>
std::string text_of(const char (&field)[N]) {
    return {field, strnlen(field, N)};
}

SlotInfo describe(const esp_partition_t *slot) {
    SlotInfo info;
    info.label = text_of(slot->label);
    info.size = slot->size;
    info.state = state_of(slot);
    esp_app_desc_t desc = {};
    if (esp_ota_get_partition_description(slot, &desc) != ESP_OK) return info;  // never written, or half
    info.version = text_of(desc.version);
    info.elf_sha256 = encode_hex({desc.app_elf_sha256, sizeof desc.app_elf_sha256});
    return info;
}

// esp_ota_end has checked chip, segments, checksum and hash. An image of another
// project is sound as well, but would leave the fleet.
Status check_same_project(const esp_partition_t *slot) {
    esp_app_desc_t desc = {};
    const esp_err_t err = esp_ota_get_partition_description(slot, &desc);
    if (err != ESP_OK) return {Code::corrupt, "the new image has no description"};
    const esp_app_desc_t &own = *esp_app_get_description();
    if (std::strncmp(desc.project_name, own.project_name, sizeof desc.project_name) != 0) {
        return {Code::wrong_target, "the new image is of another project"};
    }
    if (desc.secure_version < own.secure_version) {
        return {Code::wrong_target, "the new image has an older secure version"};
    }
    return {};
}

}  // namespace

SlotInfo OtaUpdater::running() const {
    return describe(esp_ota_get_running_partition());
}

Result<SlotInfo> OtaUpdater::other() const {
    const esp_partition_t *slot = other_slot();
    if (slot == nullptr) return no_other_slot;
    return describe(slot);
}

Status OtaUpdater::begin(std::uint32_t image_size, std::uint32_t resume_from) {
    const esp_partition_t *slot = other_slot();
    if (slot == nullptr) return no_other_slot;
    if (open_) return {Code::busy, "another image is being written"};
    if (image_size > slot->size) return {Code::no_space, "the image is larger than the slot"};
    if (resume_from % sector != 0) return {Code::invalid, "writing resumes only at a sector of 4096 bytes"};
    if (resume_from > image_size) return {Code::invalid, "writing resumes behind the image's end"};
    const esp_err_t err = resume_from > 0 ? esp_ota_resume(slot, OTA_WITH_SEQUENTIAL_WRITES, resume_from, &handle_)
                                          : esp_ota_begin(slot, OTA_WITH_SEQUENTIAL_WRITES, &handle_);
    open_ = err == ESP_OK;
    if (err == ESP_ERR_OTA_ROLLBACK_INVALID_STATE) return {Code::refused, "the running image is not confirmed yet"};
    return status_of(err, "the other slot did not open");
}

Status OtaUpdater::write(Bytes chunk) {
    if (!open_) return {Code::invalid, "no image is being written"};
    return status_of(esp_ota_write(handle_, chunk.data, chunk.size), "writing the image failed");
}

Status OtaUpdater::finish() {
    if (!open_) return {Code::invalid, "no image is being written"};
    open_ = false;  // the handle is gone either way
    const esp_err_t err = esp_ota_end(handle_);
    if (err != ESP_OK) {
        ESP_LOGW(TAG, "the image is not accepted: %s", esp_err_to_name(err));
        return status_of(err, "the image is damaged, not for this chip or not signed");
    }
    return check_same_project(other_slot());
}

void OtaUpdater::abort() {
    if (open_) esp_ota_abort(handle_);
    open_ = false;
}

Status OtaUpdater::read_back(std::uint32_t offset, MutableBytes into) {
    const esp_partition_t *slot = other_slot();
    if (slot == nullptr) return no_other_slot;
    return status_of(esp_partition_read(slot, offset, into.data, into.size), "reading the other slot failed");
}

Status OtaUpdater::boot_other() {
    const esp_partition_t *slot = other_slot();
    if (slot == nullptr) return no_other_slot;
    return status_of(esp_ota_set_boot_partition(slot), "the other slot holds no image that can be booted");
}

Status OtaUpdater::mark_valid() {
    return status_of(esp_ota_mark_app_valid_cancel_rollback(), "the running image was not confirmed");
}

Status OtaUpdater::mark_invalid() {
    if (!esp_ota_check_rollback_is_possible()) return {Code::refused, "there is no image to go back to"};
    return status_of(esp_ota_mark_app_invalid_rollback(), "the running image was not given up");
}

}  // namespace fleet::esp
