// SPDX-License-Identifier: Apache-2.0
#include "fleet/portal.hpp"

#include "fleet/url.hpp"

namespace fleet {
namespace {

constexpr std::string_view page_head =
    "<!doctype html><html lang=\"en\"><meta charset=\"utf-8\"><meta name=\"viewport\" content=\"width=device-width\">"
    "<title>Device setup</title><style>body{font:16px sans-serif;max-width:24em;margin:1em auto;padding:0 1em}"
    "label,input,button{display:block;width:100%;box-sizing:border-box}input,button{font:inherit;padding:.5em;"
    "margin:.2em 0 1em}</style><h1>Device setup</h1>";

// append_escaped writes text that may stand between tags or in quotes.
void append_escaped(std::string &out, std::string_view text) {
    for (const char c : text) {
        switch (c) {
            case '&': out += "&amp;"; break;
            case '<': out += "&lt;"; break;
            case '>': out += "&gt;"; break;
            case '"': out += "&quot;"; break;
            case '\'': out += "&#39;"; break;
            default: out += c;
        }
    }
}

int hex_digit(char c) {
    if (c >= '0' && c <= '9') return c - '0';
    if (c >= 'a' && c <= 'f') return c - 'a' + 10;
    return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

// decode reads a form's value. It refuses bad coding and control characters, which no
// field has.
bool decode(std::string_view coded, std::string &out) {
    out.clear();
    for (std::size_t i = 0; i < coded.size(); i++) {
        char c = coded[i] == '+' ? ' ' : coded[i];
        if (c == '%') {
            if (coded.size() - i < 3) return false;
            const int high = hex_digit(coded[i + 1]), low = hex_digit(coded[i + 2]);
            if (high < 0 || low < 0) return false;
            c = static_cast<char>(high * 16 + low);
            i += 2;
        }
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7f) return false;
        out += c;
    }
    return true;
}

struct Form {
    PortalInput input;
    std::string code;

    std::string *field(std::string_view name) {
        if (name == "ssid") return &input.ssid;
        if (name == "password") return &input.password;
        if (name == "fleet") return &input.fleet;
        return name == "code" ? &code : nullptr;
    }
};

// parse accepts each known field once, and ignores names that are not known.
bool parse(std::string_view body, Form &form) {
    unsigned seen = 0;
    while (!body.empty()) {
        const std::string_view pair = body.substr(0, body.find('&'));
        body.remove_prefix(pair.size() < body.size() ? pair.size() + 1 : pair.size());
        const std::size_t equal = pair.find('=');
        if (equal == std::string_view::npos) continue;
        std::string *const field = form.field(pair.substr(0, equal));
        if (field == nullptr) continue;
        const unsigned bit = 1u << (field == &form.code          ? 3
                                    : field == &form.input.ssid  ? 0
                                    : field == &form.input.fleet ? 1
                                                                 : 2);
        if ((seen & bit) != 0 || !decode(pair.substr(equal + 1), *field)) return false;
        seen |= bit;
    }
    return true;
}

// same needs as much time for every code of the same length.
bool same(std::string_view a, std::string_view b) {
    if (a.size() != b.size()) return false;
    unsigned differ = 0;
    for (std::size_t i = 0; i < a.size(); i++)
        differ |= static_cast<unsigned>(a[i] ^ b[i]);
    return differ == 0;
}

// Nothing, a passphrase of WPA, or its key in 64 hex digits.
bool is_password(std::string_view text) {
    if (text.empty() || (text.size() >= 8 && text.size() <= 63)) return true;
    if (text.size() != 64) return false;
    for (const char c : text) {
        if (hex_digit(c) < 0) return false;
    }
    return true;
}

void append_field(std::string &out, std::string_view label, std::string_view attributes, std::string_view value = {}) {
    out.append("<label>").append(label).append("<input ").append(attributes).append(" value=\"");
    append_escaped(out, value);
    out += "\"></label>";
}

}  // namespace

// A phone asks for a page of its maker's to see whether there is an Internet; being
// redirected, it shows that page, if the redirection has a body. No input is accepted from
// pages of other hosts, which a browser on the same access point may have open.
PortalAnswer Portal::handle(const PortalRequest &r) {
    if (r.host != address_) return {302, "http://" + address_ + "/", "Device setup"};
    const std::string_view path = r.path.substr(0, r.path.find('?'));
    if (path != "/") return page(404, "There is no such page.");
    if (r.method == "GET") return page(200, notice);
    if (r.method != "POST") return page(405, "This page can be read and submitted, nothing else.");
    if (r.body.size() > max_body) return page(413, "The form is too long for the device.");
    return submit(r.body);
}

PortalAnswer Portal::submit(std::string_view body) {
    Form form;
    if (!parse(body, form)) return page(400, "A field is there twice, or has characters that cannot be in it.");
    if (const char *const why = problem(form.input, form.code); why != nullptr) return page(400, why);
    const Status status = use ? use(form.input) : Status{Code::unsupported, "This device is not set up here."};
    if (!status.ok()) return page(400, status.why);
    PortalAnswer done;
    done.body.append(page_head).append("<p>The device now joins ");
    append_escaped(done.body, form.input.ssid);
    done.body += ". If this access point is still there after a minute, open this page again: it says why.</p>";
    return done;
}

// The code comes first: without it, nothing is learnt of the rest.
const char *Portal::problem(const PortalInput &input, std::string_view code) {
    if (!code_.empty()) {
        if (wrong_codes_ >= max_code_attempts) return "Too many wrong codes: restart the device for another one.";
        if (!same(code, code_)) {
            wrong_codes_++;
            return "The code is not the one that the device shows.";
        }
    }
    if (input.ssid.empty() || input.ssid.size() > 32) return "The name of a Wi-Fi has 1 to 32 bytes.";
    if (!is_password(input.password))
        return "A password has 8 to 63 characters, or is 64 hex digits; or there is none.";
    if (input.fleet.size() > 255) return "The fleet's address is too long.";
    if (!input.fleet.empty() && !parse_url(input.fleet).ok()) {
        return "The fleet's address begins with https:// or http://, as in https://fleet.example.org/xiaozhi/ota/.";
    }
    return nullptr;
}

PortalAnswer Portal::page(int status, std::string_view message) const {
    PortalAnswer answer;
    answer.status = status;
    std::string &out = answer.body;
    out.append(page_head);
    if (!message.empty()) {
        out += "<p role=\"alert\"><b>";
        append_escaped(out, message);
        out += "</b></p>";
    }
    out += "<form method=\"post\" action=\"/\" autocomplete=\"off\">";
    append_field(out, "Wi-Fi", "name=\"ssid\" list=\"seen\" maxlength=\"32\" required");
    out += "<datalist id=\"seen\">";
    for (const std::string &name : networks) {
        out += "<option>";
        append_escaped(out, name);
        out += "</option>";
    }
    out += "</datalist>";
    append_field(out, "Password", "name=\"password\" type=\"password\" maxlength=\"64\"");
    append_field(out, "The fleet's address", "name=\"fleet\" type=\"url\" maxlength=\"255\"", fleet_);
    if (!code_.empty()) append_field(out, "Code that the device shows", "name=\"code\" maxlength=\"16\" required");
    out += "<button>Join</button></form>";
    return answer;
}

}  // namespace fleet
