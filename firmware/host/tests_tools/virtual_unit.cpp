// SPDX-License-Identifier: Apache-2.0
#include "virtual_unit.hpp"

#include "boot/bootloader.hpp"

namespace fleet::test {

const char next_program[] = VDEVICE_NEXT;

std::string image_with(const std::string &payload, std::uint32_t size) {
    host::ImageSpec spec;
    spec.chip_id = chip_s3;
    spec.version = "1.1.0";
    spec.payload = payload;
    spec.size = size;
    return host::make_image(spec);
}

std::vector<std::string> command(const StubFleet &fleet, const std::string &state_dir,
                                 const std::vector<std::string> &more) {
    std::vector<std::string> c = {VDEVICE, "--ota-url",  fleet.poll_url(), "--state-dir", state_dir, "--restart-ms",
                                  "200",   "--trial-ms", "3000",           "--id",        "test"};
    c.insert(c.end(), more.begin(), more.end());
    return c;
}

Seen look(const std::string &state_dir) {
    const host::OtaData data = host::load_ota_data(state_dir);
    const auto image = host::read_slot(state_dir, data.boot_slot, chip_s3);
    return {image.ok() ? image.value().app.version : "none", data.states[data.boot_slot],
            data.states[1 - data.boot_slot]};
}

bool settled_on_new(const std::string &state_dir) {
    const Seen seen = look(state_dir);
    return seen.version == "1.1.0" && seen.state == SlotState::valid;
}

bool went_back(const std::string &state_dir, SlotState verdict) {
    const Seen seen = look(state_dir);
    return seen.version == "1.0.0" && seen.state == SlotState::valid && seen.other == verdict;
}

}  // namespace fleet::test
