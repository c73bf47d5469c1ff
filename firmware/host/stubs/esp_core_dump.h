// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-idf 4714521b (5.3 or 5.4). See README.md.
#pragma once

#include "esp_err.h"
#include "sdkconfig.h"

#include <stdbool.h>
#include <stddef.h>

#if CONFIG_IDF_TARGET_ARCH_XTENSA
typedef struct {
    uint32_t bt[16];
    uint32_t depth;
    bool corrupted;
} esp_core_dump_bt_info_t;
#else
typedef struct {
    uint8_t stackdump[1024];
    uint32_t dump_size;
} esp_core_dump_bt_info_t;
#endif

typedef struct {
    uint32_t exc_tcb;
    char exc_task[16];
    uint32_t exc_pc;
    esp_core_dump_bt_info_t exc_bt_info;
    uint32_t core_dump_version;
    uint8_t app_elf_sha256[10];
} esp_core_dump_summary_t;

extern "C" {
esp_err_t esp_core_dump_image_check(void);
esp_err_t esp_core_dump_image_get(size_t *out_addr, size_t *out_size);
esp_err_t esp_core_dump_image_erase(void);
esp_err_t esp_core_dump_get_summary(esp_core_dump_summary_t *summary);
esp_err_t esp_core_dump_get_panic_reason(char *reason, size_t size);
}
