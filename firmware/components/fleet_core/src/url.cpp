// SPDX-License-Identifier: Apache-2.0
#include "fleet/url.hpp"

namespace fleet {
namespace {

constexpr Status not_a_url{Code::invalid, "not a URL this device takes"};

bool host_character(char c) {
    return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '.' || c == '-';
}

bool take(std::string_view &text, std::string_view prefix) {
    if (text.substr(0, prefix.size()) != prefix) return false;
    text.remove_prefix(prefix.size());
    return true;
}

bool take_port(std::string_view &text, std::uint16_t &port) {
    std::uint32_t n = 0;
    std::size_t digits = 0;
    while (digits < text.size() && digits < 6 && text[digits] >= '0' && text[digits] <= '9') {
        n = n * 10 + static_cast<std::uint32_t>(text[digits++] - '0');
    }
    if (n == 0 || n > 65535) return false;
    text.remove_prefix(digits);
    port = static_cast<std::uint16_t>(n);
    return true;
}

bool same_host(std::string_view a, std::string_view b) {
    if (a.size() != b.size()) return false;
    const auto lower = [](char c) { return c >= 'A' && c <= 'Z' ? static_cast<char>(c | 0x20) : c; };
    for (std::size_t i = 0; i < a.size(); i++) {
        if (lower(a[i]) != lower(b[i])) return false;
    }
    return true;
}

bool matches(std::string_view host, std::string_view pattern) {
    if (pattern == "*") return true;
    if (pattern.substr(0, 2) != "*.") return same_host(host, pattern);
    const std::string_view tail = pattern.substr(1);
    return host.size() > tail.size() && same_host(host.substr(host.size() - tail.size()), tail);
}

bool listed(std::string_view host, std::string_view hosts) {
    while (!hosts.empty()) {
        const std::size_t comma = hosts.find(',');
        if (matches(host, hosts.substr(0, comma))) return true;
        if (comma == std::string_view::npos) break;
        hosts.remove_prefix(comma + 1);
    }
    return false;
}

// parse_rest takes what follows the scheme.
Result<Url> parse_rest(std::string_view text, bool https) {
    Url url;
    url.https = https;
    url.port = https ? 443 : 80;
    std::size_t n = 0;
    while (n < text.size() && host_character(text[n]))
        n++;
    if (n == 0 || n > 253) return not_a_url;
    url.host = text.substr(0, n);
    text.remove_prefix(n);
    if (take(text, ":") && !take_port(text, url.port)) return not_a_url;
    for (const char c : text) {
        if (static_cast<unsigned char>(c) <= 0x20 || c == '\x7f' || c == '\\') return not_a_url;
    }
    if (!text.empty() && text[0] != '/') return not_a_url;
    url.path = text;
    return url;
}

}  // namespace

Result<Url> parse_url(std::string_view text) {
    if (take(text, "https://")) return parse_rest(text, true);
    return take(text, "http://") ? parse_rest(text, false) : not_a_url;
}

Result<Url> parse_authority(std::string_view text) {
    const Result<Url> url = parse_rest(text, false);
    return url.value().path.empty() ? url : not_a_url;
}

Status check_url(std::string_view text, const UrlPolicy &policy) {
    const Result<Url> url = parse_url(text);
    if (!url.ok()) return url.status();
    if (!url.value().https && !policy.allow_http) return {Code::refused, "only https URLs are taken here"};
    for (const std::string_view hosts : policy.hosts) {
        if (listed(url.value().host, hosts)) return {};
    }
    return {Code::refused, "the URL's host is not on the list"};
}

}  // namespace fleet
