// SPDX-License-Identifier: Apache-2.0
#include "fleet/json_scan.hpp"

#include "fleet/utf8.hpp"

namespace fleet {
namespace {

constexpr Status not_json{Code::invalid, "not valid JSON"};

bool is_digit(char c) {
    return c >= '0' && c <= '9';
}
bool is_hex(char c) {
    return is_digit(c) || (c >= 'a' && c <= 'f') || (c >= 'A' && c <= 'F');
}
bool is_blank(char c) {
    return c == ' ' || c == '\t' || c == '\n' || c == '\r';
}

// Scanner walks over text, one token at a time.
class Scanner {
public:
    explicit Scanner(std::string_view text) : text_(text) {}

    std::size_t at() const { return at_; }
    bool done() const { return at_ >= text_.size(); }
    char peek() const { return done() ? '\0' : text_[at_]; }

    void blanks() {
        while (!done() && is_blank(text_[at_]))
            at_++;
    }

    bool take(char c) {
        if (done() || text_[at_] != c) return false;
        at_++;
        return true;
    }

    bool string() {
        if (!take('"')) return false;
        while (!done()) {
            if (take('"')) return true;
            if (!character()) return false;
        }
        return false;
    }

    bool scalar() {
        if (peek() == '"') return string();
        if (peek() == '-' || is_digit(peek())) return number();
        return word("true") || word("false") || word("null");
    }

private:
    bool character() {
        if (take('\\')) return escape();
        if (static_cast<unsigned char>(text_[at_]) < 0x20) return false;
        const std::size_t n = utf8_length(text_.substr(at_));
        at_ += n;
        return n > 0;
    }

    bool escape() {
        if (done()) return false;
        const char c = text_[at_++];
        if (c != 'u') return std::string_view("\"\\/bfnrt").find(c) != std::string_view::npos;
        unsigned unit = 0;
        if (!unit16(unit) || unit == 0) return false;
        if (unit >= 0xDC00 && unit <= 0xDFFF) return false;
        if (unit < 0xD800 || unit > 0xDBFF) return true;
        return take('\\') && take('u') && unit16(unit) && unit >= 0xDC00 && unit <= 0xDFFF;
    }

    bool unit16(unsigned &unit) {
        unit = 0;
        for (int i = 0; i < 4; i++, at_++) {
            if (done() || !is_hex(text_[at_])) return false;
            const char c = text_[at_];
            unit = unit * 16 + static_cast<unsigned>(is_digit(c) ? c - '0' : (c | 0x20) - 'a' + 10);
        }
        return true;
    }

    bool digits() {
        const std::size_t start = at_;
        while (is_digit(peek()))
            at_++;
        return at_ > start;
    }

    bool number() {
        take('-');
        if (!take('0') && !digits()) return false;
        if (take('.') && !digits()) return false;
        if (!take('e') && !take('E')) return true;
        if (!take('+')) take('-');
        return digits();
    }

    bool word(std::string_view w) {
        if (text_.substr(at_, w.size()) != w) return false;
        at_ += w.size();
        return true;
    }

    std::string_view text_;
    std::size_t at_ = 0;
};

// Walk keeps the open brackets as bits: 1 is an object, 0 an array.
class Walk {
public:
    Walk(std::string_view text, const JsonLimits &limits) : scan_(text), limits_(limits) {}

    // value consumes one whole value, whatever is nested in it.
    Status value() {
        do {
            if (Status s = open_or_scalar(); !s.ok()) return s;
            if (Status s = after_value(); !s.ok()) return s;
        } while (depth_ > 0);
        return {};
    }

    Scanner &scan() { return scan_; }

private:
    bool in_object() const { return (objects_ >> (depth_ - 1)) & 1u; }

    Status push(bool object) {
        if (depth_ >= limits_.depth || depth_ >= 32) return {Code::invalid, "JSON is nested too deeply"};
        const std::uint32_t bit = std::uint32_t{1} << depth_;
        objects_ = object ? objects_ | bit : objects_ & ~bit;
        depth_++;
        return {};
    }

    bool key() {
        scan_.blanks();
        if (!scan_.string()) return false;
        scan_.blanks();
        return scan_.take(':');
    }

    // open_or_scalar leaves the scan after a scalar or an empty bracket pair,
    // having entered every bracket before it.
    Status open_or_scalar() {
        for (;;) {
            if (++values_ > limits_.values) return {Code::invalid, "JSON has too many values"};
            scan_.blanks();
            const char c = scan_.peek();
            if (c != '{' && c != '[') return scan_.scalar() ? Status{} : not_json;
            scan_.take(c);
            if (Status s = push(c == '{'); !s.ok()) return s;
            scan_.blanks();
            if (scan_.take(c == '{' ? '}' : ']')) {
                depth_--;
                return {};
            }
            if (c == '{' && !key()) return not_json;
        }
    }

    // after_value closes brackets up to the next comma.
    Status after_value() {
        while (depth_ > 0) {
            scan_.blanks();
            if (scan_.take(',')) return !in_object() || key() ? Status{} : not_json;
            if (!scan_.take(in_object() ? '}' : ']')) return not_json;
            depth_--;
        }
        return {};
    }

    Scanner scan_;
    const JsonLimits &limits_;
    std::uint32_t objects_ = 0;
    std::size_t depth_ = 0;
    std::size_t values_ = 0;
};

constexpr JsonLimits no_limits{SIZE_MAX, 32, SIZE_MAX};

}  // namespace

Status scan_json(std::string_view text, const JsonLimits &limits) {
    if (text.size() > limits.bytes) return {Code::no_space, "message is too long"};
    Walk walk(text, limits);
    if (Status s = walk.value(); !s.ok()) return s;
    walk.scan().blanks();
    return walk.scan().done() ? Status{} : not_json;
}

std::string_view raw_member(std::string_view object, std::string_view key) {
    Scanner scan(object);
    scan.blanks();
    if (!scan.take('{')) return {};
    std::size_t at = scan.at();
    for (;;) {
        Scanner name(object.substr(at));
        name.blanks();
        const std::size_t start = at + name.at();
        if (!name.string()) return {};
        const std::string_view written = object.substr(start + 1, at + name.at() - start - 2);
        name.blanks();
        if (!name.take(':')) return {};
        name.blanks();
        at += name.at();
        Walk value(object.substr(at), no_limits);
        if (!value.value().ok()) return {};
        if (written == key) return object.substr(at, value.scan().at());
        at += value.scan().at();
        Scanner rest(object.substr(at));
        rest.blanks();
        if (!rest.take(',')) return {};
        at += rest.at();
    }
}

}  // namespace fleet
