// SPDX-License-Identifier: Apache-2.0
#include "fleet_esp/nvs_store.hpp"

#include "fleet_esp/status_of.hpp"

#include "esp_check.h"
#include "nvs_flash.h"

namespace fleet::esp {

namespace {

constexpr const char *TAG = "store";
constexpr std::size_t longest_key = 15;

esp_err_t init_flash() {
    const esp_err_t err = nvs_flash_init();
    if (err != ESP_ERR_NVS_NO_FREE_PAGES && err != ESP_ERR_NVS_NEW_VERSION_FOUND) return err;
    ESP_LOGW(TAG, "settings are of another layout (%s): erasing them", esp_err_to_name(err));
    ESP_RETURN_ON_ERROR(nvs_flash_erase(), TAG, "erasing settings");
    return nvs_flash_init();
}

// NVS takes C strings, and answers a key that is too long in several ways.
class Key {
public:
    explicit Key(std::string_view key) : ok_(!key.empty() && key.size() <= longest_key) {
        if (ok_) key.copy(text_, key.size());
    }
    bool ok() const { return ok_; }
    operator const char *() const { return text_; }

private:
    bool ok_;
    char text_[longest_key + 1] = {};
};

constexpr Status bad_key{Code::invalid, "a setting's key has 1 to 15 characters"};

}  // namespace

Status NvsStore::open(const char *name_space) {
    const esp_err_t err = init_flash();
    if (err != ESP_OK) return status_of(err, "the settings' partition is not usable");
    return status_of(nvs_open(name_space, NVS_READWRITE, &handle_), "the settings did not open");
}

Result<std::int64_t> NvsStore::get_int(std::string_view name) {
    const Key key(name);
    if (!key.ok()) return bad_key;
    std::int64_t value = 0;
    const esp_err_t err = nvs_get_i64(handle_, key, &value);
    if (err != ESP_OK) return status_of(err, "the setting was not read");
    return value;
}

Result<std::string> NvsStore::get(std::string_view name) {
    const Key key(name);
    if (!key.ok()) return bad_key;
    std::size_t size = 0;
    esp_err_t err = nvs_get_blob(handle_, key, nullptr, &size);
    if (err != ESP_OK) return status_of(err, "the setting was not read");
    std::string value(size, '\0');
    err = nvs_get_blob(handle_, key, value.data(), &size);
    if (err != ESP_OK) return status_of(err, "the setting was not read");
    value.resize(size);
    return value;
}

Status NvsStore::set_int(std::string_view name, std::int64_t value) {
    const Key key(name);
    if (!key.ok()) return bad_key;
    return status_of(nvs_set_i64(handle_, key, value), "the setting was not written");
}

Status NvsStore::set(std::string_view name, std::string_view value) {
    const Key key(name);
    if (!key.ok()) return bad_key;
    return status_of(nvs_set_blob(handle_, key, value.data(), value.size()), "the setting was not written");
}

Status NvsStore::erase(std::string_view name) {
    const Key key(name);
    if (!key.ok()) return bad_key;
    const esp_err_t err = nvs_erase_key(handle_, key);
    return status_of(err == ESP_ERR_NVS_NOT_FOUND ? ESP_OK : err, "the setting was not erased");
}

Status NvsStore::commit() {
    return status_of(nvs_commit(handle_), "the settings were not committed");
}

}  // namespace fleet::esp
