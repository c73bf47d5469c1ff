// SPDX-License-Identifier: Apache-2.0
#include "fleet/download.hpp"

#include "fleet/hex.hpp"

#include <cstring>
#include <utility>

namespace fleet {

Download::Download(const Machine &machine, const DownloadPlan &plan, const std::atomic<bool> &cancel, Progress progress)
    : machine_(machine), plan_(plan), cancel_(cancel), progress_(std::move(progress)) {}

DownloadResult Download::run() {
    sum_ = machine_.crypto->sha256();
    DownloadResult result;
    if (!sum_) {
        result.status = {Code::no_memory, "no memory for the image's hash"};
        return result;
    }
    const Result<HttpResponse> response = machine_.http->get(
        plan_.url, plan_.from, [this](const HttpResponse &r) { return begin(r); }, [this](Bytes b) { return take(b); });
    result.status = settle(response);
    const Code code = result.status.code;
    result.again = start_over_ || (!gone_ && (code == Code::unavailable || code == Code::timeout));
    result.written = start_over_ ? 0 : written_;
    result.etag = start_over_ ? "" : etag_;
    result.head = image_;
    if (!result.status.ok() && begun_) machine_.updater->abort();
    return result;
}

Status Download::settle(const Result<HttpResponse> &response) {
    if (!response.ok()) return response.status();
    if (!begun_) return {Code::corrupt, "the image ends inside its header"};
    if (written_ != total_) return {Code::unavailable, "the download was cut short"};
    return complete();
}

Status Download::begin(const HttpResponse &response) {
    const int status = response.status;
    if (status == 206 && plan_.from > 0) return begin_rest(response);
    if (status == 200) return begin_whole(response);
    if (status == 416) {  // what we have is longer than what there is
        start_over_ = true;
        return {Code::corrupt, "the image changed on the server"};
    }
    gone_ = status < 500 && status != 408 && status != 429;
    return {Code::unavailable,
            gone_ ? "the server does not give the image" : "the server is not able to give the image"};
}

Status Download::begin_whole(const HttpResponse &response) {
    if (response.content_length < static_cast<std::int64_t>(kImageHead) || response.content_length > UINT32_MAX) {
        return {Code::corrupt, "the image's length is missing or impossible"};
    }
    total_ = static_cast<std::uint32_t>(response.content_length);
    etag_ = response.etag;
    return check_size();
}

Status Download::begin_rest(const HttpResponse &response) {
    start_over_ = true;  // until everything fits together
    if (response.etag != plan_.etag) return {Code::corrupt, "the image changed on the server"};
    if (response.content_length <= 0 || response.content_length > UINT32_MAX - plan_.from) {
        return {Code::corrupt, "the rest's length is missing or impossible"};
    }
    total_ = plan_.from + static_cast<std::uint32_t>(response.content_length);
    etag_ = response.etag;
    if (Status s = check_size(); !s.ok()) return s;
    if (Status s = reread(); !s.ok()) return s;
    if (Status s = machine_.updater->begin(total_, plan_.from); !s.ok()) return s;
    start_over_ = false;
    begun_ = true;
    return {};
}

Status Download::check_size() const {
    const Result<SlotInfo> slot = machine_.updater->other();
    if (!slot.ok()) return slot.status();
    if (total_ > slot.value().size) return {Code::no_space, "the image is larger than the slot"};
    if (plan_.size > 0 && plan_.size != total_) return {Code::corrupt, "the image's length is not the stated one"};
    return {};
}

// reread takes what an earlier attempt wrote into the hash, and its head.
Status Download::reread() {
    std::uint8_t buffer[512];
    while (written_ < plan_.from) {
        const std::uint32_t left = plan_.from - written_;
        const std::size_t n = left < sizeof buffer ? left : sizeof buffer;
        if (Status s = machine_.updater->read_back(written_, {buffer, n}); !s.ok()) return s;
        Bytes chunk(buffer, n);
        if (head_size_ < kImageHead) {
            const std::size_t part = n < kImageHead - head_size_ ? n : kImageHead - head_size_;
            std::memcpy(head_.data() + head_size_, chunk.data, part);
            head_size_ += part;
        }
        sum_->update(chunk);
        written_ += static_cast<std::uint32_t>(n);
        machine_.system->feed_watchdog();
    }
    return open_head();
}

Status Download::open_head() {
    const Result<ImageHead> head = parse_image_head({head_.data(), head_size_});
    if (!head.ok()) return head.status();
    image_ = head.value();
    return check_target(image_, {machine_.system->chip().image_id, plan_.secure_version, plan_.project});
}

Status Download::take(Bytes chunk) {
    if (cancel_.load()) return {Code::canceled, "the upgrade was canceled"};
    machine_.system->feed_watchdog();
    if (!begun_) {
        if (Status s = take_head(chunk); !s.ok()) return s;
    }
    return begun_ ? write(chunk) : Status{};
}

// take_head gathers the head; nothing is erased for an image that does not fit.
Status Download::take_head(Bytes &chunk) {
    const std::size_t missing = kImageHead - head_size_;
    const std::size_t n = chunk.size < missing ? chunk.size : missing;
    std::memcpy(head_.data() + head_size_, chunk.data, n);
    head_size_ += n;
    chunk = {chunk.data + n, chunk.size - n};
    if (head_size_ < kImageHead) return {};
    if (Status s = open_head(); !s.ok()) return s;
    if (Status s = machine_.updater->begin(total_, 0); !s.ok()) return s;
    begun_ = true;
    return write({head_.data(), kImageHead});
}

Status Download::write(Bytes chunk) {
    if (chunk.size == 0) return {};
    if (chunk.size > total_ - written_) return {Code::corrupt, "the image is longer than stated"};
    if (Status s = machine_.updater->write(chunk); !s.ok()) return s;
    sum_->update(chunk);
    written_ += static_cast<std::uint32_t>(chunk.size);
    progress_(written_, total_, etag_);
    return {};
}

Status Download::complete() {
    const Digest digest = sum_->finish();
    if (!plan_.sha256.empty()) {
        Digest want;
        if (Status s = decode_hex(plan_.sha256, {want.data(), want.size()}); !s.ok()) return s;
        if (digest != want) return {Code::corrupt, "the image's SHA-256 is not the stated one"};
    }
    return machine_.updater->finish();
}

}  // namespace fleet
