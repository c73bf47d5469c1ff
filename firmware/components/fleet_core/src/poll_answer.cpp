// SPDX-License-Identifier: Apache-2.0
#include "fleet/poll_answer.hpp"

#include "fleet/json.hpp"
#include "fleet/json_writer.hpp"
#include "fleet/url.hpp"
#include "fleet/version.hpp"

namespace fleet {
namespace {

constexpr JsonLimits json_limits{8192, 6, 256};
constexpr std::size_t max_text = 1024;

// take copies a member's text; one that is no text or too long is as if it were not there.
void take(JsonView object, const char *key, std::string &into, std::size_t most = max_text) {
    const std::string_view text = object.text(key);
    into = text.size() <= most ? text : std::string_view();
}

Status read_endpoint(std::string_view endpoint, BrokerSettings &s) {
    const Result<Url> url = parse_authority(endpoint);
    if (!url.ok()) return {Code::invalid, "mqtt.endpoint is not host:port"};
    s.host = url.value().host;
    s.port = endpoint.find(':') == std::string_view::npos ? std::uint16_t{8883} : url.value().port;
    return {};
}

Status read_broker_view(JsonView mqtt, BrokerSettings &s) {
    if (Status e = read_endpoint(mqtt.text("endpoint"), s); !e.ok()) return e;
    take(mqtt, "client_id", s.client_id);
    take(mqtt, "username", s.username);
    take(mqtt, "password", s.password);
    s.sign_connect = mqtt.integer_or("sign_connect", 0) == 1;
    take(mqtt, "publish_topic", s.publish_topic, 256);
    const std::int64_t keepalive = mqtt.integer_or("keepalive", 60);
    s.keepalive_s = static_cast<std::uint16_t>(keepalive < 10 ? 10 : keepalive > 3600 ? 3600 : keepalive);
    if (s.publish_topic.empty() || s.publish_topic.find_first_of("+#") != std::string::npos) {
        return {Code::invalid, "mqtt.publish_topic is not a topic"};
    }
    return {};
}

void read_activation(JsonView v, Activation &a) {
    take(v, "code", a.code, 32);
    take(v, "message", a.message, 256);
    take(v, "challenge", a.challenge, 256);
}

void read_firmware(JsonView v, FirmwareOrder &f) {
    take(v, "version", f.version, 64);
    if (!is_version(f.version) || !parse_url(v.text("url")).ok()) return;
    take(v, "url", f.url);
    take(v, "job", f.job, max_job);
    take(v, "sha256", f.sha256, 64);
    take(v, "manifest", f.manifest);
    take(v, "signature", f.signature, 128);
    f.size = v.integer_or("size", 0);
    f.force = v.integer_or("force", 0) == 1;
}

ServerTime read_time(JsonView v) {
    constexpr std::int64_t year2020 = 1577836800000;
    constexpr std::int64_t year2100 = 4102444800000;
    const std::int64_t ms = v.integer_or("timestamp", 0);
    const std::int64_t zone = v.integer_or("timezone_offset", 0);
    if (ms < year2020 || ms > year2100) return {};
    return {ms, zone < -1440 || zone > 1440 ? 0 : static_cast<std::int32_t>(zone)};
}

}  // namespace

Status parse_poll_answer(std::string_view text, PollAnswer &answer) {
    const Result<JsonDocument> document = JsonDocument::parse(text, json_limits);
    if (!document.ok()) return document.status();
    const JsonView root = document.value().root();
    if (!root.is_object()) return {Code::invalid, "the answer is not an object"};
    const JsonView mqtt = root.member("mqtt");
    if (mqtt.is_object()) answer.broker_status = read_broker_view(mqtt, answer.broker);
    read_activation(root.member("activation"), answer.activation);
    read_firmware(root.member("firmware"), answer.firmware);
    take(root.member("device_key"), "challenge", answer.key_challenge, 128);
    answer.time = read_time(root.member("server_time"));
    return {};
}

Status read_broker(std::string_view json, BrokerSettings &settings) {
    const Result<JsonDocument> document = JsonDocument::parse(json, json_limits);
    if (!document.ok()) return document.status();
    return read_broker_view(document.value().root(), settings);
}

std::string save_broker(const BrokerSettings &s) {
    std::string text(4000, '\0');
    JsonWriter w(text.data(), text.size());
    w.begin_object().key("endpoint").open_text().append(s.host).append(":").digits(s.port).close_text();
    w.member("client_id", s.client_id).member("username", s.username);
    w.member("password", s.password).member("publish_topic", s.publish_topic);
    w.member("sign_connect", s.sign_connect ? 1 : 0);
    w.member("keepalive", s.keepalive_s).end_object();
    text.resize(w.overflow() ? 0 : w.size());
    return text;
}

}  // namespace fleet
