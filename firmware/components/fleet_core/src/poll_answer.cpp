// SPDX-License-Identifier: Apache-2.0
#include "fleet/poll_answer.hpp"

#include "fleet/json.hpp"
#include "fleet/json_writer.hpp"
#include "fleet/url.hpp"
#include "fleet/version.hpp"

#include <utility>

namespace fleet {
namespace {

constexpr JsonLimits kLimits{8192, 6, 256};
constexpr std::size_t kMaxText = 1024;

// text_of gives a member's text, or "" if it is no text or too long.
std::string text_of(JsonView object, const char *key, std::size_t most = kMaxText) {
    const std::string_view text = object.text(key);
    return text.size() <= most ? std::string(text) : std::string();
}

Status read_endpoint(std::string_view endpoint, BrokerSettings &s) {
    // The URL parser knows what a host and a port are.
    const std::string as_url = "http://" + std::string(endpoint);
    const Result<Url> url = parse_url(as_url);
    if (!url.ok() || !url.value().path.empty()) return {Code::invalid, "mqtt.endpoint is not host:port"};
    s.host = std::string(url.value().host);
    s.port = endpoint.find(':') == std::string_view::npos ? std::uint16_t{8883} : url.value().port;
    return {};
}

Status read_broker_view(JsonView mqtt, BrokerSettings &out) {
    BrokerSettings s;
    if (Status e = read_endpoint(mqtt.text("endpoint"), s); !e.ok()) return e;
    s.client_id = text_of(mqtt, "client_id");
    s.username = text_of(mqtt, "username");
    s.password = text_of(mqtt, "password");
    s.publish_topic = text_of(mqtt, "publish_topic", 256);
    const std::int64_t keepalive = mqtt.integer_or("keepalive", 60);
    s.keepalive_s = static_cast<std::uint16_t>(keepalive < 10 ? 10 : keepalive > 3600 ? 3600 : keepalive);
    if (s.publish_topic.empty() || s.publish_topic.find_first_of("+#") != std::string::npos) {
        return {Code::invalid, "mqtt.publish_topic is not a topic"};
    }
    out = std::move(s);
    return {};
}

Activation read_activation(JsonView v) {
    return {text_of(v, "code", 32), text_of(v, "message", 256), text_of(v, "challenge", 256)};
}

FirmwareOrder read_firmware(JsonView v) {
    FirmwareOrder f;
    f.version = text_of(v, "version", 64);
    f.url = text_of(v, "url");
    if (!is_version(f.version) || !parse_url(f.url).ok()) return {};
    f.sha256 = text_of(v, "sha256", 64);
    f.manifest = text_of(v, "manifest");
    f.signature = text_of(v, "signature", 128);
    f.size = v.integer_or("size", 0);
    f.force = v.integer_or("force", 0) == 1;
    return f;
}

ServerTime read_time(JsonView v) {
    constexpr std::int64_t kYear2020 = 1577836800000;
    constexpr std::int64_t kYear2100 = 4102444800000;
    const std::int64_t ms = v.integer_or("timestamp", 0);
    const std::int64_t zone = v.integer_or("timezone_offset", 0);
    if (ms < kYear2020 || ms > kYear2100) return {};
    return {ms, zone < -1440 || zone > 1440 ? 0 : static_cast<std::int32_t>(zone)};
}

}  // namespace

Result<PollAnswer> parse_poll_answer(std::string_view text) {
    const Result<JsonDocument> document = JsonDocument::parse(text, kLimits);
    if (!document.ok()) return document.status();
    const JsonView root = document.value().root();
    if (!root.is_object()) return Status{Code::invalid, "the answer is not an object"};
    PollAnswer answer;
    const JsonView mqtt = root.member("mqtt");
    if (mqtt.is_object()) answer.broker_status = read_broker_view(mqtt, answer.broker);
    answer.activation = read_activation(root.member("activation"));
    answer.firmware = read_firmware(root.member("firmware"));
    answer.time = read_time(root.member("server_time"));
    return answer;
}

Status read_broker(std::string_view json, BrokerSettings &settings) {
    const Result<JsonDocument> document = JsonDocument::parse(json, kLimits);
    if (!document.ok()) return document.status();
    return read_broker_view(document.value().root(), settings);
}

std::string save_broker(const BrokerSettings &s) {
    std::string text(4000, '\0');
    JsonWriter w(text.data(), text.size());
    const std::string endpoint = s.host + ":" + std::to_string(s.port);
    w.begin_object().member("endpoint", endpoint).member("client_id", s.client_id).member("username", s.username);
    w.member("password", s.password).member("publish_topic", s.publish_topic);
    w.member("keepalive", std::int64_t{s.keepalive_s}).end_object();
    text.resize(w.overflow() ? 0 : w.size());
    return text;
}

}  // namespace fleet
