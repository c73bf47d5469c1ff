// SPDX-License-Identifier: Apache-2.0
#include "ports/slot_updater.hpp"

#include "ports/steps.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

namespace fleet::host {

namespace {
using Guard = std::lock_guard<std::mutex>;
}

SlotUpdater::SlotUpdater(SlotSettings settings, const Booted &booted)
    : settings_(std::move(settings)), slot_(booted.slot), image_(booted.image), data_(booted.data) {}

SlotInfo SlotUpdater::running() const {
    const Guard guard(mutex_);
    return {slot_label(slot_), image_.app.version, image_.app.elf_sha256, settings_.slot_size, data_.states[slot_]};
}

// The other slot may hold nothing that can be read; it is there all the same.
Result<SlotInfo> SlotUpdater::other() const {
    const Guard guard(mutex_);
    SlotInfo info{slot_label(other_slot()), "", "", settings_.slot_size, data_.states[other_slot()]};
    const Result<EspImage> image = read_slot(settings_.state_dir, other_slot(), settings_.chip_id);
    if (image.ok()) {
        info.version = image.value().app.version;
        info.elf_sha256 = image.value().app.elf_sha256;
    }
    return info;
}

Status SlotUpdater::save(const OtaData &next) {
    const Status saved = save_ota_data(settings_.state_dir, next);
    if (saved.ok()) data_ = next;
    return saved;
}

Status SlotUpdater::begin(std::uint32_t image_size, std::uint32_t resume_from) {
    const Guard guard(mutex_);
    if (data_.states[slot_] == SlotState::pending_verify) {
        return {Code::refused, "the running image has not proven itself yet"};
    }
    if (image_size > settings_.slot_size) return {Code::no_space, "the image is larger than the slot"};
    if (resume_from > image_size) return {Code::invalid, "the download would go on behind its end"};
    OtaData next = data_;
    next.states[other_slot()] = SlotState::undefined;  // no rollback to half an image
    const Status saved = save(next);
    if (!saved.ok()) return saved;
    at_step("update.marked");
    size_ = image_size;
    written_ = resume_from;
    return open_other(resume_from);
}

Status SlotUpdater::open_other(std::uint32_t resume_from) {
    const std::string path = slot_path(settings_.state_dir, other_slot());
    file_ = Descriptor{::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600)};
    struct stat about{};
    if (!file_.open() || ::fstat(file_.get(), &about) != 0) return disk_failure("the other slot cannot be opened");
    if (about.st_size < static_cast<off_t>(resume_from)) {
        file_.reset();
        return {Code::invalid, "the other slot holds less than the download would go on from"};
    }
    if (::ftruncate(file_.get(), resume_from) != 0) return disk_failure("the other slot cannot be erased");
    at_step("update.opened");
    return {};
}

Status SlotUpdater::write(Bytes chunk) {
    const Guard guard(mutex_);
    if (!file_.open()) return {Code::invalid, "no update was begun"};
    if (chunk.size > size_ - written_) return {Code::invalid, "more bytes than the image was said to have"};
    const Status done = write_all(file_.get(), chunk, written_);
    if (!done.ok()) return done;
    written_ += static_cast<std::uint32_t>(chunk.size);
    at_step("update.write");
    return {};
}

Result<EspImage> SlotUpdater::check_other() const {
    Result<EspImage> image = read_slot(settings_.state_dir, other_slot(), settings_.chip_id);
    if (image.ok() && image.value().app.secure_version < settings_.secure_version) {
        return Status{Code::wrong_target, "the image's secure version is older than the fuses allow"};
    }
    return image;
}

Status SlotUpdater::finish() {
    const Guard guard(mutex_);
    if (!file_.open()) return {Code::invalid, "no update was begun"};
    const bool synced = ::fsync(file_.get()) == 0;
    file_.reset();
    at_step("update.synced");
    if (!synced) return disk_failure("the other slot cannot be synced");
    if (written_ != size_) return {Code::corrupt, "the image ends early"};
    return check_other().status();
}

void SlotUpdater::abort() {
    const Guard guard(mutex_);
    file_.reset();
}

Status SlotUpdater::read_back(std::uint32_t offset, MutableBytes into) {
    const Guard guard(mutex_);
    const Descriptor file{::open(slot_path(settings_.state_dir, other_slot()).c_str(), O_RDONLY | O_CLOEXEC)};
    if (!file.open()) return {Code::not_found, "the other slot is empty"};
    return read_all(file.get(), into, offset);
}

Status SlotUpdater::boot_other() {
    const Guard guard(mutex_);
    const Result<EspImage> image = check_other();
    if (!image.ok()) return image.status();
    OtaData next = data_;
    next.boot_slot = other_slot();
    next.states[other_slot()] = SlotState::fresh;
    const Status saved = save(next);
    at_step("update.switched");
    return saved;
}

Status SlotUpdater::mark_valid() {
    const Guard guard(mutex_);
    OtaData next = data_;
    next.states[slot_] = SlotState::valid;
    if (next.boot_slot == slot_ && data_.states[slot_] == SlotState::valid) return {};
    const Status saved = save(next);
    at_step("update.valid");
    return saved;
}

Status SlotUpdater::mark_invalid() {
    const Guard guard(mutex_);
    const SlotState before = data_.states[other_slot()];
    if (before == SlotState::invalid || before == SlotState::aborted || !check_other().ok()) {
        return {Code::not_found, "the other slot holds nothing to go back to"};
    }
    OtaData next = data_;
    next.states[slot_] = SlotState::invalid;
    next.boot_slot = other_slot();
    const Status saved = save(next);
    at_step("update.invalid");
    return saved;
}

}  // namespace fleet::host
