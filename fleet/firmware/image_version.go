package firmware

import "strings"

// A VersionWarning is a way in which stock firmware reads an image's version that its author
// may not have intended.
type VersionWarning struct {
	Code VersionWarningCode
	Part string // of the version, between dots; "" if the warning is about the whole version
	Read string // what a board reads instead; "" if it reads nothing
}

// VersionWarningCode is the stable code of a [VersionWarning].
type VersionWarningCode string

// The warnings about a version.
const (
	// A board that compares the version crashes at every start.
	VersionNoNumber       VersionWarningCode = "version_no_number"
	VersionNumberTooLarge VersionWarningCode = "version_number_too_large"
	// The board reads only up to the first character that is not a digit.
	VersionSuffixIgnored VersionWarningCode = "version_suffix_ignored"
	// The version has more parts than fleetd offers at a boot poll.
	VersionTooManyParts VersionWarningCode = "version_too_many_parts"
	// The version is newer than every future numbered version.
	VersionIsDate VersionWarningCode = "version_is_date"
)

const maxVersionParts = 6

// VersionWarnings returns what stock firmware misreads in a version: it splits the version at dots,
// reads the leading digits of each part as a 32-bit number, and compares from left to right.
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
