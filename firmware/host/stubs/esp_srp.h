// SPDX-License-Identifier: Apache-2.0
// Stub, compared with espressif/esp-idf 9cdf5abe (component protocomm, 2023). See README.md.
#pragma once

#include "esp_err.h"

extern "C" esp_err_t esp_srp_gen_salt_verifier(const char *username, int username_len, const char *pass, int pass_len,
                                               char **bytes_salt, int salt_len, char **verifier, int *verifier_len);
