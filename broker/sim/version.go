package sim

import (
	"fmt"
	"math"
	"strings"
)

// newerVersion compares as the firmware does (1.5): part by part as numbers, then more parts win.
// It returns an error where std::stoi throws, which nothing in the firmware catches: the device
// aborts.
func newerVersion(current, offered string) (bool, error) {
	have, err := versionParts(current)
	if err != nil {
		return false, err
	}
	next, err := versionParts(offered)
	if err != nil {
		return false, err
	}
	for i := range min(len(have), len(next)) {
		if have[i] != next[i] {
			return next[i] > have[i], nil
		}
	}
	return len(next) > len(have), nil
}

// versionParts splits as std::getline does: an empty text has no parts, and a dot at the end
// starts none.
func versionParts(version string) ([]int, error) {
	version = strings.TrimSuffix(version, ".")
	if version == "" {
		return nil, nil
	}
	var parts []int
	for text := range strings.SplitSeq(version, ".") {
		n, err := stoi(text)
		if err != nil {
			return nil, fmt.Errorf("version %q: %w", version, err)
		}
		parts = append(parts, n)
	}
	return parts, nil
}

// stoi parses as std::stoi does: leading space and a sign are allowed, text after the digits is
// ignored, and missing digits or a value beyond an int is an error.
func stoi(text string) (int, error) {
	digits := strings.TrimLeft(text, " \t\n\v\f\r")
	sign := 1
	if digits != "" && (digits[0] == '-' || digits[0] == '+') {
		if digits[0] == '-' {
			sign = -1
		}
		digits = digits[1:]
	}
	n, i := 0, 0
	for ; i < len(digits) && digits[i] >= '0' && digits[i] <= '9'; i++ {
		if n = n*10 + int(digits[i]-'0'); n > math.MaxInt32 {
			return 0, fmt.Errorf("stoi: %q is out of range", text)
		}
	}
	if i == 0 {
		return 0, fmt.Errorf("stoi: %q is not a number", text)
	}
	return sign * n, nil
}
