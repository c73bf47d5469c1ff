// SPDX-License-Identifier: Apache-2.0
#include "device/flash.hpp"

#include "boot/ota_data.hpp"
#include "mkimage/image_writer.hpp"

#include <fcntl.h>
#include <sys/file.h>

namespace fleet::host {

namespace {

constexpr std::uint32_t factory_size = 64 * 1024;
constexpr std::size_t max_image = 16u << 20;

Result<std::string> factory_image(const Options &options, const Board &board) {
    if (!options.image.empty()) return read_file(options.image, max_image);
    ImageSpec spec;
    spec.chip_id = board.chip_info.image_id;
    spec.size = factory_size;
    return make_image(spec);
}

bool is_new(const std::string &state_dir) {
    return !read_file(slot_path(state_dir, 0), max_image).ok() && !read_file(slot_path(state_dir, 1), max_image).ok();
}

Status flash_factory_image(const Options &options, const Board &board) {
    const Result<std::string> image = factory_image(options, board);
    if (!image.ok()) return image.status();
    return replace_file(slot_path(options.state_dir, 0), Bytes{image.value()});
}

}  // namespace

Result<Descriptor> prepare_flash(const Options &options, const Board &board) {
    for (const char *directory : {"", "/kv"}) {
        const Status made = make_directory(options.state_dir + directory);
        if (!made.ok()) return made;
    }
    Descriptor lock{::open((options.state_dir + "/lock").c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
    if (!lock.open()) return disk_failure("the state directory cannot be written");
    if (::flock(lock.get(), LOCK_EX | LOCK_NB) != 0) {
        return Status{Code::busy, "another process runs on this state directory"};
    }
    const Status flashed = is_new(options.state_dir) ? flash_factory_image(options, board) : Status{};
    if (!flashed.ok()) return flashed;
    return lock;
}

}  // namespace fleet::host
