// SPDX-License-Identifier: MIT
// Stub, compared with ESP-IDF 5.5, 6.0. See README.md.
#pragma once

extern "C" void usb_serial_jtag_vfs_use_driver(void);
