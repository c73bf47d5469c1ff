// SPDX-License-Identifier: Apache-2.0
// Stub of what idf.py generates or of the version itself. See README.md.
#pragma once

#include "fleet_stub_config.h"
