// SPDX-License-Identifier: Apache-2.0
// The firmware that was there before: it knows nothing of fleets.
#pragma once

void start_product();
int product_count();
