// SPDX-License-Identifier: Apache-2.0
// Upgrades, from the order to the verdict over the restart: download with
// resume, checks, switch of slots, trial of the new image, way back.
//
//   idle -> downloading (<-> waiting) -> restarting | idle
//   after the restart: on_trial -> idle | restarting into the old image
#pragma once

#include "fleet/backoff.hpp"
#include "fleet/download.hpp"
#include "fleet/hook.hpp"
#include "fleet/job.hpp"
#include "fleet/manifest.hpp"
#include "fleet/poll_answer.hpp"
#include "fleet/ports.hpp"

#include <atomic>
#include <cstdint>
#include <string>
#include <string_view>

namespace fleet {

enum class OtaState : std::uint8_t { idle, downloading, waiting, restarting, on_trial };

const char *to_string(OtaState state);

struct OtaPolicy {
    // With a key, only images with a manifest signed by it are taken.
    bool signed_only = false;
    Ed25519Key key{};
    std::uint32_t trial_ms = 5 * 60 * 1000;  // for the new image to prove itself
    // How long it has to stay online before it is trusted; half of trial_ms at
    // most. A crash meanwhile brings the old image back.
    std::uint32_t proof_ms = 30 * 1000;
    std::uint32_t restart_ms = 1500;  // for the last messages to leave
};

class OtaFlow {
public:
    static constexpr int max_attempts = 6;  // without progress in between
    static constexpr std::uint32_t save_every = 64 * 1024;
    static constexpr std::uint32_t resume_alignment = 4096;  // of a resume: a flash sector

    OtaFlow(const Machine &machine, const OtaPolicy &policy);

    // after_boot finishes what the run before began: it reports the outcome of
    // an upgrade and puts a new image on trial. Call once, before start.
    void after_boot();

    // start checks the order and begins; everything later comes by on_report.
    Status start(const FirmwareOrder &order, std::string_view job);
    // cancel holds until the slots are switched, however far the download is.
    void cancel() { canceled_ = true; }

    // roll_back goes back to the other slot, if there is a sound image in it.
    Status roll_back(std::string_view job);

    // prove_online says that a message came back through the broker. If that
    // holds for proof_ms, and the self-test passes, the trial is over.
    void prove_online();
    void lose_online() { online_since_us_ = not_online; }

    OtaState state() const { return state_; }
    int percent() const { return percent_; }

    Hook<void(const JobReport &)> on_report;
    Hook<Status()> self_test;     // more conditions of this product; may be unset
    Hook<void()> before_restart;  // say goodbye

private:
    static constexpr std::int64_t not_online = -1;

    void attempt();
    void download();  // on the worker
    void progress(std::uint32_t written);
    void attempted();
    void again();
    void switch_slots();
    void restart_now();
    void fail(Status why);
    void report(JobState state, Status outcome = {}, int percent = 0);
    void restart();

    Status check_order(const FirmwareOrder &order);
    Status check_manifest(const FirmwareOrder &order);
    void resume_point();
    void save_point(std::uint32_t written);
    Status note_job();
    Status note_switch(std::string_view wanted);
    void forget_switch();
    void forget_point();
    const std::string &identity() const;

    void judge_last();
    void begin_trial();
    void judge_trial();
    void trial_over();
    Status examine();
    void reject(Status why);

    const Machine &machine_;
    OtaPolicy policy_;
    Backoff backoff_;
    DownloadPlan plan_;      // the worker reads it
    DownloadResult result_;  // of the worker
    std::string job_;
    std::string why_;  // why the last trial failed; the image that came back reports it
    const char *kind_ = "upgrade";
    std::atomic<bool> canceled_{false};
    OtaState state_ = OtaState::idle;
    int attempts_ = 0;
    int percent_ = 0;
    std::uint32_t saved_ = 0;
    std::int64_t online_since_us_ = not_online;
};

}  // namespace fleet
