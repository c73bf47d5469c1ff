// SPDX-License-Identifier: Apache-2.0
// Stub for 5.5 and 6.0, from the documentation and common use. See README.md.
#pragma once

// Memory that a reset other than power-on leaves as it is.
#define __NOINIT_ATTR
