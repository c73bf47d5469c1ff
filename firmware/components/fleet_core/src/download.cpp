// SPDX-License-Identifier: Apache-2.0
#include "fleet/download.hpp"

#include "fleet/hex.hpp"

#include <cstring>
#include <utility>

namespace fleet {

Download::Download(const Machine &machine, const DownloadPlan &plan, const std::atomic<bool> &cancel,
                   DownloadResult &result)
    : machine_(machine), plan_(plan), cancel_(cancel), result_(result) {
    result_.etag = plan.etag;
}

void Download::run(Progress progress) {
    progress_ = progress;
    sum_ = machine_.crypto->sha256();
    if (!sum_) {
        result_.again = false;
        result_.status = {Code::no_memory, "no memory for the image's hash"};
        return;
    }
    const auto take_answer = [this](const HttpResponse &r) { return begin(r); };
    const auto take_bytes = [this](Bytes b) { return take(b); };
    result_.status = settle(machine_.http->get(plan_.url, plan_.from, take_answer, take_bytes));
    const Code code = result_.status.code;
    result_.again = start_over_ || (!gone_ && (code == Code::unavailable || code == Code::timeout));
    result_.written = start_over_ ? 0 : begun_ ? written_ : plan_.from;
    if (code != Code::ok && begun_) machine_.updater->abort();
}

Status Download::settle(const Result<HttpResponse> &response) {
    if (!response.ok()) return response.status();
    if (!begun_) return {Code::corrupt, "the image ends inside its header"};
    if (written_ != result_.total) return {Code::unavailable, "the download was cut short"};
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
    if (response.content_length < static_cast<std::int64_t>(image_head_bytes) || response.content_length > UINT32_MAX) {
        return {Code::corrupt, "the image's length is missing or impossible"};
    }
    result_.total = static_cast<std::uint32_t>(response.content_length);
    result_.etag = response.etag;
    return check_size();
}

Status Download::begin_rest(const HttpResponse &response) {
    start_over_ = true;  // until everything fits together
    if (response.etag != plan_.etag) return {Code::corrupt, "the image changed on the server"};
    if (response.content_length <= 0 || response.content_length > UINT32_MAX - plan_.from) {
        return {Code::corrupt, "the rest's length is missing or impossible"};
    }
    result_.total = plan_.from + static_cast<std::uint32_t>(response.content_length);
    result_.etag = response.etag;
    if (Status s = check_size(); !s.ok()) return s;
    if (Status s = reread(); !s.ok()) return s;
    if (Status s = machine_.updater->begin(result_.total, plan_.from); !s.ok()) return s;
    start_over_ = false;
    begun_ = true;
    return {};
}

Status Download::check_size() const {
    const Result<SlotInfo> slot = machine_.updater->other();
    if (!slot.ok()) return slot.status();
    if (result_.total > slot.value().size) return {Code::no_space, "the image is larger than the slot"};
    if (plan_.size > 0 && plan_.size != result_.total)
        return {Code::corrupt, "the image's length is not the stated one"};
    return {};
}

// reread takes what an earlier attempt wrote into the hash, and its head.
Status Download::reread() {
    std::uint8_t buffer[512];
    while (written_ < plan_.from) {
        const std::uint32_t left = plan_.from - written_;
        const std::size_t n = left < sizeof buffer ? left : sizeof buffer;
        if (Status s = machine_.updater->read_back(written_, {buffer, n}); !s.ok()) return s;
        const Bytes chunk(buffer, n);
        (void)gather_head(chunk);
        sum_->update(chunk);
        written_ += static_cast<std::uint32_t>(n);
        machine_.system->feed_watchdog();
    }
    reported_ = written_;
    return open_head();
}

// gather_head takes from chunk what the head lacks.
std::size_t Download::gather_head(Bytes chunk) {
    const std::size_t missing = image_head_bytes - head_size_;
    const std::size_t n = chunk.size < missing ? chunk.size : missing;
    std::memcpy(head_.data() + head_size_, chunk.data, n);
    head_size_ += n;
    return n;
}

Status Download::open_head() {
    if (Status s = parse_image_head({head_.data(), head_size_}, result_.head); !s.ok()) return s;
    return check_target(result_.head, {machine_.system->chip().image_id, plan_.secure_version, plan_.project});
}

Status Download::take(Bytes chunk) {
    if (cancel_.load()) return {Code::canceled, "the upgrade was canceled"};
    machine_.system->feed_watchdog();
    if (!begun_) {
        if (Status s = take_head(chunk); !s.ok()) return s;
    }
    return begun_ ? write(chunk) : Status{};
}

// take_head begins once the head is there: nothing is erased for an image that
// does not fit.
Status Download::take_head(Bytes &chunk) {
    const std::size_t n = gather_head(chunk);
    chunk = {chunk.data + n, chunk.size - n};
    if (head_size_ < image_head_bytes) return {};
    if (Status s = open_head(); !s.ok()) return s;
    if (Status s = machine_.updater->begin(result_.total, 0); !s.ok()) return s;
    begun_ = true;
    return write({head_.data(), image_head_bytes});
}

Status Download::write(Bytes chunk) {
    if (chunk.size == 0) return {};
    if (chunk.size > result_.total - written_) return {Code::corrupt, "the image is longer than stated"};
    if (Status s = machine_.updater->write(chunk); !s.ok()) return s;
    sum_->update(chunk);
    written_ += static_cast<std::uint32_t>(chunk.size);
    // Every piece would flood the executor; this is often enough to report and to save.
    if (written_ - reported_ >= result_.total / 50 || written_ == result_.total) {
        reported_ = written_;
        progress_(written_);
    }
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
