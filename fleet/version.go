package fleet

import "regexp"

var comparableVersion = regexp.MustCompile(`^[0-9]{1,9}(\.[0-9]{1,9}){0,5}$`)

// ComparableVersion reports whether a stock device survives comparing the
// version: it parses each part as a number, and a part that is none throws.
func ComparableVersion(version string) bool { return comparableVersion.MatchString(version) }

// A FirmwareOffer is the firmware section of an answer to a boot poll.
type FirmwareOffer struct {
	Version string
	URL     string // one-time link of the attempt
	Force   bool   // install although the version is not newer
	// For the included firmware; stock firmware does not look at them.
	SHA256    string // of the bytes, hex
	Size      int64  // bytes
	Job       string // as [UpgradeJobName] names it
	Manifest  string // signed statement about the image; "" if there is none
	Signature string // of the manifest, base64
}
