// SPDX-License-Identifier: Apache-2.0
// The half before the restart; the other is in ota_trial.cpp.
#include "fleet/ota_flow.hpp"

#include "fleet/later.hpp"
#include "fleet/stored.hpp"
#include "fleet/url.hpp"
#include "fleet/version.hpp"
#include "ota_keys.hpp"

namespace fleet {
namespace {

constexpr char identity_key[] = "ota_image";
constexpr char etag_key[] = "ota_etag";
constexpr char offset_key[] = "ota_offset";
constexpr int report_step_percent = 5;  // percent between two reports

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

Status OtaFlow::start(const FirmwareOrder &order, std::string_view job) {
    if (Status s = check_order(order); !s.ok()) return s;
    job_ = job;
    kind_ = upgrade_kind;
    canceled_ = false;
    attempts_ = 0;
    percent_ = 0;
    backoff_.reset();
    resume_point();
    (void)note_job();
    report(JobState::accepted);
    attempt();
    return {};
}

Status OtaFlow::check_order(const FirmwareOrder &order) {
    if (state_ == OtaState::on_trial) return {Code::refused, "the running image is still on trial"};
    if (state_ != OtaState::idle) return {Code::busy, "an upgrade is under way"};
    if (!parse_url(order.url).ok()) return {Code::invalid, "not a URL this device takes"};
    if (!order.sha256.empty() && order.sha256.size() != 64) return {Code::invalid, "sha256 is not 64 hex digits"};
    if (Result<SlotInfo> other = machine_.updater->other(); !other.ok()) return other.status();
    const AppInfo &app = machine_.system->app();
    plan_.url = order.url;
    plan_.sha256 = order.sha256;
    plan_.size = order.size;
    plan_.project = app.project;
    plan_.secure_version = app.secure_version;
    return check_manifest(order);
}

// check_manifest lets the signed statement overrule what the order says.
Status OtaFlow::check_manifest(const FirmwareOrder &order) {
    if (!policy_.signed_only) return {};
    if (order.manifest.empty()) return {Code::refused, "only signed images are taken here"};
    Manifest manifest;
    Status s = open_manifest(*machine_.crypto, policy_.key, order.manifest, order.signature, manifest);
    if (!s.ok()) return s;
    if (manifest.chip != machine_.system->chip().image_id) return {Code::wrong_target, "the image is for another chip"};
    if (manifest.project != plan_.project) return {Code::wrong_target, "the image is of another project"};
    if (manifest.secure_version < plan_.secure_version) {
        return {Code::wrong_target, "the image has an older secure version"};
    }
    // A manifest is good for ever: without this, who has the server could send an
    // image with a known hole again.
    const std::string &running = machine_.system->app().version;
    if (is_version(running) && manifest.rollback_from != running &&
        (!is_version(manifest.version) || newer_version(running, manifest.version))) {
        return {Code::refused, "the manifest's version is older than the running one"};
    }
    if (manifest.not_before_ms > 0 && machine_.clock->unix_ms() < manifest.not_before_ms) {
        return {Code::refused, "the image is not to be installed yet"};
    }
    plan_.sha256 = manifest.sha256;
    plan_.size = manifest.size;
    return {};
}

// identity names the image: only its own bytes may be continued.
const std::string &OtaFlow::identity() const {
    return plan_.sha256.empty() ? plan_.url : plan_.sha256;
}

void OtaFlow::resume_point() {
    KvStore &store = *machine_.store;
    std::string image;
    saved_ = plan_.from = 0;
    if (!stored_text(store, identity_key, image) || image != identity()) return;
    const std::int64_t offset = stored_int(store, offset_key, 0);
    if (!stored_text(store, etag_key, plan_.etag) || offset <= 0 || offset > UINT32_MAX) return;
    saved_ = plan_.from = static_cast<std::uint32_t>(offset) / resume_alignment * resume_alignment;
}

void OtaFlow::save_point(std::uint32_t written) {
    saved_ = written;
    KvStore &store = *machine_.store;
    (void)store.set(identity_key, identity());
    (void)store.set(etag_key, result_.etag);
    put_int(store, offset_key, written);
}

void OtaFlow::forget_point() {
    static const char *const keys[] = {identity_key, etag_key, offset_key, nullptr};
    erase_all(*machine_.store, keys);
}

void OtaFlow::attempt() {
    if (canceled_) return fail({Code::canceled, "the upgrade was canceled"});
    state_ = OtaState::downloading;
    work(machine_, task<&OtaFlow::download>(this));
}

void OtaFlow::download() {
    Download download(machine_, plan_, canceled_, result_);
    download.run([this](std::uint32_t written) { machine_.executor->post([this, written] { progress(written); }); });
    post(machine_, task<&OtaFlow::attempted>(this));
}

void OtaFlow::progress(std::uint32_t written) {
    const std::uint32_t total = result_.total;
    attempts_ = 0;
    if (written - saved_ >= save_every && written < total) save_point(written);
    const int percent = static_cast<int>(std::uint64_t{written} * 100 / total);
    if (percent < percent_ + report_step_percent && percent < 100) return;
    percent_ = percent;
    report(JobState::progress, {}, percent);
}

void OtaFlow::attempted() {
    if (result_.status.ok() && !canceled_) return switch_slots();
    if (result_.again && ++attempts_ < max_attempts && !canceled_) return again();
    forget_point();
    fail(canceled_ ? Status{Code::canceled, "the upgrade was canceled"} : result_.status);
}

void OtaFlow::again() {
    state_ = OtaState::waiting;
    plan_.from = result_.written / resume_alignment * resume_alignment;
    plan_.etag = result_.etag;
    save_point(plan_.from);
    post_after(machine_, backoff_.next(), task<&OtaFlow::attempt>(this));
}

// switch_slots notes what is about to happen before it does: after a power cut
// in between, the next start finds the old image and says so.
void OtaFlow::switch_slots() {
    forget_point();
    Status s = note_switch(result_.head.elf_sha256);
    if (s.ok()) s = machine_.updater->boot_other();
    if (s.ok()) return restart();
    fail(s);
}

// note_job is for the next start, if it comes before this one is done.
Status OtaFlow::note_job() {
    KvStore &store = *machine_.store;
    Status s = store.set(job_key, job_);
    if (s.ok()) s = store.set(kind_key, kind_);
    return s.ok() ? store.commit() : s;
}

Status OtaFlow::note_switch(std::string_view wanted) {
    KvStore &store = *machine_.store;
    Status s = note_job();
    if (s.ok()) s = store.set(wanted_key, wanted);
    return s.ok() ? store.commit() : s;
}

void OtaFlow::forget_switch() {
    static const char *const keys[] = {job_key, kind_key, wanted_key, why_key, nullptr};
    erase_all(*machine_.store, keys);
}

void OtaFlow::fail(Status why) {
    state_ = OtaState::idle;
    forget_switch();
    report(JobState::failed, why);
}

void OtaFlow::report(JobState state, Status outcome, int percent) {
    if (on_report) on_report({job_, kind_, state, percent, outcome});
}

void OtaFlow::restart() {
    state_ = OtaState::restarting;
    if (before_restart) before_restart();
    post_after(machine_, policy_.restart_ms, task<&OtaFlow::restart_now>(this));
}

void OtaFlow::restart_now() {
    machine_.system->restart();
}

}  // namespace fleet
