package jsonscan

import "errors"

// errPlain ends PlainMembers: the text needs a reader that decodes.
var errPlain = errors.New("not an object of a few plain keys")

// maxPlain is the maximum number of members in the object of [PlainMembers].
const maxPlain = 16

// PlainMembers calls f with each member of the object in data, until f returns false. It
// reports whether data is valid JSON, f accepted every member, and each key occurs once
// and is plain as in [PlainString]: then every other reader gets the same result.
func PlainMembers(data []byte, f func(key, value []byte) bool) bool {
	var seen [maxPlain][]byte
	n := 0
	return Members(data, func(key, value []byte) error {
		if n == len(seen) || !plain(key) {
			return errPlain
		}
		for _, other := range seen[:n] {
			if string(other) == string(key) {
				return errPlain
			}
		}
		seen[n] = key
		if n++; !f(key, value) {
			return errPlain
		}
		return nil
	}) == nil
}

// IsString reports whether value, a checked JSON value, is a string.
func IsString(value []byte) bool { return len(value) >= 2 && value[0] == '"' }

// PlainString returns the text of value, a checked JSON value. ok is false unless it
// is a string of printable ASCII without escapes, which needs no decoding.
func PlainString(value []byte) (text []byte, ok bool) {
	if !IsString(value) {
		return nil, false
	}
	text = value[1 : len(value)-1]
	return text, plain(text)
}

func plain(text []byte) bool {
	for _, c := range text {
		if c < 0x20 || c > 0x7e || c == '\\' {
			return false
		}
	}
	return true
}
