// SPDX-License-Identifier: Apache-2.0
// Stub of what idf.py generates or of the version itself. See README.md.
#pragma once

#define ESP_IDF_VERSION_VAL(major, minor, patch) (((major) << 16) | ((minor) << 8) | (patch))
#if FLEET_STUB_IDF == 60
#define ESP_IDF_VERSION ESP_IDF_VERSION_VAL(6, 0, 2)
#elif FLEET_STUB_IDF == 55
#define ESP_IDF_VERSION ESP_IDF_VERSION_VAL(5, 5, 3)
#else
#error "define FLEET_STUB_IDF as 55 or 60"
#endif
