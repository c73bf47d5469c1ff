// SPDX-License-Identifier: MIT
// Stub, compared with ESP-IDF 5.5, 6.0. See README.md.
#pragma once

extern "C" void uart_vfs_dev_use_driver(int uart_num);
