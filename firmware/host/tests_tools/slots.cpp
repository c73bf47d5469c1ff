// SPDX-License-Identifier: Apache-2.0
#include "slots.hpp"

#include <doctest/doctest.h>
#include <algorithm>

namespace fleet::test {

std::string image_of(const std::string &version, std::uint32_t size) {
    host::ImageSpec spec;
    spec.chip_id = chip_s3;
    spec.version = version;
    spec.size = size;
    return host::make_image(spec);
}

void put_file(const std::string &path, const std::string &content) {
    REQUIRE(host::replace_file(path, Bytes{content}).ok());
}

Flash::Flash() {
    put_file(dir / "slot_a.bin", image_of("1.0.0"));
}

host::Booted Flash::boot() const {
    const Result<host::Booted> booted = host::boot(dir.path(), chip_s3);
    REQUIRE_MESSAGE(booted.ok(), booted.status().why);
    return booted.value();
}

host::SlotUpdater Flash::updater(const host::Booted &booted) const {
    return host::SlotUpdater({dir.path(), chip_s3, slot_size, 0}, booted);
}

Status install(host::SlotUpdater &updater, const std::string &image) {
    Status status = updater.begin(static_cast<std::uint32_t>(image.size()), 0);
    for (std::size_t at = 0; status.ok() && at < image.size(); at += 8192) {
        const std::string part = image.substr(at, 8192);
        status = updater.write(Bytes{part});
    }
    if (status.ok()) status = updater.finish();
    if (status.ok()) status = updater.boot_other();
    return status;
}

}  // namespace fleet::test
