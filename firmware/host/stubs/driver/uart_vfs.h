// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-idf 16abaf06 (5.4.0). See README.md.
#pragma once

extern "C" void uart_vfs_dev_use_driver(int uart_num);
