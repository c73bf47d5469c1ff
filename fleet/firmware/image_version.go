package firmware

import "strings"

// A VersionWarning is something that stock firmware makes of an image's
// version and its author may not have meant.
type VersionWarning struct {
	Code VersionWarningCode
	Part string // of the version, between dots; "" if it is about all of it
	Read string // what a board reads instead; "" if that is nothing
}

// VersionWarningCode is the stable code of a [VersionWarning].
type VersionWarningCode string

// What can be wrong with a version (protocol 1.5 and 1.6).
const (
	// A board that compares it crashes, at every start.
	VersionNoNumber       VersionWarningCode = "version_no_number"
	VersionNumberTooLarge VersionWarningCode = "version_number_too_large"
	// Read up to the first character that is no digit.
	VersionSuffixIgnored VersionWarningCode = "version_suffix_ignored"
	// More than fleetd offers at a boot poll.
	VersionTooManyParts VersionWarningCode = "version_too_many_parts"
	// Newer than every numbered version there will be.
	VersionIsDate VersionWarningCode = "version_is_date"
)

const maxVersionParts = 6

// VersionWarnings says what stock firmware makes of a version: it splits at
// dots, reads the digits that each part begins with as a 32-bit number, and
// compares from left to right.
func VersionWarnings(version string) (all []VersionWarning) {
	parts := strings.Split(version, ".")
	for i, part := range parts {
		digits := part[:len(part)-len(strings.TrimLeft(part, "0123456789"))]
		switch {
		case digits == "":
			all = append(all, VersionWarning{VersionNoNumber, part, ""})
			continue
		case len(digits) > 9: // boards read up to 2,147,483,647; fleetd does not try
			all = append(all, VersionWarning{VersionNumberTooLarge, part, ""})
			continue
		case digits != part:
			all = append(all, VersionWarning{VersionSuffixIgnored, part, digits})
		}
		if i == 0 && isYear(digits) {
			all = append(all, VersionWarning{VersionIsDate, part, digits})
		}
	}
	if len(parts) > maxVersionParts {
		all = append(all, VersionWarning{Code: VersionTooManyParts})
	}
	return all
}

// isYear reports whether the digits begin a date: 2025, 202511, 20251102.
func isYear(digits string) bool {
	switch len(digits) {
	case 4, 6, 8:
		return digits >= "1990" && digits[:4] <= "2100"
	}
	return false
}
