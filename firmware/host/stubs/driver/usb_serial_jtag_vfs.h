// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-idf 16abaf06 (5.4.0). See README.md.
#pragma once

extern "C" void usb_serial_jtag_vfs_use_driver(void);
