// SPDX-License-Identifier: Apache-2.0
// mkimage writes an application image for a virtual device.
//
//     mkimage --chip esp32s3 --version 1.2.3 [--payload JSON] [--size BYTES]
//             [--project NAME] [--secure-version N] [--elf PROGRAM] FILE
#include "mkimage/image_writer.hpp"
#include "ports/file_io.hpp"

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <utility>

namespace {

using fleet::host::ImageSpec;

struct Chip {
    const char *name;
    std::uint16_t id;
};
constexpr Chip chips[] = {{"esp32", 0}, {"esp32c3", 5}, {"esp32s3", 9}, {"esp32c6", 13}};

bool set_chip(ImageSpec &spec, const char *name) {
    for (const Chip &chip : chips) {
        if (std::strcmp(chip.name, name) != 0) continue;
        spec.chip_id = chip.id;
        return true;
    }
    return false;
}

// A program in place of the JSON: `vdevice --run-elf` runs it.
bool set_program(ImageSpec &spec, const char *file) {
    constexpr std::size_t largest = 15u << 20;
    fleet::Result<std::string> program = fleet::host::read_file(file, largest);
    if (!program.ok()) std::fprintf(stderr, "mkimage: %s: %s\n", file, program.status().why);
    if (program.ok()) spec.payload = std::move(program.value());
    return program.ok();
}

bool set(ImageSpec &spec, const char *option, const char *value) {
    if (std::strcmp(option, "--chip") == 0) return set_chip(spec, value);
    if (std::strcmp(option, "--version") == 0) return spec.version = value, true;
    if (std::strcmp(option, "--project") == 0) return spec.project = value, true;
    if (std::strcmp(option, "--payload") == 0) return spec.payload = value, true;
    if (std::strcmp(option, "--elf") == 0) return set_program(spec, value);
    if (std::strcmp(option, "--size") == 0) {
        return spec.size = static_cast<std::uint32_t>(std::strtoul(value, nullptr, 0)), true;
    }
    if (std::strcmp(option, "--secure-version") == 0) {
        return spec.secure_version = static_cast<std::uint32_t>(std::strtoul(value, nullptr, 0)), true;
    }
    return false;
}

int usage() {
    std::fputs(
        "usage: mkimage --chip NAME --version X.Y.Z [--payload JSON] [--size BYTES] [--project NAME]\n"
        "               [--secure-version N] [--elf PROGRAM] FILE\n",
        stderr);
    return 2;
}

}  // namespace

int main(int argc, char **argv) {
    ImageSpec spec;
    int i = 1;
    for (; i + 1 < argc && argv[i][0] == '-'; i += 2) {
        if (!set(spec, argv[i], argv[i + 1])) return usage();
    }
    if (i != argc - 1 || argv[i][0] == '-') return usage();
    std::string path = argv[i];
    if (path.find('/') == std::string::npos) path = "./" + path;
    const std::string image = fleet::host::make_image(spec);
    const fleet::Status written = fleet::host::replace_file(path, fleet::Bytes{image});
    if (!written.ok()) std::fprintf(stderr, "mkimage: %s: %s\n", path.c_str(), written.why);
    return written.ok() ? 0 : 1;
}
