// SPDX-License-Identifier: Apache-2.0
#include "boot/ota_data.hpp"

#include "ports/file_io.hpp"

#include <cjson/cJSON.h>
#include <cstring>
#include <memory>

namespace fleet::host {

namespace {

struct FreeJson {
    void operator()(cJSON *j) const { cJSON_Delete(j); }
    void operator()(char *s) const { cJSON_free(s); }
};

constexpr SlotState all_states[] = {SlotState::fresh,   SlotState::pending_verify, SlotState::valid,
                                    SlotState::invalid, SlotState::aborted,        SlotState::undefined};

SlotState state_named(const char *name) {
    for (const SlotState s : all_states) {
        if (name != nullptr && std::strcmp(name, to_string(s)) == 0) return s;
    }
    return SlotState::undefined;
}

std::string path_in(const std::string &state_dir) {
    return state_dir + "/otadata.json";
}

}  // namespace

const char *slot_label(int slot) {
    return slot == 0 ? "ota_0" : "ota_1";
}

std::string slot_path(const std::string &state_dir, int slot) {
    return state_dir + (slot == 0 ? "/slot_a.bin" : "/slot_b.bin");
}

OtaData load_ota_data(const std::string &state_dir) {
    const Result<std::string> text = read_file(path_in(state_dir), 4096);
    OtaData data;
    if (!text.ok()) return data;
    const std::unique_ptr<cJSON, FreeJson> root(cJSON_ParseWithLength(text.value().data(), text.value().size()));
    if (!root) return data;
    const char *boot = cJSON_GetStringValue(cJSON_GetObjectItemCaseSensitive(root.get(), "boot"));
    data.boot_slot = boot != nullptr && std::strcmp(boot, slot_label(1)) == 0 ? 1 : 0;
    for (int slot = 0; slot < 2; ++slot) {
        const cJSON *state = cJSON_GetObjectItemCaseSensitive(root.get(), slot_label(slot));
        data.states[slot] = state_named(cJSON_GetStringValue(state));
    }
    const cJSON *count = cJSON_GetObjectItemCaseSensitive(root.get(), "boot_count");
    if (cJSON_IsNumber(count)) data.boot_count = static_cast<std::int64_t>(count->valuedouble);
    return data;
}

Status save_ota_data(const std::string &state_dir, const OtaData &data) {
    const std::unique_ptr<cJSON, FreeJson> root(cJSON_CreateObject());
    cJSON_AddStringToObject(root.get(), "boot", slot_label(data.boot_slot));
    for (int slot = 0; slot < 2; ++slot) {
        cJSON_AddStringToObject(root.get(), slot_label(slot), to_string(data.states[slot]));
    }
    cJSON_AddNumberToObject(root.get(), "boot_count", static_cast<double>(data.boot_count));
    const std::unique_ptr<char, FreeJson> text(cJSON_Print(root.get()));
    return replace_file(path_in(state_dir), Bytes{std::string_view(text.get())});
}

}  // namespace fleet::host
