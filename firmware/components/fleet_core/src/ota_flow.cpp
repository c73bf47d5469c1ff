// SPDX-License-Identifier: Apache-2.0
// The half before the restart; the other is in ota_trial.cpp.
#include "fleet/ota_flow.hpp"

#include "fleet/url.hpp"

#include <memory>
#include <utility>

namespace fleet {
namespace {

constexpr char kIdentity[] = "ota_image";
constexpr char kEtag[] = "ota_etag";
constexpr char kOffset[] = "ota_offset";
constexpr int kStep = 5;  // percent between two reports

}  // namespace

const char *to_string(OtaState state) {
    switch (state) {
        case OtaState::idle: return "idle";
        case OtaState::downloading: return "downloading";
        case OtaState::waiting: return "waiting";
        case OtaState::restarting: return "restarting";
        case OtaState::on_trial: break;
    }
    return "on_trial";
}

OtaFlow::OtaFlow(const Machine &machine, const OtaPolicy &policy)
    : machine_(machine), policy_(policy), backoff_(*machine.system, 2'000, 60'000) {}

Status OtaFlow::start(const FirmwareOrder &order, const std::string &job) {
    if (state_ == OtaState::on_trial) return {Code::refused, "the running image is still on trial"};
    if (state_ != OtaState::idle) return {Code::busy, "an upgrade is under way"};
    if (!parse_url(order.url).ok()) return {Code::invalid, "not a URL this device takes"};
    if (!order.sha256.empty() && order.sha256.size() != 64) return {Code::invalid, "sha256 is not 64 hex digits"};
    if (Result<SlotInfo> other = machine_.updater->other(); !other.ok()) return other.status();
    plan_ = {};
    plan_.url = order.url;
    plan_.sha256 = order.sha256;
    plan_.size = order.size;
    const AppInfo app = machine_.system->app();
    plan_.project = app.project;
    plan_.secure_version = app.secure_version;
    if (Status s = check_manifest(order); !s.ok()) return s;
    job_ = job;
    kind_ = "upgrade";
    canceled_ = false;
    attempts_ = 0;
    percent_ = 0;
    backoff_.reset();
    resume_point();
    report(JobState::accepted);
    attempt();
    return {};
}

// check_manifest lets the signed statement overrule what the order says.
Status OtaFlow::check_manifest(const FirmwareOrder &order) {
    if (!policy_.signed_only) return {};
    if (order.manifest.empty()) return {Code::refused, "only signed images are taken here"};
    const Result<Manifest> m = open_manifest(*machine_.crypto, policy_.key, order.manifest, order.signature);
    if (!m.ok()) return m.status();
    const Manifest &manifest = m.value();
    if (manifest.chip != machine_.system->chip().image_id) return {Code::wrong_target, "the image is for another chip"};
    if (manifest.project != plan_.project) return {Code::wrong_target, "the image is of another project"};
    if (manifest.secure_version < plan_.secure_version) {
        return {Code::wrong_target, "the image has an older secure version"};
    }
    if (manifest.not_before_ms > 0 && machine_.clock->unix_ms() < manifest.not_before_ms) {
        return {Code::refused, "the image is not to be installed yet"};
    }
    plan_.sha256 = manifest.sha256;
    plan_.size = manifest.size;
    return {};
}

// identity names the image: only its own bytes may be continued.
std::string OtaFlow::identity() const {
    return plan_.sha256.empty() ? plan_.url : plan_.sha256;
}

void OtaFlow::resume_point() {
    saved_ = 0;
    const Result<std::string> image = machine_.store->get(kIdentity);
    if (!image.ok() || image.value() != identity()) return;
    const Result<std::int64_t> offset = machine_.store->get_int(kOffset);
    const Result<std::string> etag = machine_.store->get(kEtag);
    if (!offset.ok() || !etag.ok() || offset.value() <= 0 || offset.value() > UINT32_MAX) return;
    plan_.from = static_cast<std::uint32_t>(offset.value()) / kAlign * kAlign;
    plan_.etag = etag.value();
    saved_ = plan_.from;
}

void OtaFlow::save_point(std::uint32_t written, const std::string &etag) {
    saved_ = written;
    (void)machine_.store->set(kIdentity, identity());
    (void)machine_.store->set(kEtag, etag);
    (void)machine_.store->set_int(kOffset, written);
    (void)machine_.store->commit();
}

void OtaFlow::forget_point() {
    (void)machine_.store->erase(kIdentity);
    (void)machine_.store->erase(kEtag);
    (void)machine_.store->erase(kOffset);
    (void)machine_.store->commit();
}

void OtaFlow::attempt() {
    if (canceled_) return fail({Code::canceled, "the upgrade was canceled"});
    state_ = OtaState::downloading;
    // Shared, since std::function copies what it holds.
    machine_.executor->work([this, plan = std::make_shared<const DownloadPlan>(plan_)] {
        std::uint32_t told = plan->from;
        const auto tell = [this, &told](std::uint32_t written, std::uint32_t total, const std::string &etag) {
            // Every piece would flood the executor; this is often enough to report and to save.
            if (written - told < total / 50 && written < total) return;
            told = written;
            machine_.executor->post([this, written, total, etag] { progress(written, total, etag); });
        };
        Download download(machine_, *plan, canceled_, tell);
        const auto result = std::make_shared<const DownloadResult>(download.run());
        machine_.executor->post([this, result] { attempted(*result); });
    });
}

void OtaFlow::progress(std::uint32_t written, std::uint32_t total, const std::string &etag) {
    attempts_ = 0;
    if (written - saved_ >= kSaveEvery && written < total) save_point(written, etag);
    const int percent = static_cast<int>(std::uint64_t{written} * 100 / total);
    if (percent < percent_ + kStep && percent < 100) return;
    percent_ = percent;
    report(JobState::progress, {}, percent);
}

void OtaFlow::attempted(const DownloadResult &result) {
    if (result.status.ok()) return switch_slots(result);
    if (result.again && ++attempts_ < kAttempts && !canceled_) return again(result);
    forget_point();
    fail(canceled_ ? Status{Code::canceled, "the upgrade was canceled"} : result.status);
}

void OtaFlow::again(const DownloadResult &result) {
    state_ = OtaState::waiting;
    plan_.from = result.written / kAlign * kAlign;
    plan_.etag = result.etag;
    save_point(plan_.from, plan_.etag);
    machine_.executor->post_after(backoff_.next(), [this] { attempt(); });
}

// switch_slots notes what is about to happen before it does: after a power cut
// in between, the next start finds the old image and says so.
void OtaFlow::switch_slots(const DownloadResult &result) {
    forget_point();
    Status s = note_switch(result.head.elf_sha256);
    if (s.ok()) s = machine_.updater->boot_other();
    if (s.ok()) return restart();
    forget_switch();
    fail(s);
}

Status OtaFlow::note_switch(const std::string &wanted) {
    KvStore &store = *machine_.store;
    if (Status s = store.set("ota_job", job_); !s.ok()) return s;
    if (Status s = store.set("ota_kind", kind_); !s.ok()) return s;
    if (Status s = store.set("ota_want", wanted); !s.ok()) return s;
    return store.commit();
}

void OtaFlow::forget_switch() {
    for (const char *key : {"ota_job", "ota_kind", "ota_want", "ota_why"})
        (void)machine_.store->erase(key);
    (void)machine_.store->commit();
}

void OtaFlow::fail(Status why) {
    state_ = OtaState::idle;
    report(JobState::failed, why);
}

void OtaFlow::report(JobState state, Status outcome, int percent) {
    if (on_report) on_report({job_, kind_, state, percent, outcome});
}

void OtaFlow::restart() {
    state_ = OtaState::restarting;
    if (before_restart) before_restart();
    machine_.executor->post_after(policy_.restart_ms, [this] { machine_.system->restart(); });
}

}  // namespace fleet
