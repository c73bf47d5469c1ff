// SPDX-License-Identifier: Apache-2.0
// Stub for 5.5, 6.0, from its documented use; not compared with the header yet. See README.md.
#pragma once

extern "C" void uart_vfs_dev_use_driver(int uart_num);
