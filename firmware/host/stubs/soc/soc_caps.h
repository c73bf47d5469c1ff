// SPDX-License-Identifier: Apache-2.0
// Stub for 5.5 and 6.0, from the documentation and common use. See README.md.
#pragma once

#include "sdkconfig.h"

#if !CONFIG_IDF_TARGET_ESP32
#define SOC_HMAC_SUPPORTED 1
#define SOC_TEMP_SENSOR_SUPPORTED 1
#define SOC_USB_SERIAL_JTAG_SUPPORTED 1
#endif
