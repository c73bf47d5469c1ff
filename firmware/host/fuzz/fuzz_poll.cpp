// SPDX-License-Identifier: Apache-2.0
// Any answer to a poll: what is taken from it is usable, and settings that were
// saved read back the same.
#include "fleet/poll_answer.hpp"
#include "fleet/url.hpp"
#include "fleet/version.hpp"
#include "fuzz.hpp"

using namespace fleet;

int LLVMFuzzerTestOneInput(const std::uint8_t *data, std::size_t size) {
    const std::string_view text = fuzz::text(data, size);
    (void)newer_version(text, "1.2.3");
    (void)check_url(text, {false, {text, {}, {}}});
    PollAnswer a;
    if (!parse_poll_answer(text, a).ok()) return 0;
    if (a.firmware.due()) {
        fuzz::require(a.firmware.job.size() <= max_job);
        fuzz::require(is_version(a.firmware.version) && parse_url(a.firmware.url).ok());
    }
    if (!a.broker_status.ok()) return 0;
    const BrokerSettings &s = a.broker;
    fuzz::require(!s.host.empty() && s.port != 0 && !s.publish_topic.empty() && s.keepalive_s >= 10);
    const std::string saved = save_broker(s);
    if (saved.empty()) return 0;
    BrokerSettings back;
    fuzz::require(read_broker(saved, back).ok());
    fuzz::require(back.host == s.host && back.port == s.port && back.password == s.password);
    return 0;
}
