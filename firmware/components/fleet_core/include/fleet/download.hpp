// SPDX-License-Identifier: Apache-2.0
// One attempt to bring an image into the other slot. Runs on the worker and
// touches nothing that the executor touches meanwhile.
#pragma once

#include "fleet/app_image.hpp"
#include "fleet/ports.hpp"

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

namespace fleet {

struct DownloadPlan {
    std::string url;
    std::string sha256;  // hex; empty: not given
    std::string etag;    // of the bytes written so far
    std::string project;
    std::int64_t size = 0;   // 0: not given
    std::uint32_t from = 0;  // bytes already in the slot
    std::uint32_t secure_version = 0;
};

// DownloadResult is written by the worker; etag and total once, before the
// first progress is reported.
struct DownloadResult {
    Status status;
    bool again = false;  // trying again may help
    std::uint32_t written = 0;
    std::uint32_t total = 0;
    std::string etag;
    ImageHead head;
};

class Download {
public:
    // Reported now and then, and at the end.
    using Progress = Hook<void(std::uint32_t written)>;

    Download(const Machine &machine, const DownloadPlan &plan, const std::atomic<bool> &cancel, DownloadResult &result);
    void run(Progress progress);

private:
    Status begin(const HttpResponse &response);
    Status begin_whole(const HttpResponse &response);
    Status begin_rest(const HttpResponse &response);
    Status check_size() const;
    Status reread();
    Status take(Bytes chunk);
    Status take_head(Bytes &chunk);
    std::size_t gather_head(Bytes chunk);
    Status open_head();
    Status write(Bytes chunk);
    Status complete();
    Status settle(const Result<HttpResponse> &response);

    const Machine &machine_;
    const DownloadPlan &plan_;
    const std::atomic<bool> &cancel_;
    DownloadResult &result_;
    Progress progress_;
    std::unique_ptr<Sha256> sum_;
    std::array<std::uint8_t, image_head_bytes> head_{};
    std::size_t head_size_ = 0;
    std::uint32_t written_ = 0;
    std::uint32_t reported_ = 0;
    bool begun_ = false;
    bool start_over_ = false;
    bool gone_ = false;  // the server will not have it later either
};

}  // namespace fleet
