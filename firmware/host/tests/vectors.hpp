// SPDX-License-Identifier: Apache-2.0
// The shared JSON vectors: texts exchanged with stock devices.
#pragma once

#include "fleet/json.hpp"

#include <string>

namespace fleet::test {

std::string vectors_path(const char *name);  // of a file of vectors/

// load_vectors parses a file of vectors/, or fails the test.
JsonDocument load_vectors(const char *name);

std::string text_of(JsonView v);  // a copy

}  // namespace fleet::test
