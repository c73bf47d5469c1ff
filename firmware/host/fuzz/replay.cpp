// SPDX-License-Identifier: Apache-2.0
// Gives a fuzzer's target each file of a folder, once: what was found stays
// mended, under any compiler and sanitizer.
#include "fuzz.hpp"

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <vector>

int main(int argc, char **argv) {
    if (argc != 2) {
        std::fprintf(stderr, "usage: %s FOLDER\n", argv[0]);
        return 2;
    }
    int files = 0;
    std::error_code failed;
    for (const auto &entry : std::filesystem::directory_iterator(argv[1], failed)) {
        std::ifstream in(entry.path(), std::ios::binary);
        const std::vector<char> bytes{std::istreambuf_iterator<char>(in), {}};
        LLVMFuzzerTestOneInput(reinterpret_cast<const std::uint8_t *>(bytes.data()), bytes.size());
        files++;
    }
    std::printf("%d files\n", files);
    return failed || files == 0 ? 1 : 0;
}
