// SPDX-License-Identifier: Apache-2.0
#include "vectors.hpp"

#include <doctest/doctest.h>

#include <cstdio>
#include <utility>

namespace fleet::test {

std::string vectors_path(const char *name) {
    return std::string(FLEET_VECTORS) + "/" + name;
}

JsonDocument load_vectors(const char *name) {
    const std::string path = vectors_path(name);
    std::FILE *file = std::fopen(path.c_str(), "rb");
    REQUIRE_MESSAGE(file != nullptr, path);
    std::string text;
    char buffer[4096];
    for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, file)) > 0;)
        text.append(buffer, n);
    std::fclose(file);
    Result<JsonDocument> document = JsonDocument::parse(text, {1 << 20, 16, 10000});
    REQUIRE_MESSAGE(document.ok(), path);
    return std::move(document.value());
}

std::string text_of(JsonView v) {
    return std::string(v.text());
}

}  // namespace fleet::test
